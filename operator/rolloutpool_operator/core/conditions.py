"""Facts to conditions: what is true of the pool, why, and the number that says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rolloutpool_api.conditions import READY_PARTS, Condition, ConditionStatus, ConditionType
from rolloutpool_api.planning import Role
from rolloutpool_operator.core import reasons
from rolloutpool_operator.core.children import Action, ApplyChild
from rolloutpool_operator.core.choosing import PlanChoice
from rolloutpool_operator.core.engine_args import engine_revision
from rolloutpool_operator.core.groups import name_of
from rolloutpool_operator.core.observed import EngineFacts, Observed, RouterFacts

MESSAGE_LIMIT = 1024
"""Longest message that the API accepts, in characters."""


@dataclass(frozen=True, kw_only=True)
class Applying:
    """What became of the actions."""

    withheld: tuple[Action, ...] = ()
    """Actions that were not taken because the pool is paused or plans only."""
    failures: tuple[str, ...] = ()
    """What the platform refused, in words."""


def condition(
    kind: ConditionType, holds: bool | None, reason: str, message: str, generation: int
) -> Condition:
    """A condition; `holds` None means unknown. Its transition time is stamped when it is written."""
    status = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}[holds]
    text = message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"
    return Condition(type=kind, status=status, reason=reason, message=text, observed_generation=generation)


def structural_conditions(
    observed: Observed, choice: PlanChoice, applying: Applying
) -> tuple[Condition, ...]:
    """SpecValid, PlanReady, PlanApplied, PrefillReady, DecodeReady, RouterReady and Ready, those that apply.

    DecodeReady also speaks of aggregated engines: they are the ones that decode.
    """
    generation = observed.generation
    parts = [
        condition(ConditionType.SPEC_VALID, True, reasons.VALID, "the spec is valid", generation),
        condition(ConditionType.PLAN_READY, choice.ready, choice.reason, choice.message, generation),
    ]
    if choice.plan:
        parts.append(_plan_applied(observed, choice, applying))
        roles = {group.role for group in choice.plan.groups}
        if Role.PREFILL in roles:
            parts.append(_engines_ready(observed, choice, ConditionType.PREFILL_READY, {Role.PREFILL}))
        if roles - {Role.PREFILL}:
            decoding = {Role.DECODE, Role.AGGREGATED}
            parts.append(_engines_ready(observed, choice, ConditionType.DECODE_READY, decoding))
    parts.append(_router_ready(observed))
    return (ready(parts, generation), *parts)


def invalid_conditions(observed: Observed) -> tuple[Condition, ...]:
    """The conditions of a pool whose spec cannot be read: what it runs goes on untouched."""
    part = condition(
        ConditionType.SPEC_VALID, False, reasons.INVALID_SPEC, observed.invalid, observed.generation
    )
    return (ready([part], observed.generation), part)


def ready(parts: Iterable[Condition], generation: int) -> Condition:
    """Ready: true where every part is; else it repeats reason and message of the first that is not."""
    found = {part.type: part for part in parts}
    for kind in READY_PARTS:
        part = found.get(kind)
        if part and part.status is not ConditionStatus.TRUE:
            holds = None if part.status is ConditionStatus.UNKNOWN else False
            return condition(
                ConditionType.READY, holds, part.reason, f"{part.type}: {part.message}", generation
            )
    return condition(ConditionType.READY, True, reasons.READY, "the pool serves as planned", generation)


def planned_engines(observed: Observed, choice: PlanChoice, roles: Iterable[Role]) -> tuple[EngineFacts, ...]:
    """Engines of some roles that belong to the plan's groups."""
    groups = {
        name_of(group) for group in (choice.plan.groups if choice.plan else ()) if group.role in set(roles)
    }
    return tuple(engine for engine in observed.engines if engine.group in groups)


def planned_replicas(choice: PlanChoice, roles: Iterable[Role]) -> int:
    """Replicas that the plan asks for in some roles."""
    wanted = set(roles)
    return sum(
        group.replicas for group in (choice.plan.groups if choice.plan else ()) if group.role in wanted
    )


