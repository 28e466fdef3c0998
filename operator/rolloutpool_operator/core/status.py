"""The status: the structural part (plan, roles, readiness) and the admission part, put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rolloutpool_api.conditions import Condition, ConditionStatus, ConditionType, with_transition_times
from rolloutpool_api.planning import Role
from rolloutpool_api.status import (
    MAX_ENGINES,
    AdmissionStatus,
    ClassAdmission,
    Endpoints,
    EngineEndpoint,
    MixtureStatus,
    PlanStatus,
    RoleStatus,
    RolloutPoolStatus,
    Summary,
)
from rolloutpool_operator.core import reasons
from rolloutpool_operator.core.choosing import PlanChoice
from rolloutpool_operator.core.conditions import (
    Applying,
    condition,
    invalid_conditions,
    planned_engines,
    planned_replicas,
    structural_conditions,
)
from rolloutpool_operator.core.engine_args import engine_revision
from rolloutpool_operator.core.merging import merge_patch
from rolloutpool_operator.core.observed import Observed
from rolloutpool_router.core.caps import UNLIMITED

INFORMATIONAL = (
    ConditionType.ADMISSION_THROTTLED,
    ConditionType.MIXTURE_DRIFTING,
    ConditionType.WEIGHTS_CONSISTENT,
    ConditionType.DEGRADED,
)
"""Conditions of the admission loop; they stay as stored until it has something to say."""
NOTHING = "-"
"""What the printer columns show where there is nothing to count."""


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The part of the status that reconciling decides."""

    generation: int
    phase: str
    conditions: tuple[Condition, ...]
    plan: PlanStatus | None
    roles: tuple[RoleStatus, ...]
    endpoints: Endpoints
    summary: Summary
    """What the printer columns show; drift and classes are the admission loop's."""


@dataclass(frozen=True, kw_only=True)
class AdmissionReport:
    """The part of the status that the admission loop decides."""

    admission: AdmissionStatus | None = None
    base_revision: int = 0
    """Revision of the stored admission that it was computed from: it may replace that one and no other."""
    mixture: MixtureStatus | None = None
    conditions: tuple[Condition, ...] = ()


def structure(observed: Observed, choice: PlanChoice, applying: Applying) -> Structure:
    """The structural status of a pool with a valid spec."""
    conditions = structural_conditions(observed, choice, applying)
    return Structure(
        generation=observed.generation,
        phase=_phase(observed, choice, conditions),
        conditions=conditions,
        plan=choice.plan,
        roles=_roles(observed, choice),
        endpoints=_endpoints(observed),
        summary=_summary(observed, choice),
    )


def invalid_structure(observed: Observed) -> Structure:
    """The structural status of a pool with an invalid spec: what was said of the running pool stays."""
    stored = observed.status
    return Structure(
        generation=observed.generation,
        phase="Failed",
        conditions=invalid_conditions(observed),
        plan=stored.plan,
        roles=tuple(stored.roles),
        endpoints=stored.endpoints,
        summary=stored.summary,
    )


def planning_structure(observed: Observed) -> Structure:
    """The structural status while the first plan is being made."""
    message = "the first plan is being made"
    choice = PlanChoice(plan=None, ready=False, reason=reasons.PLANNING, message=message)
    return structure(observed, choice, Applying())


def compose(
    part: Structure, report: AdmissionReport, *, stored: RolloutPoolStatus, now: str
) -> RolloutPoolStatus:
    """The whole status. Admission stays as stored unless the report's was computed from that and is newer."""
    known = _revision(stored.admission)
    fresh = _revision(report.admission) > known == report.base_revision
    admission = report.admission if fresh else stored.admission
    mixture = report.mixture if fresh else stored.mixture
    informing = _informing(part, report, stored)
    unserved = next(
        (item for item in informing if item.reason == reasons.NO_ENGINE_HAS_CURRENT_WEIGHTS), None
    )
    conditions = (*_with_weights(part.conditions, unserved), *informing)
    return RolloutPoolStatus(
        observed_generation=part.generation,
        phase="Degraded" if unserved is not None and part.phase == "Ready" else part.phase,
        conditions=list(with_transition_times(conditions, stored.conditions, now=now)),
        plan=part.plan,
        roles=list(part.roles),
        admission=admission,
        mixture=mixture,
        endpoints=part.endpoints,
        summary=part.summary.model_copy(update=_admission_summary(admission, mixture)),
    )


def status_patch(stored: RolloutPoolStatus, new: RolloutPoolStatus) -> dict[str, Any]:
    """Merge patch of the status, empty if nothing changed."""
    return merge_patch(stored.to_wire(), new.to_wire())


def _informing(part: Structure, report: AdmissionReport, stored: RolloutPoolStatus) -> tuple[Condition, ...]:
    """What the admission loop says, and what it said before of what it is silent about.

    Of weights nothing is said where they are not synchronised any more.
    """
    told = {item.type for item in report.conditions}
    kept = (item for item in stored.conditions if item.type in INFORMATIONAL and item.type not in told)
    synchronised = bool(part.endpoints.weights)
    return tuple(
        item
        for item in (*report.conditions, *kept)
        if synchronised or item.type is not ConditionType.WEIGHTS_CONSISTENT
    )


