"""Why there is no plan: the constraint that forbids it, with its numbers, and the budget that would do.

`before_solving` needs no solver; `after_solving` finds out what an infeasible program lacks by lifting one
limit after the other.
"""

from collections.abc import Iterable
from dataclasses import replace

from rolloutpool_api.planning import PlanningMode, Role
from rolloutpool_sim.profile import PerformanceProfile

from .answers import Constraint, Infeasible
from .candidates import Candidates, engines
from .inputs import NodeShape, Parallelism, PlannerInputs
from .model import Goal
from .packing import is_chain
from .program import Counts, Program, role_capacity, served, total_gpus
from .search import TimedSolve, search
from .solver import SolveStatus

MAX_REASONS = 4
"""Rejected replicas that a message names."""


def describe(program: Program, counts: Counts) -> str:
    """Counts in words, e.g. "2 x prefill TP1, 3 x decode TP2"."""
    return ", ".join(f"{n} x {o.label}" for o, n in zip(program.options, counts, strict=True) if n)


def before_solving(
    inputs: PlannerInputs, profile: PerformanceProfile, found: Candidates
) -> Infeasible | None:
    """The first obstacle that is plain without solving, or None."""
    return (
        _no_parallelism(inputs, profile)
        or _unusable(inputs, found)
        or _mixed_sizes(inputs, found)
        or _no_node(inputs, found)
        or _budget_below_smallest(inputs, found)
    )


def _no_parallelism(inputs: PlannerInputs, profile: PerformanceProfile) -> Infeasible | None:
    if engines(inputs, profile):
        return None
    known = ", ".join(str(Parallelism(p.tensor_parallel, p.pipeline_parallel)) for p in profile.parallelism)
    allowed = ", ".join(str(p) for p in inputs.allowed_parallelism or ())
    message = f"profile {profile.name} has {known}, but only {allowed} is allowed: allow one that it has"
    return Infeasible(constraint=Constraint.PARALLELISM, message=message)


def role_sets(mode: PlanningMode) -> tuple[tuple[Role, ...], ...]:
    """The sets of roles that make up a plan of this mode."""
    aggregated, disaggregated = (Role.AGGREGATED,), (Role.PREFILL, Role.DECODE)
    if mode is PlanningMode.AUTO:
        return aggregated, disaggregated
    return (aggregated,) if mode is PlanningMode.AGGREGATED else (disaggregated,)


def _unusable(inputs: PlannerInputs, found: Candidates) -> Infeasible | None:
    """Some role of every possible kind of plan has no replica that can serve the mix."""
    if any(all(found.of(role) for role in kind) for kind in role_sets(inputs.mode)):
        return None
    missing = [role for kind in role_sets(inputs.mode) for role in kind if not found.of(role)]
    rejected = [r for r in found.rejected if r.role in missing]
    kv_only = all(r.what == "kv" for r in rejected)
    reasons = list(dict.fromkeys(f"{r.role} {r.parallelism}: {r.reason}" for r in reversed(rejected)))
    message = "no allowed parallelism can serve the mix: " + "; ".join(reasons[:MAX_REASONS])
    return Infeasible(constraint=Constraint.KV_CAPACITY if kv_only else Constraint.SLO, message=message)


def _mixed_sizes(inputs: PlannerInputs, found: Candidates) -> Infeasible | None:
    sizes = sorted({c.gpus for c in found.usable})
    if inputs.node_shapes is None or is_chain(sizes):
        return None
    listed = ", ".join(str(size) for size in sizes)
    message = (
        f"replicas of {listed} GPUs cannot be planned together on nodes, since not every size divides "
        "the next: set allowed_parallelism to sizes such as 1, 2, 4, 8"
    )
    return Infeasible(constraint=Constraint.PARALLELISM, message=message)


def largest_node(shapes: Iterable[NodeShape]) -> NodeShape | None:
    """The node with the most free GPUs."""
    return max(shapes, key=lambda s: (s.free_gpus, s.gpus_per_node, s.product), default=None)


def fitting(inputs: PlannerInputs, found: Candidates, role: Role) -> list[int]:
    """Sizes of the role's usable replicas that some node has room for, in ascending order."""
    sizes = sorted({c.gpus for c in found.of(role)})
    if inputs.node_shapes is None:
        return sizes
    largest = largest_node(inputs.node_shapes)
    return [size for size in sizes if largest is not None and size <= largest.free_gpus]


