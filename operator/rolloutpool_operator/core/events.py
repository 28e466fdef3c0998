"""Events: told once when something changes, in the words of the condition or action that changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rolloutpool_api.conditions import Condition, ConditionStatus, ConditionType
from rolloutpool_api.status import RolloutPoolStatus
from rolloutpool_operator.core import reasons
from rolloutpool_operator.core.children import Action, ApplyChild, Reason

CAPS_CHANGE = 0.25
"""Relative change of a class's cap, since it was last told, that is worth an Event."""
QUIET_REASONS = (reasons.STARTING, reasons.POD_MISSING, reasons.ROUTER_MISSING)
"""Reasons of an unready part that are part of any start."""
STUCK_REASONS = (reasons.INSUFFICIENT_GPUS, reasons.UNSCHEDULABLE, reasons.APPLY_FAILED)
"""Reasons why a plan does not come about that somebody must do something about."""


@dataclass(frozen=True)
class PoolEvent:
    """One Event on the pool."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def status_events(old: RolloutPoolStatus, new: RolloutPoolStatus) -> tuple[PoolEvent, ...]:
    """Events for what changed between two statuses."""
    before = {item.type: item for item in old.conditions}
    events = list(_plan_events(old, new))
    for item in new.conditions:
        last = before.get(item.type)
        if last is None or (last.status, last.reason) != (item.status, item.reason):
            events += _condition_events(item)
    return tuple(events)


def action_events(actions: Iterable[Action]) -> tuple[PoolEvent, ...]:
    """Events for actions that were taken."""
    return tuple(event for action in actions if (event := _action_event(action)))


def caps_event(announced: Mapping[str, int], caps: Mapping[str, int]) -> PoolEvent | None:
    """An Event where a class's cap moved far since it was last told."""
    moved = [
        f"{name} {announced.get(name, 0)} -> {cap}"
        for name, cap in caps.items()
        if abs(cap - announced.get(name, 0)) > CAPS_CHANGE * max(announced.get(name, 0), 1)
    ]
    return PoolEvent("Normal", reasons.CAPS_CHANGED, "caps: " + ", ".join(moved)) if moved else None


def _plan_events(old: RolloutPoolStatus, new: RolloutPoolStatus) -> Iterator[PoolEvent]:
    if new.plan and (old.plan is None or old.plan.hash != new.plan.hash):
        message = next((item.message for item in new.conditions if item.type is ConditionType.PLAN_READY), "")
        yield PoolEvent("Normal", reasons.PLANNED, message)


def _condition_events(item: Condition) -> Iterator[PoolEvent]:
    holds = item.status is ConditionStatus.TRUE
    match item.type:
        case ConditionType.READY if holds:
            yield PoolEvent("Normal", reasons.READY, item.message)
        case ConditionType.SPEC_VALID if not holds:
            yield PoolEvent("Warning", item.reason, item.message)
        case ConditionType.PLAN_READY if not holds and item.reason != reasons.PLANNING:
            told = reasons.PLAN_INFEASIBLE if item.reason == reasons.INFEASIBLE else item.reason
            yield PoolEvent("Warning", told, item.message)
        case ConditionType.PLAN_APPLIED if item.reason in STUCK_REASONS:
            yield PoolEvent("Warning", item.reason, item.message)
        case ConditionType.PLAN_APPLIED if item.reason in (reasons.HELD_BY_HYSTERESIS, reasons.PAUSED):
            yield PoolEvent("Normal", item.reason, item.message)
        case ConditionType.PREFILL_READY | ConditionType.DECODE_READY | ConditionType.ROUTER_READY:
            if not holds and item.reason not in QUIET_REASONS:
                yield PoolEvent("Warning", item.reason, item.message)
        case ConditionType.MIXTURE_DRIFTING if holds:
            yield PoolEvent("Warning", reasons.MIXTURE_DRIFT, item.message)
        case ConditionType.WEIGHTS_CONSISTENT if not holds:
            yield PoolEvent("Warning", item.reason, item.message)
        case ConditionType.DEGRADED if holds:
            yield PoolEvent("Warning", item.reason, item.message)


def _action_event(action: Action) -> PoolEvent | None:
    if not isinstance(action, ApplyChild):
        if action.reason is Reason.RECREATE:
            message = (
                f"{action.kind} {action.name} is deleted and made anew: a field that cannot change changed"
            )
            return PoolEvent("Normal", reasons.CHILD_RECREATED, message)
        if action.kind == "StatefulSet":
            return PoolEvent("Normal", reasons.SCALED, f"{action.name} to 0: the plan has no use for it")
        return None
    child = action.child
    if action.reason is Reason.RESTORE:
        return PoolEvent(
            "Warning", reasons.CHILD_RESTORED, f"{child.kind} {child.name} was deleted or edited"
        )
    if child.kind != "StatefulSet":
        return None
    before = ((action.before or {}).get("spec") or {}).get("replicas", 0)
    after = child.body["spec"]["replicas"]
    return (
        None
        if before == after
        else PoolEvent("Normal", reasons.SCALED, f"{child.name} from {before} to {after}")
    )
