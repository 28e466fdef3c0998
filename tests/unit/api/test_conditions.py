"""The transition time of a condition moves only when its status flips."""

import pytest

from rolloutpool_api.conditions import Condition, ConditionStatus, ConditionType, with_transition_times

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def condition(status: str, reason: str = "R", time: str = "") -> Condition:
    return Condition(
        type=ConditionType.READY, status=ConditionStatus(status), reason=reason, last_transition_time=time
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param((), condition("True"), NOW, id="first time"),
        pytest.param(
            (condition("True", time=THEN),), condition("True"), THEN, id="same status keeps its time"
        ),
        pytest.param(
            (condition("True", "A", THEN),),
            condition("True", "B"),
            THEN,
            id="another reason is no transition",
        ),
        pytest.param((condition("False", time=THEN),), condition("True"), NOW, id="flip"),
        pytest.param((condition("True"),), condition("True"), NOW, id="old one without a time"),
    ],
)
def test_transition_time(old: tuple[Condition, ...], new: Condition, expected: str) -> None:
    (stamped,) = with_transition_times((new,), old, now=NOW)
    assert stamped.last_transition_time == expected


def test_a_condition_that_no_longer_applies_is_dropped() -> None:
    assert with_transition_times((), (condition("True", time=THEN),), now=NOW) == ()