def _with_weights(conditions: Iterable[Condition], unserved: Condition | None) -> tuple[Condition, ...]:
    """The structural conditions; a pool whose engines may all not be sent requests is not Ready."""
    return tuple(
        condition(
            ConditionType.READY,
            False,
            unserved.reason,
            f"{unserved.type}: {unserved.message}",
            item.observed_generation,
        )
        if unserved is not None and item.type is ConditionType.READY and item.status is ConditionStatus.TRUE
        else item
        for item in conditions
    )


def _revision(admission: AdmissionStatus | None) -> int:
    return admission.revision if admission else 0


def _roles(observed: Observed, choice: PlanChoice) -> tuple[RoleStatus, ...]:
    if observed.pool is None:
        return ()
    revision = engine_revision(observed.pool.spec)
    found = []
    for role in (Role.AGGREGATED, Role.PREFILL, Role.DECODE):
        replicas = planned_replicas(choice, [role])
        engines = planned_engines(observed, choice, [role])
        if replicas:
            found.append(
                RoleStatus(
                    name=role,
                    replicas=replicas,
                    ready_replicas=sum(engine.ready for engine in engines),
                    updated_replicas=sum(engine.revision == revision for engine in engines),
                    revision=revision,
                )
            )
    return tuple(found)


def _endpoints(observed: Observed) -> Endpoints:
    """Every engine that exists or is to come, ready or not, so that its address does not come and go."""
    admin = [
        EngineEndpoint(
            name=engine.name,
            role=engine.role,
            url=engine.url,
            ready=engine.ready,
            draining=engine.draining or None,
            revision=engine.revision,
            kv_events_port=engine.kv_ports[0] if engine.kv_ports else None,
            kv_replay_port=engine.kv_ports[1] if engine.kv_ports else None,
        )
        for engine in observed.engines[:MAX_ENGINES]
    ]
    return Endpoints(router=observed.router_url, weights=observed.weights_url, admin=admin)


def _summary(observed: Observed, choice: PlanChoice) -> Summary:
    return Summary(
        prefill=_count(observed, choice, [Role.PREFILL]),
        decode=_count(observed, choice, [Role.DECODE, Role.AGGREGATED]),
        gpus=f"{choice.plan.gpus_used}/{choice.plan.gpu_budget}" if choice.plan else NOTHING,
    )


def _admission_summary(admission: AdmissionStatus | None, mixture: MixtureStatus | None) -> dict[str, Any]:
    drift = f"{mixture.drift_percentage_points:.1f}pp" if mixture and mixture.window else NOTHING
    if admission is None or mixture is None:
        return {"drift": drift, "classes": []}
    consumed = {item.name: item.percent for item in mixture.consumed}
    target = {item.name: item.percent for item in mixture.target}
    lines = [
        f"{item.name}: {_residents(item)} sessions in{_parked(item)}, {_waiting(item)};"
        f" {consumed.get(item.name, 0):g} % of the samples, share {target.get(item.name, 0):g} %"
        for item in admission.classes
    ]
    return {"drift": drift, "classes": lines}


def _residents(item: ClassAdmission) -> str:
    return f"{item.active}" if item.cap >= UNLIMITED else f"{item.active} of {item.cap}"


def _waiting(item: ClassAdmission) -> str:
    """Who waits to enter and why, then who is in and waits all the same."""
    why = ", held for the mixture" if item.waiting and item.ahead else ""
    held = f", {item.held} requests held" if item.held else ""
    return f"{item.waiting} waiting (longest {item.oldest_wait_seconds} s{why}){held}"


def _parked(item: ClassAdmission) -> str:
    return f", {item.parked} parked" if item.parked else ""


def _count(observed: Observed, choice: PlanChoice, roles: Iterable[Role]) -> str:
    wanted = tuple(roles)
    replicas = planned_replicas(choice, wanted)
    serving = sum(engine.ready for engine in planned_engines(observed, choice, wanted))
    return f"{serving}/{replicas}" if replicas else NOTHING


def _phase(observed: Observed, choice: PlanChoice, conditions: tuple[Condition, ...]) -> str:
    """One word for people; programs read conditions. Degraded: was ready, and serves still."""
    ready = next(item for item in conditions if item.type is ConditionType.READY)
    if observed.pool and observed.pool.spec.paused:
        return "Paused"
    if ready.status is ConditionStatus.TRUE:
        return "Ready"
    if choice.plan is None:
        return "Planning" if choice.reason == reasons.PLANNING else "Failed"
    was_ready = observed.status.phase in ("Ready", "Degraded")
    return "Degraded" if was_ready and _serves(observed, choice.plan) else "Progressing"


def _serves(observed: Observed, plan: PlanStatus) -> bool:
    """Whether a router and an engine of every role of the plan are ready."""
    roles = {engine.role for engine in observed.engines if engine.ready}
    return all(group.role in roles for group in plan.groups) and any(item.ready for item in observed.routers)
