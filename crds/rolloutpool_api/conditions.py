"""Conditions: their types, and the rule that the transition time moves only when the status flips."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rolloutpool_api.base import StatusModel


class ConditionType(StrEnum):
    """What a condition speaks of."""

    READY = "Ready"
    SPEC_VALID = "SpecValid"
    PLAN_READY = "PlanReady"
    PLAN_APPLIED = "PlanApplied"
    PREFILL_READY = "PrefillReady"
    DECODE_READY = "DecodeReady"
    ROUTER_READY = "RouterReady"
    ADMISSION_THROTTLED = "AdmissionThrottled"
    MIXTURE_DRIFTING = "MixtureDrifting"
    SLO_VIOLATED = "SLOViolated"
    WEIGHTS_CONSISTENT = "WeightsConsistent"
    DEGRADED = "Degraded"


READY_PARTS = (
    ConditionType.SPEC_VALID,
    ConditionType.PLAN_READY,
    ConditionType.PLAN_APPLIED,
    ConditionType.PREFILL_READY,
    ConditionType.DECODE_READY,
    ConditionType.ROUTER_READY,
)
"""Conditions that Ready sums up; those that do not apply are absent."""


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(StatusModel):
    """One thing that is or is not true of the pool (the Kubernetes API convention)."""

    type: ConditionType
    """What it speaks of."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=128)]
    """One word for programs."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """A sentence for people; names the number."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """Generation of the spec that it speaks of."""
    last_transition_time: str = ""
    """When the status last flipped, as RFC 3339."""


def with_transition_times(
    new: Iterable[Condition], old: Iterable[Condition], *, now: str
) -> tuple[Condition, ...]:
    """Give each new condition its transition time: the old one's while the status is the same, else `now`.

    Conditions that are in `old` alone no longer apply and are dropped.

    Args:
        new: conditions as decided now, without times.
        old: conditions of the stored status.
        now: the present as RFC 3339.
    """
    before = {condition.type: condition for condition in old}

    def stamp(condition: Condition) -> Condition:
        last = before.get(condition.type)
        same = last is not None and last.status == condition.status and last.last_transition_time
        time = last.last_transition_time if same and last else now
        return condition.model_copy(update={"last_transition_time": time})

    return tuple(stamp(condition) for condition in new)
