"""A tick that may do only so much at once does the same as one without a bound, a little later."""

from __future__ import annotations

import pytest

from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.ledger import LOOK_TICKS
from rolloutpool_testkit.admission import CLASSES, controller_of, enter

SESSIONS = 12


def idle_sessions() -> AdmissionController:
    """Sessions with one turn behind them."""
    controller = controller_of(caps=dict.fromkeys(CLASSES, SESSIONS), blocks=10_000)
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
    while controller.look_on(10, most=most):
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

    assert not controller.look_on(11, most=SESSIONS)
    assert not any(books.held for books in controller.ledger.engines.values())


def test_idle_sessions_end_a_few_at_each_tick() -> None:
    controller = idle_sessions()
    left = []
    for second in range(5):
        controller.tick(1e6 + second, most=5)
        left.append(len(controller.table))

    assert left == [7, 2, 0, 0, 0]
