"""What the debug page is told: true, bounded, and fit to be shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.core.requests import Arrival, Entered, Queued
from rolloutpool_router.debug.state import MOST_NAME, MOST_WAITS, Shown, debug_state
from rolloutpool_router.decisions import REASONS, REMEMBERED, Decisions
from rolloutpool_router.state_metrics import DataPlane
from rolloutpool_testkit.admission import ONE, STRICT, arrive, controller_of, enter, fill

MOST_BYTES = 250_000
"""Largest state, in bytes: it is sent once a second."""


def shown(controller: AdmissionController, decisions: Decisions | None = None) -> Shown:
    return Shown(
        router="router-0",
        controller=controller,
        peers=Peers("router-0"),
        plane=DataPlane(),
        decisions=decisions or Decisions(),
        status_age=lambda: 1.5,
        ignored=lambda: 2,
        draining=lambda: False,
    )


def state_of(controller: AdmissionController, now: float = 0.0, **parts: Any) -> dict[str, Any]:
    """As the page gets it."""
    state = msgspec.json.decode(msgspec.json.encode(debug_state(shown(controller, **parts), now)))
    assert isinstance(state, dict)
    return state


def by_name(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {row["name"]: row for row in rows}


def test_before_the_pool_is_read_there_is_a_state() -> None:
    state = state_of(AdmissionController(Random(1)))
    assert state["pool"]["name"] is None
    assert (state["classes"], state["engines"]) == ([], [])


def test_it_tells_what_the_controller_knows() -> None:
    controller = controller_of(engines=ONE, admission=STRICT)
    entered = fill(controller, now=10.0)
    for number in range(MOST_WAITS + 2):
        assert isinstance(arrive(controller, f"waits-{number}", now=20.0 + number), Queued)
    state = state_of(controller, 30.0)
    rlvr = by_name(state["classes"])["rlvr"]
    assert (rlvr["active"], rlvr["waiting"], rlvr["oldestWait"]) == (entered, MOST_WAITS + 2, 10.0)
    assert [ticket["session"] for ticket in rlvr["next"]] == [f"waits-{n}" for n in range(MOST_WAITS)]
    assert rlvr["source"] == "Priors"
    (engine,) = state["engines"]
    assert (engine["name"], engine["state"]) == ("e0", "up")
    assert engine["sessions"] == [row["active"] for row in state["classes"]]
    assert 0 < engine["held"] <= engine["capacity"]
    assert state["pool"]["statusAge"] == 1.5


def test_an_engine_that_is_out_says_why() -> None:
    controller = controller_of()
    controller.fleet.failed("e1", 0.0)
    engines = by_name(state_of(controller)["engines"])
    assert engines["e1"]["state"] == "unreachable"
    assert engines["e1"]["reason"]


def test_the_latest_decisions_are_told_and_a_storm_of_refusals_does_not_push_them_out() -> None:
    controller = controller_of()
    decisions = Decisions()
    entry = enter(controller, "s" * 200)
    decisions.note(0.0, entry.session, entry.class_name, entry)
    for number in range(10 * REMEMBERED):
        decisions.note(1.0, f"r{number}", "rlvr", Refusal(Outcome.QUEUE_FULL, "full"))
    state = state_of(controller, 5.0, decisions=decisions)
    (told,) = state["entered"]
    assert told["session"] == "s" * (MOST_NAME - 1) + "…"
    assert (told["ago"], told["engine"]) == (5.0, entry.engine)
    assert told["reason"] in REASONS
    assert len(state["refused"]) == REMEMBERED
    assert state["refused"][0] | {"ago": 0} == {
        "ago": 0,
        "session": f"r{10 * REMEMBERED - 1}",
        "class": "rlvr",
        "engine": None,
        "decision": "refused",
        "reason": "queue_full",
        "waited": 0.0,
    }


def test_it_stays_small_in_the_largest_pool() -> None:
    names = [f"class-{n}-{'c' * 20}" for n in range(16)]
    classes = [{"name": name, "share": 1 / 16} for name in names]
    engines = {f"engine-{n}-{'e' * 50}": f"http://10.0.0.{n}:8000" for n in range(256)}
    caps = dict.fromkeys(names, 1000)
    controller = controller_of(engines=engines, caps=caps, workloads=classes, blocks=10_000_000)
    decisions = Decisions()
    for number, name in enumerate(names):
        for session in range(40):
            answer = controller.arrive(Arrival(f"{number}-{session}-{'s' * 200}", name), 0.0)[0]
            if isinstance(answer, (Entered, Refusal)):
                decisions.note(0.0, "s" * 200, name, answer)
    for number in range(256):
        controller.fleet.failed(f"engine-{number}-{'e' * 50}", 0.0)
    state = state_of(controller, decisions=decisions)
    assert len(state["engines"]) == 256
    assert len(msgspec.json.encode(state)) < MOST_BYTES


def test_no_number_is_one_that_json_does_not_know() -> None:
    controller = controller_of()
    controller.debt.entered("rlvr", {"rlvr": 1.0}, window=10)

    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [number for item in value.values() for number in numbers(item)]
        if isinstance(value, list):
            return [number for item in value for number in numbers(item)]
        return [value] if isinstance(value, float) else []

    assert all(math.isfinite(number) for number in numbers(debug_state(shown(controller), 1e9)))


@pytest.mark.parametrize(
    "session", ["</script><script>alert(1)</script>", "\udcff\udcfe", "\x00\x1f", "🙂" * 99]
)
def test_any_session_id_can_be_told(session: str) -> None:
    controller = controller_of()
    decisions = Decisions()
    entry = enter(controller, session)
    decisions.note(0.0, session, entry.class_name, entry)
    (told,) = state_of(controller, decisions=decisions)["entered"]
    assert len(told["session"]) <= MOST_NAME
