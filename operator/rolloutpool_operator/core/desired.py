"""The Kubernetes objects that a pool should have."""

from __future__ import annotations

from collections.abc import Sequence

from rolloutpool_api.status import PlanGroup
from rolloutpool_operator.core.children import Child
from rolloutpool_operator.core.manifests.context import Context
from rolloutpool_operator.core.manifests.engines import build_engine_service, build_engine_set
from rolloutpool_operator.core.manifests.policies import build_policies
from rolloutpool_operator.core.manifests.router import build_router


def build_children(ctx: Context, groups: Sequence[PlanGroup]) -> tuple[Child, ...]:
    """Every child of a pool under a plan; without groups the router alone, so that its address is early."""
    return (
        *build_policies(ctx),
        build_engine_service(ctx),
        *build_router(ctx),
        *(build_engine_set(ctx, group) for group in groups),
    )
