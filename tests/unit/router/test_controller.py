"""The admission state: adoption, stickiness, moves, overload answers, and what it counts."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.placement import MAX_LEAD
from rolloutpool_router.core.requests import Arrival, Entered, Queued
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.core.snapshot import take_snapshot
from rolloutpool_router.testing import POOL, pool_object
from rolloutpool_testkit.admission import (
    CAPS,
    ENGINES,
    ONE,
    STRICT,
    apply,
    arrive,
    controller_of,
    enter,
    get_ahead,
    names,
)


def overload(**fields: Any) -> dict[str, Any]:
    """A pool of one engine whose class rlvr answers overload so."""
    workloads = [{"name": "rlvr", "share": 1.0, "overload": fields}]
    return pool_object(ONE, caps={"rlvr": 1}, workloads=workloads, admission=STRICT)


def test_before_the_object_is_read_nobody_enters() -> None:
    answer = arrive(AdmissionController(Random(1)), "s")

    assert isinstance(answer, Refusal)
    assert answer.outcome is Outcome.NOT_READY


def test_sessions_fill_the_caps_and_the_rest_wait_in_order() -> None:
    controller = controller_of(admission=STRICT)
    homes = [enter(controller, f"s{i}").engine for i in range(4)]
    assert all(isinstance(arrive(controller, f"s{i}"), Queued) for i in (4, 5))

    assert set(homes) == {"e0", "e1"}
    controller.end_turn("s0", now=5, ok=True)
    entered = controller.admit_waiting(5)
    assert [(e.session, e.engine, e.waited_seconds) for e in entered] == [("s4", homes[0], 5)]


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
    controller = controller_of(caps=dict.fromkeys(CAPS, 500), blocks=10_000)
    for i in range(40):
        enter(controller, f"other{i}", prompt_tokens=640)
    homes = []
    for i in range(40):
        homes.append(enter(controller, f"s{i}", prefix=(1, 2), prompt_tokens=640).engine)
        loads = [load.occupied_blocks for load in controller.occupancy.loads(0)]
        assert max(loads) - min(loads) < MAX_LEAD * sum(loads) / 2 + 100, "and one session more"

    assert homes[0] == homes[1]
    assert set(homes) == {"e0", "e1"}


def test_a_prompt_counts_in_full_unless_somebody_holds_it_already() -> None:
    prefix = tuple(range(24))
    for held in (True, False):
        controller = controller_of(engines=ONE, caps=dict.fromkeys(CAPS, 9))
        enter(controller, "first", "rlhf", prompt_tokens=9_600, prefix=prefix if held else ())
        answer = arrive(controller, "s", "rlhf", prompt_tokens=9_600, prefix=prefix)
        assert isinstance(answer, Entered if held else Queued)


def test_a_group_goes_to_an_engine_that_has_room_for_all_of_it() -> None:
    pool = pool_object(ENGINES, caps=dict.fromkeys(CAPS, 99), blocks=10_000)
    pool["status"]["admission"]["engines"][0] |= {"capacityBlocks": 1000, "protectedBlocks": 1000}
    controller = controller_of(pool)
    controller.fleet.failed("e0", now=0)
    enter(controller, "fills-e1", prompt_tokens=16_000)
    controller.fleet.answered("e0")
    assert enter(controller, "small", prompt_tokens=160).engine == "e0", "the emptier one"
    controller.fleet.failed("e0", now=0)
    controller.fleet.failed("e1", now=0)
    for number in range(20):
        arrive(controller, f"s{number}", "rlhf", prompt_tokens=1600, group=b"g")
    entered = controller.tick(1).entered

    assert {entry.engine for entry in entered} == {"e1"}
    assert len(entered) == 20


def test_an_unknown_session_with_history_is_adopted_beyond_the_caps() -> None:
    controller = controller_of(caps={"rlvr": 0, "rlhf": 0, "agentic": 1}, admission=STRICT)
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
    controller = controller_of(caps=dict.fromkeys(CAPS, 1), admission=STRICT)
    for resident in ENGINES:
        enter(controller, resident, class_name)
    arrival = Arrival("s", class_name, has_history=True)
    answer, _ = controller.arrive(arrival, uptime)
    assert isinstance(answer, Entered) is adopted


def test_a_session_that_waits_is_not_adopted_by_its_next_request() -> None:
    controller = controller_of(caps={"rlvr": 0, "rlhf": 0, "agentic": 1}, admission=STRICT)
    for first in ("a", "b", "c"):
        arrive(controller, first, "agentic")

    assert isinstance(arrive(controller, "c", "agentic", has_history=True), Queued)
    assert controller.classes["agentic"].queue.requests == 2
    controller.finish("a", 1)
    assert controller.admit_waiting(1) == []
    controller.end_turn("a", now=1, ok=True)
    assert names(controller.admit_waiting(1)) == ["c"]
    resident = controller.table.get("c")
    assert resident is not None
    assert resident.in_flight == 2


@pytest.mark.parametrize("requests", [1, 2])
def test_a_session_that_is_finished_while_it_waits_ends_with_its_requests(requests: int) -> None:
    controller = controller_of(caps={"rlvr": 0, "rlhf": 0, "agentic": 1}, engines=ONE, admission=STRICT)
    enter(controller, "before", "agentic")
    for _ in range(requests):
        assert isinstance(arrive(controller, "s", "agentic"), Queued)

    assert controller.finish("s", 1)
    controller.finish("before", 1)
    controller.end_turn("before", now=1, ok=True)
    assert names(controller.admit_waiting(1)) == ["s"]
    for _ in range(requests):
        assert controller.table.get("s") is not None
        controller.end_turn("s", now=2, ok=True)
    assert len(controller.table) == 0


def test_a_session_that_waits_keeps_its_class() -> None:
    controller = controller_of(caps={"rlvr": 0, "rlhf": 0, "agentic": 0}, engines={})
    arrive(controller, "s", "agentic")

    assert arrive(controller, "s", "rlvr") == Queued("s", "agentic")
    assert controller.classes["agentic"].queue.requests == 2


class TestSeveralRouters:
    """Sessions that another router had before, or has from now on."""

    def test_a_stray_session_with_history_is_adopted_long_after_the_start(self) -> None:
        controller = controller_of(caps=dict.fromkeys(CAPS, 0), admission=STRICT)
        enter(controller, "other", now=1e6)
        stray = enter(controller, "s", "agentic", now=1e6, has_history=True, stray=True)
        assert stray.adopted

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"stray": True}, id="without-history"),
            pytest.param({"has_history": True}, id="of-no-other-router"),
            pytest.param({"stray": True, "has_history": True, "single": True}, id="unnamed"),
        ],
    )
    def test_others_wait_like_any(self, fields: dict[str, bool]) -> None:
        controller = controller_of(engines=ONE, caps=dict.fromkeys(CAPS, 1), admission=STRICT)
        enter(controller, "first", "agentic", now=1e6)
        get_ahead(controller, "agentic", 3)
        assert isinstance(arrive(controller, "s", "agentic", now=1e6, **fields), Queued)

    @pytest.mark.parametrize("home", ENGINES)
    def test_it_stays_where_its_blocks_are(self, home: str) -> None:
        controller = controller_of()
        assert enter(controller, "s", "agentic", has_history=True, home=home).engine == home

    def test_it_goes_elsewhere_if_that_engine_is_out(self) -> None:
        controller = controller_of()
        controller.fleet.failed("e0", now=0)
        assert enter(controller, "s", "agentic", has_history=True, home="e0").engine == "e1"

    def test_a_session_that_another_router_has_now_leaves_without_being_counted(self) -> None:
        controller = controller_of(engines=ONE, caps=dict.fromkeys(CAPS, 1), admission=STRICT)
        enter(controller, "s", "agentic", prompt_tokens=160)
        controller.end_turn("s", now=1, ok=True)
        get_ahead(controller, "agentic", 3)
        assert isinstance(arrive(controller, "waits", "agentic", now=1.0), Queued)

        assert controller.release("s", 2) == "e0"
        assert not controller.consumed.counts
        assert controller.ledger.finished("agentic") == 0
        assert controller.class_of("s") is None
        assert names(controller.admit_waiting(2)) == ["waits"]

    def test_one_that_is_in_use_here_stays(self) -> None:
        controller = controller_of(engines=ONE, caps=dict.fromkeys(CAPS, 1), admission=STRICT)
        enter(controller, "busy", "agentic")
        get_ahead(controller, "agentic", 3)
        arrive(controller, "waits", "agentic")

        assert [controller.release(name, 1) for name in ("busy", "waits", "unknown")] == [None] * 3
        assert controller.class_of("busy") == controller.class_of("waits") == "agentic"


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
    apply(controller, pool_object(left, caps=CAPS, revision=2))

    assert enter(controller, "s", "agentic").engine in left


def test_an_engine_that_is_not_ready_keeps_its_sessions_and_gets_no_new_ones() -> None:
    controller = controller_of()
    home = enter(controller, "s", "agentic").engine
    controller.end_turn("s", now=1, ok=True)
    pool = pool_object(ENGINES, caps=CAPS)
    for endpoint in pool["status"]["endpoints"]["admin"]:
        endpoint["ready"] = endpoint["name"] != home
    apply(controller, pool)

    assert enter(controller, "s", "agentic").engine == home
    assert {enter(controller, f"n{i}").engine for i in range(2)}.isdisjoint({home})


def test_with_no_engine_up_requests_wait_and_go_on_where_they_were() -> None:
    controller = controller_of(engines=ONE)
    enter(controller, "s", "agentic")
    controller.fleet.failed("e0", now=0)

    stalled = controller.reroute("s", now=0, avoid=())
    assert stalled == Queued("s", "agentic", resident=True)
    assert isinstance(arrive(controller, "new"), Queued)
    assert controller.tick(0.4).entered == []
    entered = controller.tick(0.6).entered
    assert [(e.session, e.engine) for e in entered] == [("s", "e0"), ("new", "e0")]
    assert controller.stalled.requests == 0


def test_a_stalled_session_does_not_hold_up_those_whose_engine_is_back() -> None:
    controller = controller_of()
    homes = {name: enter(controller, name, "agentic").engine for name in ("s1", "s2")}
    assert set(homes.values()) == set(ENGINES)
    pool = pool_object(ENGINES, caps=CAPS)
    for endpoint in pool["status"]["endpoints"]["admin"]:
        endpoint["ready"] = False  # so that nobody can move
    apply(controller, pool)
    for engine in ENGINES:
        controller.fleet.failed(engine, now=0)
    assert all(isinstance(controller.reroute(name, now=0, avoid=()), Queued) for name in homes)
    controller.fleet.failed(homes["s1"], now=0.55)

    assert [(e.session, e.engine) for e in controller.admit_waiting(0.6)] == [("s2", homes["s2"])]
    assert names(controller.tick(10).entered) == ["s1"]


def test_an_engine_that_serves_takes_sessions_whatever_an_old_object_says() -> None:
    controller = controller_of(engines=ONE)
    pool = pool_object(ONE, caps=CAPS)
    pool["status"]["endpoints"]["admin"][0]["ready"] = False
    apply(controller, pool)
    assert isinstance(arrive(controller, "a"), Queued)
    controller.fleet.probed("e0", serves=True)
    assert names(controller.tick(1).entered) == ["a"]
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
    controller = controller_of(caps={"rlvr": 0, "rlhf": 1, "agentic": 1}, admission=STRICT)
    for i in range(20):
        arrive(controller, f"s{i}")
    workloads = [w for w in POOL["spec"]["workloads"] if w["name"] != "rlvr"]
    workloads[0] = workloads[0] | {"share": 0.8}
    pool = pool_object(ENGINES, caps=CAPS, revision=2, workloads=workloads)
    pool["metadata"]["generation"] = 2

    waiting = len(controller.classes["rlvr"].queue)
    dropped = apply(controller, pool)

    assert len(dropped) == waiting > 0
    assert list(controller.classes) == ["rlhf", "agentic"]


def test_shrinking_caps_evict_nobody() -> None:
    controller = controller_of(admission=STRICT)
    for i in range(4):
        enter(controller, f"s{i}")
    apply(controller, pool_object(ENGINES, caps={"rlvr": 1}, revision=2, admission=STRICT))

    assert controller.table.by_class["rlvr"] == 4
    assert isinstance(arrive(controller, "s4"), Queued)
    for i in range(2):
        controller.end_turn(f"s{i}", now=1, ok=True)
    assert len(controller.admit_waiting(1)) <= 1


def test_a_session_that_came_to_nothing_is_owed_again() -> None:
    controller = controller_of()
    enter(controller, "other", "agentic")
    before = controller.debts()
    enter(controller, "s", "rlvr")
    entered = controller.debts()
    controller.end_turn("s", now=1, ok=False)
    enter(controller, "present", "rlvr")

    assert entered["rlvr"] < before["rlvr"]
    assert controller.debts() == pytest.approx(entered)


def served_one_by_one(controller: AdmissionController, sessions: int) -> list[str]:
    """Classes of the sessions that enter where one runs at a time and many of each class wait."""
    running = enter(controller, "first")
    for name in CAPS:
        for i in range(sessions):
            arrive(controller, f"{name}{i}", name)
    served = []
    for now in range(sessions):
        controller.end_turn(running.session, now=now, ok=True)
        controller.finish(running.session, now)
        (running,) = controller.admit_waiting(now)
        served.append(running.class_name)
    return served


def test_classes_that_are_behind_catch_up() -> None:
    controller = controller_of(engines=ONE, caps=dict.fromkeys(CAPS, 100), blocks=1)

    served = served_one_by_one(controller, 100)

    assert served.count("rlvr") == pytest.approx(50, abs=1)
    assert served.count("rlhf") == pytest.approx(30, abs=1)
    assert served.count("agentic") == pytest.approx(20, abs=1)


def test_the_class_blind_policy_knows_no_debts() -> None:
    controller = controller_of(engines=ONE, caps=dict.fromkeys(CAPS, 1), policy="Session")

    assert served_one_by_one(controller, 100).count("rlvr") == 100


def test_no_class_waits_for_ever_where_the_floors_do_not_fit() -> None:
    caps = {"rlvr": 2, "rlhf": 0, "agentic": 0}
    controller = controller_of(engines=ONE, caps=caps, admission=STRICT)
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
    controller = controller_of(admission=STRICT)
    first = enter(controller, "s0")
    controller.end_turn("s0", now=10, ok=True, usage=Usage(160, 160))
    for i in range(1, 7):
        arrive(controller, f"s{i}", now=20.0)
    enter(controller, "a", "agentic", has_history=True)

    snapshot = take_snapshot(controller, router="r", now=25.0, taken_at=1e9, ignored_statuses=3)

    assert (snapshot.router, snapshot.applied_revision, snapshot.ignored_statuses) == ("r", 1, 3)
    rlvr, rlhf, agentic = snapshot.classes
    assert (rlvr.name, rlvr.active, rlvr.waiting, rlvr.finished_total, rlvr.consumed) == ("rlvr", 4, 2, 1, 1)
    assert (rlvr.source, rlvr.observations, rlhf.source, rlhf.observations) == ("Blend", 1, "Priors", 0)
    assert 0 < rlvr.residency_seconds < rlhf.residency_seconds, "one of 10 s was seen"
    assert (agentic.adopted_total, rlhf.active) == (1, 0)
    assert {item.name: item.debt for item in snapshot.classes} == controller.debts()
    assert rlvr.debt != 0
    by_name = {engine.name: engine for engine in snapshot.engines}
    assert sum(c.active for c in by_name[first.engine].classes if c.name == "rlvr") == 2
    assert all(engine.healthy for engine in snapshot.engines)
