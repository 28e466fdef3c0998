"""The admission state: adoption, stickiness, moves, overload answers, and what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.controller import AdmissionController, Arrival, Entered, Queued
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.core.view import Ignored
from rolloutpool_router.snapshot import take_snapshot
from rolloutpool_router.testing import POOL, pool_object

ENGINES = {"e0": "http://e0", "e1": "http://e1"}
CAPS = {"rlvr": 2, "rlhf": 2, "agentic": 2}


def controller_of(
    pool: Mapping[str, Any] | None = None,
    *,
    caps: Mapping[str, int] = CAPS,
    engines: Mapping[str, str] = ENGINES,
) -> AdmissionController:
    controller = AdmissionController(Random(1))
    assert not isinstance(controller.apply(parse_pool(pool or pool_object(engines, caps=caps)), {}), Ignored)
    return controller


def overload(**fields: Any) -> dict[str, Any]:
    """A pool of one engine whose class rlvr answers overload so."""
    workloads = [{"name": "rlvr", "share": 1.0, "overload": fields}]
    return pool_object({"e0": "http://e0"}, caps={"rlvr": 1}, workloads=workloads)


def arrive(
    controller: AdmissionController,
    session: str,
    class_name: str = "rlvr",
    *,
    now: float = 0.0,
    **fields: Any,
) -> Any:
    return controller.arrive(Arrival(session, class_name, **fields), now)[0]


def enter(controller: AdmissionController, session: str, class_name: str = "rlvr", **fields: Any) -> Entered:
    answer = arrive(controller, session, class_name, **fields)
    assert isinstance(answer, Entered)
    return answer


def test_before_the_object_is_read_nobody_enters() -> None:
    answer = arrive(AdmissionController(Random(1)), "s")

    assert isinstance(answer, Refusal)
    assert answer.outcome is Outcome.NOT_READY


def test_sessions_fill_the_caps_and_the_rest_wait_in_order() -> None:
    controller = controller_of()
    answers = [arrive(controller, f"s{i}") for i in range(6)]

    assert [type(a) for a in answers] == [Entered] * 4 + [Queued] * 2
    assert {a.engine for a in answers[:4]} == {"e0", "e1"}
    controller.end_turn("s0", now=5, ok=True)
    entered = controller.admit_waiting(5)
    assert [(e.session, e.engine, e.waited_seconds) for e in entered] == [("s4", answers[0].engine, 5)]


def test_later_turns_go_straight_to_the_engine_of_the_session() -> None:
    controller = controller_of()
    home = enter(controller, "s", "agentic").engine
    for other in range(3):
        enter(controller, f"o{other}", "agentic")

    for _ in range(3):
        controller.end_turn("s", now=1, ok=True)
        assert enter(controller, "s", "agentic").engine == home
    assert controller.class_of("s") == "agentic"


def test_sessions_with_one_prefix_meet_on_one_engine_until_it_is_clearly_fuller() -> None:
    controller = controller_of(caps=dict.fromkeys(CAPS, 50))
    homes = [enter(controller, f"s{i}", prefix=(b"1", b"2")).engine for i in range(8)]

    assert homes[0] == homes[1]
    assert {homes.count(name) for name in ENGINES} <= {3, 4, 5}


def test_an_unknown_session_with_history_is_adopted_beyond_the_caps() -> None:
    controller = controller_of(caps={"rlvr": 0, "rlhf": 0, "agentic": 1})
    for first in ("a", "b"):
        enter(controller, first, "agentic")
    assert isinstance(arrive(controller, "c", "agentic"), Queued)

    adopted = enter(controller, "old", "agentic", has_history=True)

    assert adopted.adopted
    assert controller.classes["agentic"].counters.adopted == 1
    assert isinstance(arrive(controller, "x", "agentic", has_history=True, single=True), Queued)


@pytest.mark.parametrize(
    ("class_name", "uptime", "adopted"),
    [
        pytest.param("agentic", 10, True, id="just after the start"),
        pytest.param("agentic", 100_000, False, id="no session of another router can be open any more"),
        pytest.param("rlhf", 10, False, id="sessions of the class end with their answer"),
    ],
)
def test_history_in_a_prompt_opens_the_gate_only_for_what_may_be_forgotten(
    class_name: str, uptime: float, adopted: bool
) -> None:
    controller = controller_of(caps=dict.fromkeys(CAPS, 1))
    for resident in ENGINES:
        enter(controller, resident, class_name)
    arrival = Arrival("s", class_name, has_history=True)
    answer, _ = controller.arrive(arrival, uptime)
    assert isinstance(answer, Entered) is adopted


def test_a_session_that_waits_is_not_adopted_by_its_next_request() -> None:
    controller = controller_of(caps={"rlvr": 0, "rlhf": 0, "agentic": 1})
    for first in ("a", "b", "c"):
        arrive(controller, first, "agentic")

    assert isinstance(arrive(controller, "c", "agentic", has_history=True), Queued)
    assert controller.classes["agentic"].queue.requests == 2
    controller.finish("a", 1)
    assert controller.admit_waiting(1) == []
    controller.end_turn("a", now=1, ok=True)
    assert [e.session for e in controller.admit_waiting(1)] == ["c"]
    resident = controller.table.get("c")
    assert resident is not None
    assert resident.in_flight == 2


def test_a_session_that_waits_keeps_its_class() -> None:
    controller = controller_of(caps={"rlvr": 0, "rlhf": 0, "agentic": 0}, engines={})
    arrive(controller, "s", "agentic")

    assert arrive(controller, "s", "rlvr") == Queued("s", "agentic")
    assert controller.classes["agentic"].queue.requests == 2


def test_a_session_moves_when_its_engine_is_out_and_stays_moved() -> None:
    controller = controller_of()
    home = enter(controller, "s", "agentic").engine
    controller.fleet.failed(home, now=1)

    moved = controller.reroute("s", now=1, avoid=())
    assert isinstance(moved, Entered)
    assert moved.engine != home
    controller.end_turn("s", now=2, ok=True)
    assert enter(controller, "s", "agentic", now=60.0).engine == moved.engine
    assert controller.table.tally(home) == {}


def test_a_session_moves_when_its_engine_is_gone() -> None:
    controller = controller_of()
    home = enter(controller, "s", "agentic").engine
    controller.end_turn("s", now=1, ok=True)
    left = {name: url for name, url in ENGINES.items() if name != home}
    controller.apply(parse_pool(pool_object(left, caps=CAPS, revision=2)), {})

    assert enter(controller, "s", "agentic").engine in left


def test_an_engine_that_is_not_ready_keeps_its_sessions_and_gets_no_new_ones() -> None:
    controller = controller_of()
    home = enter(controller, "s", "agentic").engine
    controller.end_turn("s", now=1, ok=True)
    pool = pool_object(ENGINES, caps=CAPS)
    for endpoint in pool["status"]["endpoints"]["admin"]:
        endpoint["ready"] = endpoint["name"] != home
    controller.apply(parse_pool(pool), {})

    assert enter(controller, "s", "agentic").engine == home
    assert {enter(controller, f"n{i}").engine for i in range(2)}.isdisjoint({home})


def test_with_no_engine_up_requests_wait_and_go_on_where_they_were() -> None:
    controller = controller_of(engines={"e0": "http://e0"})
    enter(controller, "s", "agentic")
    controller.fleet.failed("e0", now=0)

    stalled = controller.reroute("s", now=0, avoid=())
    assert stalled == Queued("s", "agentic", resident=True)
    assert isinstance(arrive(controller, "new"), Queued)
    assert controller.admit_waiting(0.4) == []
    entered = controller.admit_waiting(0.6)
    assert [(e.session, e.engine) for e in entered] == [("s", "e0"), ("new", "e0")]
    assert controller.stalled.requests == 0


def test_a_stalled_session_does_not_hold_up_those_whose_engine_is_back() -> None:
    controller = controller_of()
    homes = {name: enter(controller, name, "agentic").engine for name in ("s1", "s2")}
    assert set(homes.values()) == set(ENGINES)
    pool = pool_object(ENGINES, caps=CAPS)
    for endpoint in pool["status"]["endpoints"]["admin"]:
        endpoint["ready"] = False  # so that nobody can move
    controller.apply(parse_pool(pool), {})
    for engine in ENGINES:
        controller.fleet.failed(engine, now=0)
    assert all(isinstance(controller.reroute(name, now=0, avoid=()), Queued) for name in homes)
    controller.fleet.failed(homes["s1"], now=0.55)

    assert [(e.session, e.engine) for e in controller.admit_waiting(0.6)] == [("s2", homes["s2"])]
    assert [e.session for e in controller.admit_waiting(10)] == ["s1"]


def test_an_engine_that_serves_takes_sessions_whatever_an_old_object_says() -> None:
    controller = controller_of(engines={"e0": "http://e0"})
    pool = pool_object({"e0": "http://e0"}, caps=CAPS)
    pool["status"]["endpoints"]["admin"][0]["ready"] = False
    controller.apply(parse_pool(pool), {})
    assert isinstance(arrive(controller, "a"), Queued)
    controller.fleet.probed("e0", serves=True)
    assert [entry.session for entry in controller.admit_waiting(1)] == ["a"]
    controller.fleet.failed("e0", now=1)
    assert not controller.fleet.is_up("e0", 100), "a connection that fails says more than an old answer"
    controller.fleet.probed("unknown", serves=True)
    assert not controller.fleet.is_up("unknown", 100)


def test_engines_that_refused_are_not_asked_again() -> None:
    controller = controller_of()
    home = enter(controller, "s").engine
    other = controller.reroute("s", now=0, avoid={home})

    assert isinstance(other, Entered)
    assert other.engine != home
    assert controller.reroute("s", now=0, avoid={home, other.engine}) is None


@pytest.mark.parametrize(
    ("fields", "outcome", "status"),
    [
        pytest.param({"maxWaiting": 1}, Outcome.QUEUE_FULL, 503, id="queue-full"),
        pytest.param(
            {"answer": "Reject", "status": 500, "retryAfterSeconds": 7}, Outcome.CLASS_FULL, 500, id="reject"
        ),
    ],
)
def test_overload_is_answered_as_the_class_says(
    fields: dict[str, Any], outcome: Outcome, status: int
) -> None:
    controller = controller_of(overload(**fields))
    enter(controller, "s0")
    arrive(controller, "s1")

    refused = arrive(controller, "s2")

    assert isinstance(refused, Refusal)
    assert (refused.outcome, refused.http_status, refused.retryable) == (outcome, status, True)
    assert refused.retry_after_seconds == fields.get("retryAfterSeconds", 10)
    assert controller.classes["rlvr"].counters.rejected == (2 if "answer" in fields else 1)
    assert len(controller.classes["rlvr"].queue) <= 1


def test_reject_also_answers_when_no_engine_is_up() -> None:
    controller = controller_of(overload(answer="Reject"))
    enter(controller, "s0")
    controller.fleet.failed("e0", now=0)

    refused = arrive(controller, "s0")

    assert isinstance(refused, Refusal)
    assert refused.outcome is Outcome.NO_ENGINE
    resident = controller.table.get("s0")
    assert resident is not None
    assert resident.in_flight == 1


def test_requests_of_a_class_that_is_taken_out_are_handed_back() -> None:
    controller = controller_of(caps={"rlvr": 0, "rlhf": 1, "agentic": 1})
    for i in range(20):
        arrive(controller, f"s{i}")
    workloads = [w for w in POOL["spec"]["workloads"] if w["name"] != "rlvr"]
    workloads[0] = workloads[0] | {"share": 0.8}
    pool = pool_object(ENGINES, caps=CAPS, revision=2, workloads=workloads)
    pool["metadata"]["generation"] = 2

    waiting = len(controller.classes["rlvr"].queue)
    dropped = controller.apply(parse_pool(pool), {})

    assert not isinstance(dropped, Ignored)
    assert len(dropped) == waiting > 0
    assert list(controller.classes) == ["rlhf", "agentic"]


def test_shrinking_caps_evict_nobody() -> None:
    controller = controller_of()
    for i in range(4):
        enter(controller, f"s{i}")
    controller.apply(parse_pool(pool_object(ENGINES, caps={"rlvr": 1}, revision=2)), {})

    assert controller.table.by_class["rlvr"] == 4
    assert isinstance(arrive(controller, "s4"), Queued)
    for i in range(2):
        controller.end_turn(f"s{i}", now=1, ok=True)
    assert len(controller.admit_waiting(1)) <= 1


def test_classes_that_are_behind_catch_up() -> None:
    controller = controller_of(pool_object({"e0": "http://e0"}, caps=dict.fromkeys(CAPS, 100)))
    controller.apply(
        parse_pool(
            pool_object({"e0": "http://e0"}, caps=dict.fromkeys(CAPS, 1), policy="Session", revision=2)
        ),
        {},
    )
    running = enter(controller, "first")
    for name in CAPS:
        for i in range(200):
            arrive(controller, f"{name}{i}", name)
    served = []
    for now in range(100):
        controller.end_turn(running.session, now=now, ok=True)
        controller.finish(running.session, now)
        (running,) = controller.admit_waiting(now)
        served.append(running.class_name)

    assert served.count("rlvr") == pytest.approx(50, abs=1)
    assert served.count("rlhf") == pytest.approx(30, abs=1)
    assert served.count("agentic") == pytest.approx(20, abs=1)


def test_no_class_waits_for_ever_where_the_floors_do_not_fit() -> None:
    caps = {"rlvr": 2, "rlhf": 0, "agentic": 0}
    controller = controller_of(pool_object({"e0": "http://e0"}, caps=caps))
    order: list[str] = []
    running: list[Entered] = []
    for i in range(60):
        for name in caps:
            _, entered = controller.arrive(Arrival(f"{name}{i}", name, single=True), float(i))
            running += entered
        if running:
            done = running.pop(0)
            order.append(done.class_name)
            controller.end_turn(done.session, now=i, ok=True)
            running += controller.admit_waiting(i)

    assert {order.count(name) > 5 for name in caps} == {True}


def test_the_snapshot_shows_what_happened() -> None:
    controller = controller_of()
    first = enter(controller, "s0")
    controller.end_turn("s0", now=10, ok=True, usage=Usage(160, 160))
    for i in range(1, 7):
        arrive(controller, f"s{i}", now=20.0)
    enter(controller, "a", "agentic", has_history=True)

    snapshot = take_snapshot(controller, router="r", now=25.0, taken_at=1e9, ignored_statuses=3)

    assert (snapshot.router, snapshot.applied_revision, snapshot.ignored_statuses) == ("r", 1, 3)
    rlvr, rlhf, agentic = snapshot.classes
    assert (rlvr.name, rlvr.active, rlvr.waiting, rlvr.finished_total, rlvr.consumed) == ("rlvr", 4, 2, 1, 1)
    assert (rlvr.footprint_blocks, rlvr.residency_seconds, rlvr.observations) == (15, 10, 1)
    assert (agentic.adopted_total, rlhf.active) == (1, 0)
    by_name = {engine.name: engine for engine in snapshot.engines}
    assert sum(c.active for c in by_name[first.engine].classes if c.name == "rlvr") == 2
    assert all(engine.healthy for engine in snapshot.engines)