def _no_node(inputs: PlannerInputs, found: Candidates) -> Infeasible | None:
    if any(all(fitting(inputs, found, role) for role in kind) for kind in role_sets(inputs.mode)):
        return None
    largest = largest_node(inputs.node_shapes or ())
    if largest is None:
        return Infeasible(constraint=Constraint.NODES, message="there is no node with GPUs for this pool")
    needed = min(_smallest(found, kind) for kind in role_sets(inputs.mode) if all(found.of(r) for r in kind))
    message = (
        f"a replica needs {needed} GPUs on one node, but the largest node ({largest.product}) has "
        f"{largest.free_gpus} free of {largest.gpus_per_node}"
    )
    return Infeasible(constraint=Constraint.NODES, message=message)


def _smallest(found: Candidates, kind: Iterable[Role]) -> int:
    """GPUs of the largest among the smallest replicas of these roles."""
    return max(min(c.gpus for c in found.of(role)) for role in kind)


def smallest_plan(inputs: PlannerInputs, found: Candidates) -> tuple[int, tuple[tuple[Role, int], ...]]:
    """GPUs of the smallest plan on these nodes, and the size of each of its replicas."""
    plans = [
        tuple((role, fitting(inputs, found, role)[0]) for role in kind)
        for kind in role_sets(inputs.mode)
        if all(fitting(inputs, found, role) for role in kind)
    ]
    return min((sum(size for _, size in plan), plan) for plan in plans)


def _budget_below_smallest(inputs: PlannerInputs, found: Candidates) -> Infeasible | None:
    needed, replicas = smallest_plan(inputs, found)
    if needed <= inputs.gpu_budget:
        return None
    parts = " and ".join(f"one {role} replica of {size}" for role, size in replicas)
    message = f"the GPU budget is {inputs.gpu_budget}, the smallest plan needs {needed}: {parts}"
    return Infeasible(constraint=Constraint.BUDGET, message=message, smallest_budget=needed)


def after_solving(program: Program, solve: TimedSolve) -> Infeasible:
    """Which limit of an infeasible program is to blame: budget, then nodes, then the number of engines."""
    at_most = search(replace(program, demand=0.0), (Goal.THROUGHPUT,), solve).counts
    best = served(role_capacity(program, at_most)) if at_most else 0.0
    within = f"the demand is {program.demand:.4g} samples/s within the SLOs; "
    no_budget = search(replace(program, gpu_budget=None), (Goal.GPUS,), solve)
    if no_budget.counts is not None:
        needed = total_gpus(program, no_budget.counts)
        message = (
            f"{within}the GPU budget of {program.gpu_budget} serves at most {best:.4g}; "
            f"{needed} GPUs would do ({describe(program, no_budget.counts)})"
        )
        return Infeasible(constraint=Constraint.BUDGET, message=message, smallest_budget=needed)
    no_nodes = search(replace(program, gpu_budget=None, node_shapes=None), (Goal.GPUS,), solve)
    if no_nodes.counts is not None:
        at_most = search(replace(program, demand=0.0, gpu_budget=None), (Goal.THROUGHPUT,), solve).counts
        best = served(role_capacity(program, at_most)) if at_most else 0.0
        return _nodes_to_blame(program, no_nodes.counts, best, within)
    if SolveStatus.NO_ANSWER in (no_budget.status, no_nodes.status):
        message = f"{within}at most {best:.4g} can be served; no time was left to find what would do"
        return Infeasible(constraint=Constraint.BUDGET, message=message)
    message = f"{within}{program.max_engines} engines, the most of one pool, serve less: use several pools"
    return Infeasible(constraint=Constraint.ENGINES, message=message)


def _nodes_to_blame(program: Program, counts: Counts, best: float, within: str) -> Infeasible:
    shapes = program.node_shapes or ()
    free = sum(s.free_gpus * s.count for s in shapes)
    nodes = sum(s.count for s in shapes)
    message = (
        f"{within}the {nodes} nodes with {free} free GPUs serve at most {best:.4g}; "
        f"{total_gpus(program, counts)} GPUs would do ({describe(program, counts)}), each replica on one node"
    )
    return Infeasible(constraint=Constraint.NODES, message=message)
