"""A tick that may do only so much at once does the same as one without a bound, a little later."""

from __future__ import annotations

import pytest

from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.ledger import LOOK_TICKS
from rolloutpool_router.core.requests import Queued
from rolloutpool_testkit.admission import CLASSES, ENGINES, STRICT, arrive, controller_of, enter

SESSIONS = 12


def idle_sessions() -> AdmissionController:
    """Sessions with one turn behind them, as many of their class as may be in."""
    caps = dict.fromkeys(CLASSES, SESSIONS // len(ENGINES))
    controller = controller_of(caps=caps, blocks=10_000, admission={**STRICT, "parkIdleSeconds": 60})
    for number in range(SESSIONS):
        enter(controller, f"s{number}", "agentic")
        controller.end_turn(f"s{number}", now=0, ok=True)
    return controller


@pytest.mark.parametrize("most", [1, 2, 100])
def test_residents_are_looked_at_a_few_at_a_time(most: int) -> None:
    controller, at_once = idle_sessions(), idle_sessions()
    at_once.tick(10)
    controller.tick(10, most=most)
    rounds = 2
    while controller.go_on(10, most=most):
        rounds += 1

    def seen(one: AdmissionController) -> list[str]:
        return [session.id for session in one.table if session.seen_at == 10]

    assert len(seen(controller)) == SESSIONS // LOOK_TICKS
    assert seen(controller) == seen(at_once)
    assert rounds == max(2, -(-len(seen(controller)) // most))


def test_who_left_meanwhile_is_not_looked_at() -> None:
    controller = idle_sessions()
    controller.tick(10, most=0)
    for number in range(SESSIONS):
        controller.finish(f"s{number}", 10)

    assert not controller.go_on(11, most=SESSIONS)
    assert not any(books.held for books in controller.ledger.engines.values())


def test_idle_sessions_end_a_few_at_a_time_but_all_of_them() -> None:
    controller = idle_sessions()
    controller.tick(1e6, most=5)
    left = [len(controller.table)]
    while controller.go_on(1e6, most=5):
        left.append(len(controller.table))

    assert left == [7, 2]
    assert len(controller.table) == 0


def test_who_waits_enters_when_the_rest_of_a_tick_made_room() -> None:
    controller = idle_sessions()
    assert isinstance(arrive(controller, "next", "agentic", now=1e6), Queued)

    assert controller.tick(1e6, most=0).entered == []
    controller.go_on(1e6, most=SESSIONS)
    assert [entry.session for entry in controller.admit_waiting(1e6)] == ["next"]


def test_sessions_are_parked_a_few_at_a_time_but_all_of_them() -> None:
    controller = idle_sessions()
    for number in range(SESSIONS):
        assert isinstance(arrive(controller, f"next-{number}", "agentic"), Queued)

    controller.tick(61, most=2)
    while controller.go_on(61, most=2):
        pass
    assert controller.table.parked_by_class["agentic"] == SESSIONS
