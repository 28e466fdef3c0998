"""Parked sessions: they give permit and blocks back in a long tool gap, and enter again before new ones."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutpool_router.core import controller as controller_module
from rolloutpool_router.core import sessions as sessions_module
from rolloutpool_router.core.admission import EntryReason
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.requests import Entered, Queued
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.testing import pool_object
from rolloutpool_testkit.admission import ONE, apply, arrive, controller_of, enter, get_ahead, names

BOUND = 10
ADMISSION: dict[str, Any] = {
    "parkIdleSeconds": BOUND,
    "lending": False,
    "mixtureDebt": False,
    "starvationSeconds": 86_400,
}
"""Caps bind, whoever waits: a queue is easy to have."""


def pool(*, caps: int = 1, admission: dict[str, Any] | None = None, **overload: Any) -> dict[str, Any]:
    """One engine, where agentic sessions have tool gaps of up to 300 s."""
    workloads = [
        {"name": "rlvr", "share": 0.5, "overload": overload},
        {"name": "agentic", "share": 0.5, "overload": overload, "sessionIdleSeconds": 300},
    ]
    return pool_object(
        ONE,
        caps=dict.fromkeys(("rlvr", "agentic"), caps),
        workloads=workloads,
        admission=ADMISSION | (admission or {}),
    )


def idle(controller: AdmissionController, session: str = "s", *, since: float = 0.0) -> None:
    """A session that had one turn and waits for its tool."""
    enter(controller, session, "agentic", now=since, prompt_tokens=1600)
    controller.end_turn(session, now=since, ok=True, usage=Usage(1600, 160))


def with_parked(**options: Any) -> AdmissionController:
    """`s` was parked at 10 s so that `new`, which came at 5 s, could enter."""
    controller = controller_of(pool(**options))
    idle(controller)
    assert isinstance(arrive(controller, "new", "agentic", now=5.0), Queued)
    assert names(controller.tick(10).entered) == ["new"]
    assert controller.table.parked("s") is not None
    return controller


def free(controller: AdmissionController, session: str, *, now: float) -> list[Entered]:
    """Its answer ends, and the session with it; who enters then."""
    controller.end_turn(session, now=now, ok=True)
    controller.finish(session, now)
    return controller.admit_waiting(now)


class TestWhenASessionIsParked:
    @pytest.mark.parametrize(
        ("admission", "now", "parked"),
        [
            pytest.param({}, BOUND, True, id="idle-for-as-long-as-may-be"),
            pytest.param({}, BOUND - 1, False, id="not-yet"),
            pytest.param({"parking": False}, 200, False, id="switched-off"),
            pytest.param({"parkIdleSeconds": 250}, 200, False, id="a-longer-bound"),
            pytest.param({"parkIdleSeconds": None}, 200, False, id="nobody-knows-the-bound"),
        ],
    )
    def test_while_others_wait(self, admission: dict[str, Any], now: float, parked: bool) -> None:
        controller = controller_of(pool(admission=admission))
        idle(controller)
        arrive(controller, "new", "agentic", now=0.0)
        controller.tick(now)

        assert (controller.table.parked("s") is not None) == parked
        assert controller.table.by_class == {"agentic": 1}

    def test_not_while_nobody_waits(self) -> None:
        controller = controller_of(pool())
        idle(controller)
        controller.tick(200)
        assert controller.table.get("s") is not None

    def test_not_in_a_turn(self) -> None:
        controller = controller_of(pool())
        enter(controller, "busy", "agentic")
        arrive(controller, "new", "agentic")
        controller.tick(200)
        assert controller.table.get("busy") is not None

    def test_as_the_operator_computes_it(self) -> None:
        body = pool(admission={"parkIdleSeconds": None})
        body["status"]["admission"]["parkIdleSeconds"] = 30
        controller = controller_of(body)
        idle(controller)
        arrive(controller, "new", "agentic")
        assert not controller.tick(29).entered
        assert names(controller.tick(30).entered) == ["new"]


def test_it_gives_its_permit_and_its_blocks_back() -> None:
    controller = controller_of(pool())
    idle(controller)
    held = controller.ledger.engine("e0").held
    arrive(controller, "new", "rlvr")
    arrive(controller, "waits", "rlvr")
    controller.end_turn("new", now=10, ok=True)
    controller.finish("new", 10)
    controller.tick(10)

    assert held == 110
    assert controller.table.tally("e0").keys() == {"rlvr"}
    assert controller.ledger.engine("e0").held < held
    assert controller.classes["agentic"].counters.parked == 1


class TestItsNextTurn:
    def test_it_enters_at_once_where_there_is_room(self) -> None:
        controller = with_parked()
        free(controller, "new", now=20)

        answer = enter(controller, "s", "agentic", now=30.0, prompt_tokens=1800)
        assert not answer.adopted
        assert controller.table.parked("s") is None
        assert controller.table.parked_by_class == {}

    def test_it_waits_ahead_of_new_sessions_of_its_class(self) -> None:
        controller = with_parked()
        arrive(controller, "newer", "agentic", now=15.0)
        assert isinstance(arrive(controller, "s", "agentic", now=20.0), Queued)

        assert names(free(controller, "new", now=30)) == ["s"]
        controller.end_turn("s", now=31, ok=True)
        assert names(controller.tick(41).entered) == ["newer"], "it may be parked again"

    def test_all_its_requests_enter_with_it(self) -> None:
        controller = with_parked()
        for _ in range(3):
            arrive(controller, "s", "agentic", now=20.0)
        free(controller, "new", now=30)

        resident = controller.table.get("s")
        assert resident is not None
        assert resident.in_flight == 3

    def test_it_is_not_rejected_although_new_sessions_are(self) -> None:
        controller = controller_of(pool(caps=1))
        idle(controller)
        arrive(controller, "new", "agentic", now=5.0)
        controller.tick(10)
        rejecting = pool(answer="Reject")
        rejecting["metadata"]["generation"] = 2
        apply(controller, rejecting)

        assert isinstance(arrive(controller, "newer", "agentic", now=20.0), Refusal)
        assert isinstance(arrive(controller, "s", "agentic", now=20.0), Queued)

    def test_nor_is_it_adopted(self) -> None:
        controller = with_parked()
        assert isinstance(arrive(controller, "s", "agentic", now=20.0, has_history=True), Queued)

    def test_with_enforcement_hard_it_is_not_held(self) -> None:
        """The mixture has counted it already, however far ahead its class is."""
        controller = controller_of(pool(caps=9, admission={"mixtureDebt": True}))
        idle(controller)
        enter(controller, "other", "rlvr")
        get_ahead(controller, "agentic", 100)
        assert isinstance(arrive(controller, "new", "agentic", now=5.0), Queued)
        assert not controller.tick(10).entered
        answer = enter(controller, "s", "agentic", now=20.0)

        assert answer.reason is EntryReason.ROOM
        assert not controller.tick(21).entered

    def test_what_its_engine_has_evicted_is_no_pressure(self) -> None:
        controller = with_parked()
        free(controller, "new", now=20)
        enter(controller, "s", "agentic", now=30.0, prompt_tokens=9000)
        controller.end_turn("s", now=31, ok=True, usage=Usage(9000, 160, cached_tokens=0))
        controller.tick(60)
        assert controller.retention.factor("e0") == 1.0

    def test_the_time_between_does_not_count_as_residency(self) -> None:
        controller = controller_of(pool(admission={"priorWeight": 1e-3}))
        idle(controller)
        arrive(controller, "new", "agentic", now=5.0)
        controller.tick(10)
        free(controller, "new", now=10)
        enter(controller, "s", "agentic", now=210.0)
        free(controller, "s", now=230)
        controller.tick(230)
        # 10 s before it was parked and 20 s after; `new` took no time
        assert controller.ledger.classes["agentic"].cost.residency_seconds == pytest.approx(15, rel=0.1)


class TestItsEnd:
    def test_it_expires_like_any_other_and_was_a_sample(self) -> None:
        controller = with_parked()
        free(controller, "new", now=20)
        controller.tick(299)
        assert controller.table.parked("s") is not None
        controller.tick(300)
        assert len(controller.table) == 0
        assert controller.consumed.counts == {"agentic": 2}

    def test_it_can_be_finished(self) -> None:
        controller = with_parked()
        assert controller.finish("s", 20)
        assert not controller.finish("s", 20)
        assert controller.consumed.counts == {"agentic": 1}
        assert controller.table.parked("s") is None

    def test_finished_while_its_next_turn_waits_it_ends_with_that_turn(self) -> None:
        controller = with_parked()
        arrive(controller, "s", "agentic", now=20.0)
        assert controller.finish("s", 21)
        assert names(free(controller, "new", now=30)) == ["s"]
        controller.end_turn("s", now=31, ok=True)

        assert len(controller.table) == 0
        assert controller.consumed.counts == {"agentic": 2}, "each session once"

    def test_finished_and_then_withdrawn_it_ends_at_once(self) -> None:
        controller = with_parked()
        queued = arrive(controller, "s", "agentic", now=20.0)
        assert isinstance(queued, Queued)
        controller.finish("s", 21)
        controller.cancel(queued, 22)

        assert controller.table.parked("s") is None
        assert controller.consumed.counts == {"agentic": 1}

    def test_a_turn_that_is_withdrawn_leaves_it_parked(self) -> None:
        controller = with_parked()
        queued = arrive(controller, "s", "agentic", now=100.0)
        assert isinstance(queued, Queued)
        controller.cancel(queued, 200)

        controller.tick(499)
        assert controller.table.parked("s") is not None, "its idle time began anew"
        controller.tick(500)
        assert controller.table.parked("s") is None

    def test_while_its_turn_waits_it_does_not_expire(self) -> None:
        controller = with_parked()
        arrive(controller, "s", "agentic", now=20.0)
        controller.tick(2000)
        assert controller.table.parked("s") is not None

    def test_a_turn_that_waited_too_long_is_refused_and_may_come_again(self) -> None:
        controller = with_parked(maxWaitSeconds=30)
        arrive(controller, "s", "agentic", now=20.0)
        ((ticket, refusal),) = controller.tick(50).refused
        assert (ticket.session, refusal.outcome) == ("s", Outcome.WAITED_LONG)
        assert controller.table.parked("s") is not None

        free(controller, "new", now=60)
        assert isinstance(arrive(controller, "s", "agentic", now=61.0), Entered)

    def test_with_its_class_it_goes_even_if_its_turn_waits(self) -> None:
        controller = with_parked()
        arrive(controller, "s", "agentic", now=20.0)
        gone = pool()
        gone["spec"]["workloads"] = [{"name": "rlvr", "share": 1.0}]
        gone["metadata"]["generation"] = 2

        assert apply(controller, gone) == ["s"]
        controller.tick(21)
        assert controller.table.parked("s") is None
        assert not controller.table.parked_by_class


def test_where_the_table_is_full_of_parked_sessions_they_enter_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_module, "MAX_SESSIONS", 2)
    monkeypatch.setattr(sessions_module, "MAX_SESSIONS", 2)
    controller = with_parked()
    controller.end_turn("new", now=11, ok=True)
    assert isinstance(arrive(controller, "third", "agentic", now=12.0), Queued)
    arrive(controller, "s", "agentic", now=12.0)

    assert names(controller.tick(30).entered) == ["s"]
    assert controller.table.parked("new") is not None
    assert not controller.tick(31).entered
    controller.finish("new", 40)
    controller.end_turn("s", now=40, ok=True)
    assert names(controller.tick(50).entered) == ["third"]


def test_other_classes_may_use_what_it_held() -> None:
    """Where the pot is what is short, a session parked by one class makes room for another."""
    controller = controller_of(pool(caps=100))
    idle(controller)
    arrive(controller, "big", "rlvr", now=1.0, prompt_tokens=15_500)
    assert controller.table.by_class["rlvr"] == 0
    assert names(controller.tick(10).entered) == ["big"]
    assert controller.table.parked("s") is not None


def test_one_that_is_refused_again_and_again_does_not_expire_meanwhile() -> None:
    controller = with_parked(maxWaiting=1)
    arrive(controller, "other", "agentic", now=11)
    for now in range(100, 1000, 100):
        answer = arrive(controller, "s", "agentic", now=now)
        assert isinstance(answer, Refusal)
        assert answer.outcome is Outcome.QUEUE_FULL
        controller.tick(now)

    assert controller.table.parked("s") is not None
    controller.tick(900 + 300)
    assert controller.table.parked("s") is None
