"""Admission caps of a pool: from what routers and engines report to the status that routers enforce.

The caps of one engine are computed by `rolloutpool_router.core.caps`; here their inputs are put together and
it is decided whether the result is worth a write. A status that was written is only replaced by one that
matters, so a pool costs the API server at most one write per period of the admission loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rolloutpool_api.moments import rfc3339, unix_seconds
from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import (
    AdmissionStatus,
    ClassAdmission,
    EngineAdmission,
    EngineClass,
)
from rolloutpool_router.core.caps import CapInputs, CapResult, ClassDemand, compute_caps
from rolloutpool_router.core.demand import SessionCost, prior_cost, queue_share
from rolloutpool_router.core.estimates import Source
from rolloutpool_router.core.policy import PolicyRules, rules_of
from rolloutpool_router.core.pressure import CALM, Pressure

CAP_CHANGE = 0.05
"""Relative change of a cap that is worth a write; one session always is where the cap is small."""
REFRESH_SECONDS = 10.0
"""How old shown counts may get while the caps stay, in seconds."""


UNSEEN = SessionCost(0.0, 0.0)
"""Cost of a class that no router has estimated."""
PRIOR_OBSERVATIONS = 1
"""What a router without observations counts for where several report a class."""


@dataclass(frozen=True, kw_only=True)
class EngineCapacity:
    """An engine that sessions live on."""

    name: str
    capacity_blocks: int
    """KV blocks of the spec's block size."""
    ready: bool
    """Engines that are not ready keep their sessions and get no share of the queue."""
    offload_blocks: int = 0
    """KV blocks that its CPU memory holds beside."""
    pressure: Pressure = CALM
    """How far what sessions may fill is contracted."""


@dataclass(frozen=True)
class ClassView:
    """One class over all routers."""

    active: int = 0
    waiting: int = 0
    oldest_wait_seconds: float = 0.0
    held: int = 0
    """Requests that no cap holds."""
    parked: int = 0
    cost: SessionCost = UNSEEN
    """Estimates of the routers; zeros while there are none."""
    source: Source = Source.PRIORS
    observations: int = 0
    consumed: int = 0
    """Finished sessions in the mixture's window."""
    debt: float = 0.0
    """Samples behind the target mixture (negative: ahead), as the routers order entries by."""
    ahead: float = 0.0
    """Samples ahead of it, where a router holds sessions for that."""


@dataclass(frozen=True)
class Merged:
    """What all routers report, added up."""

    classes: Mapping[str, ClassView]
    engines: Mapping[tuple[str, str], tuple[int, int]]
    """Sessions resident and the blocks that they hold, by engine and class."""

    @property
    def consumed(self) -> int:
        """Finished sessions in the mixture's window."""
        return sum(view.consumed for view in self.classes.values())


def merge_snapshots(names: Iterable[str], snapshots: Sequence[AdmissionSnapshot]) -> Merged:
    """Add up what routers report of the named classes; means are weighted by their observations."""
    engines: dict[tuple[str, str], tuple[int, int]] = {}
    for snapshot in snapshots:
        for engine in snapshot.engines:
            for item in engine.classes:
                active, blocks = engines.get((engine.name, item.name), (0, 0))
                engines[engine.name, item.name] = (active + item.active, blocks + item.blocks)
    return Merged({name: _class_view(name, snapshots) for name in names}, engines)


def full_engines(admission: AdmissionStatus | None, snapshots: Iterable[AdmissionSnapshot]) -> set[str]:
    """Engines whose residents hold all that they may: to allow less would change nothing now."""
    held: Counter[str] = Counter()
    for snapshot in snapshots:
        for engine in snapshot.engines:
            held[engine.name] += sum(item.blocks for item in engine.classes)
    told = admission.engines if admission is not None else ()
    return {engine.name for engine in told if held[engine.name] >= engine.protected_blocks}


def compute_admission(
    spec: RolloutPoolSpec,
    *,
    merged: Merged,
    engines: Sequence[EngineCapacity],
    revision: int,
    now: float,
    park_idle_seconds: int = 0,
) -> AdmissionStatus:
    """The caps of every engine and class under the spec's policy.

    Args:
        spec: the pool's spec.
        merged: what the routers report.
        engines: engines that sessions live on, with known capacity.
        revision: revision of the new status.
        now: Unix seconds.
        park_idle_seconds: tool gap from which holding a session costs more than recomputing it; 0: unknown.
    """
    rules = rules_of(spec, spec.admission.policy)
    costs = {workload.name: _cost(spec, merged, workload.name) for workload in spec.workloads}
    ready_blocks = sum(engine.capacity_blocks for engine in engines if engine.ready)
    results: dict[str, CapResult] = {}
    demand = {workload.name: 0.0 for workload in spec.workloads}
    for engine in engines:
        inputs = _cap_inputs(spec, rules, merged, engine, ready_blocks, costs)
        results[engine.name] = compute_caps(spec.admission.policy, inputs)
        for item in inputs.classes:
            demand[item.name] += item.sessions * item.footprint_blocks * item.residency_seconds
    return AdmissionStatus(
        revision=revision,
        policy=spec.admission.policy,
        computed_at=rfc3339(now),
        park_idle_seconds=round(spec.admission.park_idle_seconds or park_idle_seconds)
        if rules.parking
        else 0,
        engines=[_engine_status(rules, engine, results[engine.name], merged) for engine in engines],
        classes=[_class_status(name, merged, costs[name], demand, results.values()) for name in costs],
    )


