"""What is predicted for given groups: each role's load is spread over its replicas by their capacity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rolloutpool_api.planning import Role
from rolloutpool_sim.profile import PerformanceProfile, ProfileError

from .answers import Group, listing_order
from .candidates import breach, capacity, engines, model_of, pace_of, why_impossible
from .inputs import PlannerInputs, ReplicaGroup
from .mix import mix_of
from .performance import LoadState, RoleModel
from .program import served

ROUNDING = 1e-9
"""Relative: keeps a load of exactly the capacity from needing the next larger batch."""


@dataclass(frozen=True, kw_only=True)
class Rated:
    """A group, the load model of one of its replicas and that replica's capacity in samples per second.

    `model` is None if the profile does not know the group's parallelism; `capacity` is 0 then, and if the
    replica cannot serve the mix.
    """

    group: ReplicaGroup
    model: RoleModel | None
    capacity: float


def rate(
    inputs: PlannerInputs, profile: PerformanceProfile, groups: Sequence[ReplicaGroup]
) -> tuple[Rated, ...]:
    """Rate every group within KV and SLOs, in the order in which groups are listed."""
    mix = mix_of(inputs)
    pace = pace_of(mix, inputs.limits, engines(inputs, profile) or profile.parallelism)
    rated = []
    for group in sorted(groups, key=listing_order):
        try:
            engine = profile.at(group.tensor_parallel, group.pipeline_parallel)
        except ProfileError:
            rated.append(Rated(group=group, model=None, capacity=0.0))
            continue
        model = model_of(group.role, engine, mix, inputs.limits, pace)
        load = 0.0 if why_impossible(model) else capacity(model)[0]
        rated.append(Rated(group=group, model=model, capacity=load))
    return tuple(rated)


def role_totals(rated: Sequence[Rated]) -> dict[Role, float]:
    """Samples per second that each role's groups carry together."""
    totals: dict[Role, float] = {}
    for r in rated:
        totals[r.group.role] = totals.get(r.group.role, 0.0) + r.capacity * r.group.replicas
    return totals


def total_served(rated: Sequence[Rated]) -> float:
    """Samples per second that the groups serve as a whole."""
    return served(role_totals(rated))


def states(rated: Sequence[Rated], load: float) -> tuple[LoadState | None, ...]:
    """One replica of every group at the pool's load; None where nothing can be predicted.

    Replicas of a role carry the same part of their capacity, which may exceed 1 if the load is too high.
    """
    totals = role_totals(rated)
    return tuple(
        r.model.state(load * (1 - ROUNDING) / totals[r.group.role] * r.capacity)
        if r.model and r.capacity > 0
        else None
        for r in rated
    )


def breaches(rated: Sequence[Rated], load: float) -> tuple[str, ...]:
    """Limits that the load breaks, by group."""
    found = []
    for r, state in zip(rated, states(rated, load), strict=True):
        broken = breach(r.model, state) if r.model and state else None
        if broken:
            found.append(f"{r.group.role} {r.group.parallelism} exceeds its {broken.text}")
    return tuple(found)


def worst_ttft(model: RoleModel, state: LoadState) -> float | None:
    """p95 TTFT of the class that comes closest to its SLO; without SLOs, of the slowest class."""
    if not state.ttft_p95:
        return None
    slos = [c.workload.ttft_slo_seconds for c in model.mix.classes]
    if all(slo is None for slo in slos):
        return max(state.ttft_p95)
    pairs = zip(state.ttft_p95, slos, strict=True)
    return max(((ttft / slo, ttft) for ttft, slo in pairs if slo is not None))[1]


def predicted(rated: Sequence[Rated], load: float) -> tuple[Group, ...]:
    """The groups with their predictions at the pool's load, in samples per second."""
    totals = role_totals(rated)
    groups = []
    for r, state in zip(rated, states(rated, load), strict=True):
        ttft = worst_ttft(r.model, state) if r.model and state else None
        groups.append(
            Group(
                role=r.group.role,
                tensor_parallel=r.group.tensor_parallel,
                pipeline_parallel=r.group.pipeline_parallel,
                replicas=r.group.replicas,
                gpus_per_replica=r.group.parallelism.gpus,
                predicted_ttft_p95_s=ttft if ttft is not None and math.isfinite(ttft) else None,
                predicted_itl_p95_s=state.itl_p95 if state else None,
                utilization=load / totals[r.group.role] if state else None,
            )
        )
    return tuple(groups)


def without_slos(inputs: PlannerInputs) -> PlannerInputs:
    """The inputs with no SLO: what replicas carry if latency is no concern."""
    classes = tuple(replace(c, ttft_slo_seconds=None, itl_slo_seconds=None) for c in inputs.classes)
    return replace(inputs, classes=classes)
