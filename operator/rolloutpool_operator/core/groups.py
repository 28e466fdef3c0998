"""Plan groups: what they are called, and how they read in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rolloutpool_api import labels
from rolloutpool_api.planning import Role
from rolloutpool_api.status import PlanGroup
from rolloutpool_operator.core.observed import ChildFacts

_NAME = re.compile(r"^(?P<role>[a-z]+)-tp(?P<tp>\d+)(-pp(?P<pp>\d+))?$")


def group_of(child: ChildFacts) -> PlanGroup | None:
    """The plan group that an engine set was made for; None for other children."""
    found = (child.body.get("metadata") or {}).get("labels") or {}
    match = _NAME.match(found.get(labels.GROUP_NAME, ""))
    if not match or match["role"] not in {role.value for role in Role}:
        return None
    tensor, pipeline = int(match["tp"]), int(match["pp"] or 1)
    return PlanGroup(
        role=Role(match["role"]),
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        replicas=int((child.body.get("spec") or {}).get("replicas", 1)),
        gpus_per_replica=tensor * pipeline,
    )


def running_groups(children: Iterable[ChildFacts]) -> tuple[PlanGroup, ...]:
    """The groups that engine sets exist for, with at least one replica, in a stable order."""
    found = (
        group_of(child) for child in sorted(children, key=lambda child: child.name) if not child.deleting
    )
    return tuple(group for group in found if group and group.replicas > 0)


def name_of(group: PlanGroup) -> str:
    """Name of a group, e.g. decode-tp2."""
    return labels.group_name(group.role, group.tensor_parallel, group.pipeline_parallel)


def describe(groups: Iterable[PlanGroup]) -> str:
    """Groups in words, e.g. "2 x prefill-tp1, 3 x decode-tp2"; "nothing" where there are none."""
    return ", ".join(f"{group.replicas} x {name_of(group)}" for group in groups) or "nothing"
