"""Events: on transitions only."""

from typing import Any

import pytest

from rolloutpool_api.conditions import Condition, ConditionStatus, ConditionType
from rolloutpool_api.status import PlanStatus, RolloutPoolStatus
from rolloutpool_operator.core.children import Action, ApplyChild, Child, DeleteChild, Reason
from rolloutpool_operator.core.events import PoolEvent, action_events, caps_event, status_events


def item(kind: ConditionType, holds: bool, reason: str = "Because") -> Condition:
    status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
    return Condition(type=kind, status=status, reason=reason, message="words")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param([], [item(ConditionType.READY, True)], [("Normal", "Ready")], id="ready"),
        pytest.param(
            [item(ConditionType.READY, True)], [item(ConditionType.READY, True)], [], id="still ready"
        ),
        pytest.param([], [item(ConditionType.READY, False)], [], id="not ready is told by its parts"),
        pytest.param(
            [item(ConditionType.DECODE_READY, True)],
            [item(ConditionType.DECODE_READY, False, "ImagePullBackOff")],
            [("Warning", "ImagePullBackOff")],
            id="an engine fails",
        ),
        pytest.param(
            [], [item(ConditionType.DECODE_READY, False, "Starting")], [], id="a start is no failure"
        ),
        pytest.param(
            [],
            [item(ConditionType.PLAN_READY, False, "Infeasible")],
            [("Warning", "PlanInfeasible")],
            id="infeasible",
        ),
        pytest.param([], [item(ConditionType.PLAN_READY, False, "Planning")], [], id="planning"),
        pytest.param(
            [],
            [item(ConditionType.SPEC_VALID, False, "InvalidSpec")],
            [("Warning", "InvalidSpec")],
            id="invalid",
        ),
        pytest.param(
            [item(ConditionType.PLAN_APPLIED, False, "Progressing")],
            [item(ConditionType.PLAN_APPLIED, False, "InsufficientGPUs")],
            [("Warning", "InsufficientGPUs")],
            id="another reason is news",
        ),
        pytest.param(
            [],
            [item(ConditionType.PLAN_APPLIED, True, "HeldByHysteresis")],
            [("Normal", "HeldByHysteresis")],
            id="held",
        ),
        pytest.param(
            [], [item(ConditionType.MIXTURE_DRIFTING, True)], [("Warning", "MixtureDrift")], id="drift"
        ),
        pytest.param(
            [], [item(ConditionType.DEGRADED, True, "StaleCaps")], [("Warning", "StaleCaps")], id="degraded"
        ),
    ],
)
def test_status_events(old: list[Condition], new: list[Condition], expected: list[tuple[str, str]]) -> None:
    found = status_events(RolloutPoolStatus(conditions=old), RolloutPoolStatus(conditions=new))
    assert [(event.type, event.reason) for event in found] == expected


def plan(name: str) -> PlanStatus:
    return PlanStatus.model_validate(
        {
            "hash": name,
            "solver": "CBC",
            "solverStatus": "Optimal",
            "objective": "",
            "gpusUsed": 1,
            "gpuBudget": 1,
            "bindingConstraint": "",
            "computedAt": "t",
        }
    )


def test_a_new_plan_is_told_in_the_conditions_words() -> None:
    new = RolloutPoolStatus(plan=plan("b"), conditions=[item(ConditionType.PLAN_READY, True)])
    assert status_events(RolloutPoolStatus(plan=plan("a")), new) == (PoolEvent("Normal", "Planned", "words"),)
    assert status_events(new, new) == ()


def apply(kind: str, reason: Reason, replicas: int = 2, before: dict[str, Any] | None = None) -> ApplyChild:
    child = Child(kind=kind, name="x", body={"spec": {"replicas": replicas}})
    return ApplyChild(child=child, reason=reason, before=before)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        pytest.param(apply("StatefulSet", Reason.CREATE), "x from 0 to 2", id="new set"),
        pytest.param(
            apply("StatefulSet", Reason.CHANGE, 3, {"spec": {"replicas": 2}}), "x from 2 to 3", id="scaled"
        ),
        pytest.param(
            apply("StatefulSet", Reason.CHANGE, 2, {"spec": {"replicas": 2}}), None, id="changed otherwise"
        ),
        pytest.param(apply("Service", Reason.CREATE), None, id="new service"),
        pytest.param(apply("Service", Reason.RESTORE), "Service x was deleted or edited", id="restored"),
        pytest.param(
            DeleteChild(kind="StatefulSet", name="x", uid="", reason=Reason.OBSOLETE),
            "x to 0: the plan",
            id="obsolete",
        ),
        pytest.param(
            DeleteChild(kind="Service", name="x", uid="", reason=Reason.OBSOLETE), None, id="obsolete service"
        ),
        pytest.param(
            DeleteChild(kind="Service", name="x", uid="", reason=Reason.RECREATE), "made anew", id="made anew"
        ),
    ],
)
def test_action_events(action: Action, expected: str | None) -> None:
    found = action_events([action])
    assert [expected in event.message for event in found if expected] == ([True] if expected else [])


@pytest.mark.parametrize(
    ("announced", "caps", "expected"),
    [
        pytest.param({}, {"a": 4}, "caps: a 0 -> 4", id="first"),
        pytest.param({"a": 100}, {"a": 120}, None, id="small change"),
        pytest.param({"a": 100, "b": 10}, {"a": 126, "b": 10}, "caps: a 100 -> 126", id="large change"),
        pytest.param({"a": 1}, {"a": 1}, None, id="same"),
    ],
)
def test_caps_event(announced: dict[str, int], caps: dict[str, int], expected: str | None) -> None:
    found = caps_event(announced, caps)
    assert (found.message if found else None) == expected
