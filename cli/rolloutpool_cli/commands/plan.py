"""`rolloutpool plan`: what the operator would plan, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolloutpool_api import labels
from rolloutpool_api.planning import GpuSpec
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_cli.console import FAILURE, fail, load_pool, output, progress
from rolloutpool_operator.core.observed import NodeFacts
from rolloutpool_operator.core.translate import is_manual, planner_inputs, profile_note, read_profile
from rolloutpool_operator.local.profiles import profile_beside
from rolloutpool_planner.answers import Plan
from rolloutpool_planner.errors import PlannerError
from rolloutpool_planner.explain import explain
from rolloutpool_planner.plan import plan as find_plan
from rolloutpool_sim.profile import PerformanceProfile, ProfileError

GPUS_PER_NODE = 8


def plan(
    file: Annotated[Path, typer.Option("--file", "-f", help="Manifest of the pool.")],
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Nodes. Default: only the budget counts."),
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, max=64, help=f"Free GPUs of each node. Default: {GPUS_PER_NODE}.")
    ] = None,
) -> None:
    """Print the plan for a pool, and why it is the best: no cluster is needed, nothing is changed.

    Exits with 1 if there is no plan.
    """
    pool = load_pool(file)
    try:
        profile = _profile(file, pool.spec)
        inputs = planner_inputs(
            pool.spec, profile=profile, nodes=_nodes(pool.spec.gpus, nodes, gpus_per_node), running=()
        )
        with progress().status("Planning"):
            result = find_plan(inputs)
    except (PlannerError, ProfileError) as error:
        fail(str(error))
    output().print(explain(result))
    if note := profile_note(pool.spec, profile):
        progress().print(f"Note: {note}")
    if not isinstance(result, Plan):
        raise typer.Exit(FAILURE)


def _profile(file: Path, spec: RolloutPoolSpec) -> PerformanceProfile | None:
    try:
        return read_profile(spec, profile_beside(file, spec))
    except ProfileError:
        if is_manual(spec):
            return None
        raise


def _nodes(gpus: GpuSpec, nodes: int | None, gpus_per_node: int | None) -> tuple[NodeFacts, ...] | None:
    """Nodes that are all alike and all the pool's; None where nothing was said of them."""
    if nodes is None and gpus_per_node is None:
        return None
    free = gpus_per_node or GPUS_PER_NODE
    product = {labels.GPU_PRODUCT: gpus.product} if gpus.product else {}
    return tuple(
        NodeFacts(
            name=f"node-{number}",
            gpus_allocatable=free,
            gpus_free=free,
            product=gpus.product or "",
            labels={**gpus.node_selector, **product},
        )
        for number in range(nodes or 1)
    )