def _plan_applied(observed: Observed, choice: PlanChoice, applying: Applying) -> Condition:
    holds, reason, message = _plan_applied_facts(observed, choice, applying)
    return condition(ConditionType.PLAN_APPLIED, holds, reason, message, observed.generation)


def _plan_applied_facts(observed: Observed, choice: PlanChoice, applying: Applying) -> tuple[bool, str, str]:
    pool = observed.pool
    if applying.failures:
        return False, reasons.APPLY_FAILED, "; ".join(applying.failures)
    if applying.withheld:
        paused = pool is not None and pool.spec.paused
        reason = reasons.PAUSED if paused else reasons.AUTO_APPLY_OFF
        switch = "spec.paused is true" if paused else "spec.planning.autoApply is false"
        return False, reason, f"{switch}: {len(applying.withheld)} changes wait ({_named(applying.withheld)})"
    engines = planned_engines(observed, choice, Role)
    replicas = planned_replicas(choice, Role)
    stuck = [engine for engine in engines if engine.reason == reasons.UNSCHEDULABLE]
    if stuck:
        message = (
            f"{len(stuck)} of {replicas} engines cannot be scheduled; {stuck[0].name}: {stuck[0].message}"
        )
        short = pool is not None and f"Insufficient {pool.spec.gpus.resource_name}" in stuck[0].message
        return False, reasons.INSUFFICIENT_GPUS if short else reasons.UNSCHEDULABLE, message
    revision = engine_revision(pool.spec) if pool else ""
    updated = sum(engine.revision == revision for engine in engines)
    if updated < replicas:
        return False, reasons.PROGRESSING, f"{updated} of {replicas} engines are as planned"
    if choice.held:
        return True, reasons.HELD_BY_HYSTERESIS, choice.held
    return True, reasons.APPLIED, f"all {replicas} engines are as planned"


def _engines_ready(
    observed: Observed, choice: PlanChoice, kind: ConditionType, roles: set[Role]
) -> Condition:
    engines = planned_engines(observed, choice, roles)
    replicas = planned_replicas(choice, roles)
    serving = sum(engine.ready for engine in engines)
    text = f"{serving} of {replicas} engines serve"
    if serving >= replicas:
        return condition(kind, True, reasons.ALL_READY, text, observed.generation)
    reason, why = _worst([engine for engine in engines if not engine.ready])
    return condition(kind, False, reason, f"{text}{why}", observed.generation)


def _router_ready(observed: Observed) -> Condition:
    pool = observed.pool
    replicas = pool.spec.router.replicas if pool else 1
    serving = sum(router.ready for router in observed.routers)
    text = f"{serving} of {replicas} routers serve"
    if serving >= replicas:
        holds, reason, why = True, reasons.ALL_READY, ""
    elif all(router.reason == reasons.TERMINATING for router in observed.routers):
        holds, reason, why = False, reasons.ROUTER_MISSING, ""
    else:
        holds = False
        reason, why = _worst([router for router in observed.routers if not router.ready])
    return condition(ConditionType.ROUTER_READY, holds, reason, f"{text}{why}", observed.generation)


def _worst(pods: Sequence[EngineFacts] | Sequence[RouterFacts]) -> tuple[str, str]:
    """Reason and words for the first pod that has trouble to tell of; pods that just start have none."""
    troubled = [
        pod for pod in pods if pod.reason and pod.reason not in (reasons.POD_MISSING, reasons.TERMINATING)
    ]
    if not troubled:
        return reasons.STARTING, ""
    first = troubled[0]
    word = "".join(character for character in first.reason if character.isalnum())
    message = f": {first.message}" if first.message else ""
    return word or reasons.STARTING, f"; {first.name}: {first.reason}{message}"


def _named(actions: Sequence[Action]) -> str:
    names = [
        f"apply {action.child.kind} {action.child.name}"
        if isinstance(action, ApplyChild)
        else f"delete {action.kind} {action.name}"
        for action in actions[:3]
    ]
    return ", ".join(names) + (", …" if len(actions) > 3 else "")