def matters(new: AdmissionStatus, old: AdmissionStatus | None, *, now: float) -> bool:
    """Whether a new status is worth a write.

    At once: another policy, engine, capacity or class, a cap that moves by more than `CAP_CHANGE`, a queue
    that appears or empties. Other numbers, which only people read, after `REFRESH_SECONDS`.
    """
    if old is None or _frame(new) != _frame(old):
        return True
    if any(_moved(after, before) for after, before in zip(_caps(new), _caps(old), strict=True)):
        return True
    same = old.model_copy(update={"revision": new.revision, "computed_at": new.computed_at}) == new
    return not same and now - (unix_seconds(old.computed_at) or 0.0) >= REFRESH_SECONDS


def next_revision(stored: AdmissionStatus | None, snapshots: Iterable[AdmissionSnapshot], known: int) -> int:
    """A revision above all that were ever seen: stored, in force in a router, or written by this process."""
    applied = (snapshot.applied_revision for snapshot in snapshots)
    return max([stored.revision if stored else 0, known, *applied]) + 1


def _cap_inputs(
    spec: RolloutPoolSpec,
    rules: PolicyRules,
    merged: Merged,
    engine: EngineCapacity,
    ready_blocks: int,
    costs: Mapping[str, SessionCost],
) -> CapInputs:
    own_blocks = engine.capacity_blocks if engine.ready else 0
    classes = []
    for workload in spec.workloads:
        view = merged.classes[workload.name]
        resident, _ = merged.engines.get((engine.name, workload.name), (0, 0))
        classes.append(
            ClassDemand(
                name=workload.name,
                share=workload.share,
                sessions=resident + queue_share(view.waiting, own_blocks, ready_blocks),
                footprint_blocks=costs[workload.name].footprint_blocks,
                residency_seconds=costs[workload.name].residency_seconds,
                debt=view.debt,
            )
        )
    protected = rules.protected_blocks(engine.capacity_blocks, engine.pressure.factor)
    return CapInputs(protected, spec.admission.floor, rules.feasible_floors, tuple(classes))


def _class_view(name: str, snapshots: Sequence[AdmissionSnapshot]) -> ClassView:
    found = [item for snapshot in snapshots for item in snapshot.classes if item.name == name]
    estimates = [(item, item.observations or PRIOR_OBSERVATIONS) for item in found if item.residency_seconds]
    weight = max(sum(count for _, count in estimates), 1)
    # A router of another version may know other words.
    known = {source.value for source in Source}
    sources = {Source(item.source) if item.source in known else Source.BLEND for item in found}
    return ClassView(
        active=sum(item.active for item in found),
        waiting=sum(item.waiting for item in found),
        oldest_wait_seconds=max((item.oldest_wait_seconds for item in found), default=0.0),
        held=sum(item.held for item in found),
        parked=sum(item.parked for item in found),
        cost=SessionCost(
            sum(item.footprint_blocks * count for item, count in estimates) / weight,
            sum(item.residency_seconds * count for item, count in estimates) / weight,
        ),
        source=sources.pop() if len(sources) == 1 else Source.BLEND if sources else Source.PRIORS,
        observations=sum(item.observations for item in found),
        consumed=sum(item.consumed for item in found),
        debt=sum(item.debt for item in found),
        ahead=sum(item.ahead for item in found),
    )


def _cost(spec: RolloutPoolSpec, merged: Merged, name: str) -> SessionCost:
    """What the routers estimate; the priors while none has."""
    cost = merged.classes[name].cost
    if cost.residency_seconds > 0:
        return cost
    workload = next(item for item in spec.workloads if item.name == name)
    return prior_cost(
        workload, block_size=spec.engine.block_size, slo=spec.slo, max_tokens=spec.model.max_model_len
    )


def _engine_status(
    rules: PolicyRules, engine: EngineCapacity, result: CapResult, merged: Merged
) -> EngineAdmission:
    classes = []
    for name, cap in result.caps.items():
        active, blocks = merged.engines.get((engine.name, name), (0, 0))
        classes.append(EngineClass(name=name, cap=cap, active=active, blocks=blocks))
    return EngineAdmission(
        name=engine.name,
        capacity_blocks=engine.capacity_blocks,
        protected_blocks=rules.protected_blocks(engine.capacity_blocks, engine.pressure.factor),
        offload_blocks=engine.offload_blocks,
        pressure=engine.pressure.percent,
        classes=classes,
    )


def _class_status(
    name: str,
    merged: Merged,
    cost: SessionCost,
    demand: Mapping[str, float],
    results: Iterable[CapResult],
) -> ClassAdmission:
    view = merged.classes[name]
    total = sum(demand.values())
    return ClassAdmission(
        name=name,
        cap=sum(result.caps[name] for result in results),
        active=view.active,
        waiting=view.waiting,
        oldest_wait_seconds=math.ceil(view.oldest_wait_seconds),
        held=view.held,
        parked=view.parked,
        footprint_blocks=round(cost.footprint_blocks),
        residency_seconds=round(cost.residency_seconds),
        block_second_share=round(100 * demand[name] / total) if total > 0 else 0,
        debt=round(view.debt),
        ahead=math.ceil(view.ahead),
        source=view.source,
    )


def _frame(status: AdmissionStatus) -> object:
    """What makes two statuses different at once: all but numbers that move all the time."""
    engines = [
        (engine.name, engine.capacity_blocks, engine.protected_blocks, [item.name for item in engine.classes])
        for engine in status.engines
    ]
    queues = [(item.name, item.waiting > 0) for item in status.classes]
    return status.policy, engines, queues, [router.name for router in status.routers]


def _caps(status: AdmissionStatus) -> list[int]:
    return [item.cap for engine in status.engines for item in engine.classes]


def _moved(after: int, before: int) -> bool:
    return abs(after - before) >= max(1.0, CAP_CHANGE * before)
