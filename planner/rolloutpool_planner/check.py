"""Is a plan allowed? Plain arithmetic over the inputs: no linear program, nothing taken from the solver."""

from collections.abc import Iterator, Sequence

from rolloutpool_api.planning import PlanningMode, PlanningObjective, Role

from .answers import Group, Plan, plan_hash
from .candidates import candidates, demanded_rate
from .inputs import PlannerInputs, ReplicaGroup
from .packing import pack
from .predict import Rated, breaches, rate, total_served

TOLERANCE = 1e-5
"""Relative shortfall of the demand that is rounding: ten times what the solver may be off."""


def violations(plan: Plan, inputs: PlannerInputs) -> tuple[str, ...]:
    """Every constraint that the plan breaks, in words with numbers; empty if it may be used.

    In mode Manual the latencies and the demand are the user's own choice and are not checked.
    """
    given = as_given(plan.groups)
    found = [*_form(plan, inputs), *hardware(given, inputs)]
    if inputs.mode is not PlanningMode.MANUAL:
        found += [*_allowed(plan, inputs), *_change(plan, inputs), *_load(plan, inputs)]
    return tuple(found)


def as_given(groups: Sequence[Group]) -> tuple[ReplicaGroup, ...]:
    """The groups without their predictions."""
    return tuple(
        ReplicaGroup(
            role=g.role,
            tensor_parallel=g.tensor_parallel,
            pipeline_parallel=g.pipeline_parallel,
            replicas=g.replicas,
        )
        for g in groups
    )


def _form(plan: Plan, inputs: PlannerInputs) -> Iterator[str]:
    used = sum(g.replicas * g.tensor_parallel * g.pipeline_parallel for g in plan.groups)
    if plan.gpus_used != used:
        yield f"the plan says {plan.gpus_used} GPUs, its groups hold {used}"
    if plan.gpu_budget != inputs.gpu_budget:
        yield f"the plan was made for a budget of {plan.gpu_budget} GPUs, not {inputs.gpu_budget}"
    if plan.hash != plan_hash(plan.mode, plan.groups):
        yield "the plan's hash is not that of its groups"
    kinds = [(g.role, g.parallelism) for g in plan.groups]
    if len(set(kinds)) != len(kinds):
        yield "two groups have the same role and parallelism"
    expected = plan.mode if inputs.mode in (PlanningMode.AUTO, PlanningMode.MANUAL) else inputs.mode
    if mode_of({g.role for g in plan.groups}) is not expected:
        yield f"the groups' roles are not those of a plan of mode {expected}"


def mode_of(roles: set[Role]) -> PlanningMode | None:
    """The mode that these roles make up, None if they make up neither."""
    if roles == {Role.AGGREGATED}:
        return PlanningMode.AGGREGATED
    return PlanningMode.DISAGGREGATED if roles == {Role.PREFILL, Role.DECODE} else None


def hardware(groups: Sequence[ReplicaGroup], inputs: PlannerInputs) -> Iterator[str]:
    """Breaches of budget, engine count and nodes."""
    used = sum(g.replicas * g.parallelism.gpus for g in groups)
    if used > inputs.gpu_budget:
        yield f"{used} GPUs exceed the budget of {inputs.gpu_budget}"
    engines = sum(g.replicas for g in groups)
    if engines > inputs.max_engines:
        yield f"{engines} engines exceed the limit of {inputs.max_engines}"
    if inputs.node_shapes is None:
        return
    sizes: dict[int, int] = {}
    for g in groups:
        sizes[g.parallelism.gpus] = sizes.get(g.parallelism.gpus, 0) + g.replicas
    for size, left in pack(inputs.node_shapes, sizes).items():
        yield f"{left} replicas of {size} GPUs find no node with {size} free GPUs"


def _allowed(plan: Plan, inputs: PlannerInputs) -> Iterator[str]:
    for g in plan.groups:
        if inputs.allowed_parallelism is not None and g.parallelism not in inputs.allowed_parallelism:
            yield f"{g.parallelism} is not an allowed parallelism"


def _change(plan: Plan, inputs: PlannerInputs) -> Iterator[str]:
    """More changes than allowed are fine only where the running plan cannot stay as it is."""
    if inputs.max_change_per_step is None or not inputs.current_plan:
        return
    now = {(g.role, g.parallelism): g.replicas for g in inputs.current_plan}
    new = {(g.role, g.parallelism): g.replicas for g in plan.groups}
    added = sum(max(n - now.get(key, 0), 0) for key, n in new.items())
    removed = sum(max(n - new.get(key, 0), 0) for key, n in now.items())
    if max(added, removed) <= inputs.max_change_per_step:
        return
    if not (plan.paced and must_change(inputs)):
        yield f"{added} replicas added and {removed} removed, {inputs.max_change_per_step} are allowed"


def must_change(inputs: PlannerInputs) -> bool:
    """Whether the running plan breaks hardware limits, or has roles or replicas that cannot serve now."""
    current = inputs.current_plan or ()
    mode = mode_of({g.role for g in current})
    allowed = inputs.allowed_parallelism
    return (
        any(hardware(current, inputs))
        or mode is None
        or inputs.mode not in (PlanningMode.AUTO, mode)
        or any(allowed is not None and g.parallelism not in allowed for g in current)
        or any(r.capacity <= 0 for r in _rated(current, inputs))
    )


def _rated(groups: Sequence[ReplicaGroup], inputs: PlannerInputs) -> tuple[Rated, ...]:
    return rate(inputs, inputs.profile, groups) if inputs.profile else ()


def _load(plan: Plan, inputs: PlannerInputs) -> Iterator[str]:
    rated = _rated(as_given(plan.groups), inputs)
    yield from (
        f"{r.group.role} {r.group.parallelism} cannot serve the mix" for r in rated if r.capacity <= 0
    )
    capacity = total_served(rated)
    yield from breaches(rated, capacity)
    if inputs.objective is PlanningObjective.MAXIMIZE_THROUGHPUT or plan.paced or inputs.profile is None:
        return
    demand = demanded_rate(inputs, candidates(inputs, inputs.profile)) or 0.0
    if capacity < demand * (1 - TOLERANCE):
        yield f"{capacity:.4g} samples/s are served of the {demand:.4g} demanded"
