"""The gate: whoever is cancelled, at whatever moment, leaves no permit and no ticket behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.requests import Arrival, Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.gate import Gate
from rolloutpool_router.testing import pool_object


@dataclass
class Clock:
    """Stands still unless told."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def gate_of(cap: int = 1, *, clock: Clock | None = None, workloads: Any = None, **admission: Any) -> Gate:
    gate = Gate(AdmissionController(Random(1)), clock=clock or asyncio.get_running_loop().time)
    caps = dict.fromkeys(("rlvr", "rlhf", "agentic"), cap)
    pool = pool_object(
        {"e0": "http://e0"},
        caps=caps,
        workloads=workloads,
        admission={"lending": False, "mixtureDebt": False, **admission},
    )
    assert gate.apply(parse_pool(pool), {}) is None
    return gate


def is_empty(gate: Gate) -> bool:
    controller = gate.controller
    queued = sum(state.queue.requests for state in controller.classes.values())
    return not (len(controller.table) or queued or controller.stalled.requests or gate.waiting)


async def enter(gate: Gate, session: str) -> Entered:
    answer = await gate.enter(Arrival(session, "rlvr", single=True))
    assert isinstance(answer, Entered)
    return answer


async def test_the_waiting_enter_in_order() -> None:
    gate, order = gate_of(), []

    async def visit(session: str) -> None:
        await enter(gate, session)
        order.append(session)
        await asyncio.sleep(0)
        gate.leave(session, ok=True, usage=None)

    await asyncio.gather(*(visit(f"s{i}") for i in range(10)))

    assert order == [f"s{i}" for i in range(10)]
    assert is_empty(gate)


async def test_a_request_that_is_cancelled_as_it_is_let_in_gives_its_permit_on() -> None:
    gate = gate_of()
    await enter(gate, "first")
    unlucky = asyncio.create_task(enter(gate, "unlucky"))
    next_one = asyncio.create_task(enter(gate, "next"))
    await asyncio.sleep(0)

    gate.leave("first", ok=True, usage=None)
    unlucky.cancel()

    assert (await asyncio.wait_for(next_one, 5)).session == "next"
    assert unlucky.cancelled() or unlucky.cancelling()
    gate.leave("next", ok=True, usage=None)
    assert is_empty(gate)


async def test_requests_of_one_session_enter_together() -> None:
    gate = gate_of()
    await enter(gate, "first")
    together = [
        asyncio.create_task(gate.enter(Arrival("pair", "rlvr"))),
        asyncio.create_task(gate.enter(Arrival("pair", "rlvr"))),
    ]
    await asyncio.sleep(0)
    gate.leave("first", ok=True, usage=None)

    assert [type(answer) for answer in await asyncio.gather(*together)] == [Entered, Entered]
    gate.leave("pair", ok=True, usage=None)
    assert gate.controller.class_of("pair") == "rlvr"
    gate.leave("pair", ok=True, usage=None)
    assert is_empty(gate)


async def test_refusing_all_empties_the_queues() -> None:
    gate = gate_of()
    await enter(gate, "first")
    waiting = [asyncio.create_task(gate.enter(Arrival(f"s{i}", "rlvr"))) for i in range(3)]
    await asyncio.sleep(0)

    gate.shut(Refusal(Outcome.SHUTTING_DOWN, "bye"))
    gate.leave("first", ok=True, usage=None)

    assert [type(answer) for answer in await asyncio.gather(*waiting)] == [Refusal] * 3
    assert is_empty(gate)


async def test_who_would_have_to_wait_after_the_gate_was_shut_is_refused_at_once() -> None:
    gate = gate_of()
    await enter(gate, "first")
    gate.shut(Refusal(Outcome.SHUTTING_DOWN, "bye"))

    late = await gate.enter(Arrival("late", "rlvr"))
    gate.engine_failed("e0")
    stalled = await gate.enter(Arrival("first", "rlvr"))
    moved = await gate.reroute("first", avoid=())

    assert [type(answer) for answer in (late, stalled, moved)] == [Refusal] * 3
    gate.leave("first", ok=False, usage=None)
    assert is_empty(gate)


async def test_refusing_a_resident_session_that_waits_for_an_engine_ends_its_request() -> None:
    gate = gate_of()
    await enter(gate, "first")
    gate.engine_failed("e0")
    moved = asyncio.create_task(gate.reroute("first", avoid=()))
    again = asyncio.create_task(gate.enter(Arrival("first", "rlvr")))
    await asyncio.sleep(0)

    gate.shut(Refusal(Outcome.SHUTTING_DOWN, "bye"))

    assert isinstance(await moved, Refusal)
    assert isinstance(await again, Refusal)
    gate.leave("first", ok=False, usage=None)
    assert is_empty(gate)


@pytest.mark.parametrize("seed", range(8))
async def test_cancellation_anywhere_leaves_nothing_behind(seed: int) -> None:
    gate, rng = gate_of(cap=3), Random(seed)
    most = 0

    async def visit(number: int) -> None:
        nonlocal most
        session = f"s{number // 2}"
        answer = await gate.enter(Arrival(session, "rlhf" if number % 8 < 2 else "rlvr"))
        assert isinstance(answer, Entered)
        try:
            most = max(most, gate.controller.table.by_class["rlvr"])
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if rng.random() < 0.2:
                gate.engine_failed("e0")
                await gate.reroute(session, avoid=())
        finally:
            gate.leave(session, ok=rng.random() < 0.8, usage=None)

    tasks = [asyncio.create_task(visit(number)) for number in range(120)]
    for _ in range(200):
        await asyncio.sleep(0)
        rng.choice(tasks).cancel()
        gate.controller.fleet.answered("e0")
        gate.tick()
    while not all(task.done() for task in tasks):
        gate.controller.fleet.answered("e0")
        gate.tick()
        await asyncio.sleep(0)

    failures = [t.exception() for t in tasks if not t.cancelled() and t.exception() is not None]
    assert failures == []
    assert most <= 3
    gate.controller.tick(asyncio.get_running_loop().time() + 1e6)
    assert is_empty(gate)


async def test_who_waits_longer_than_the_class_allows_is_refused_as_it_says() -> None:
    clock = Clock()
    overload = {"maxWaitSeconds": 30, "status": 529, "retryAfterSeconds": 7}
    gate = gate_of(clock=clock, workloads=[{"name": "rlvr", "share": 1.0, "overload": overload}])
    await enter(gate, "first")
    late = [asyncio.create_task(gate.enter(Arrival("late", "rlvr"))) for _ in range(2)]
    await asyncio.sleep(0)
    clock.now = 20.0
    patient = asyncio.create_task(gate.enter(Arrival("patient", "rlvr", single=True)))
    await asyncio.sleep(0)
    gate.tick()
    assert gate.waiting == 3
    clock.now = 30.0
    gate.tick()

    for refusal in await asyncio.gather(*late):
        assert isinstance(refusal, Refusal)
        assert (refusal.outcome, refusal.http_status) == (Outcome.WAITED_LONG, 529)
        assert (refusal.retryable, refusal.retry_after_seconds) == (True, 7)
        assert "rlvr" in refusal.message
    gate.leave("first", ok=True, usage=None)
    assert isinstance(await patient, Entered)
    gate.leave("patient", ok=True, usage=None)
    assert is_empty(gate)


async def test_a_parked_session_waits_for_its_next_turn_and_goes_first() -> None:
    clock = Clock()
    gate = gate_of(clock=clock, parkIdleSeconds=5)
    await gate.enter(Arrival("agent", "agentic"))
    gate.leave("agent", ok=True, usage=Usage(160, 160))
    new = [asyncio.create_task(gate.enter(Arrival(f"new{i}", "agentic", single=True))) for i in range(2)]
    await asyncio.sleep(0)
    clock.now = 5.0
    gate.tick()
    assert isinstance(await new[0], Entered)
    again = asyncio.create_task(gate.enter(Arrival("agent", "agentic")))
    await asyncio.sleep(0)
    assert not again.done()

    gate.leave("new0", ok=True, usage=None)
    assert isinstance(await again, Entered)
    assert not new[1].done()
    gate.leave("agent", ok=True, usage=None)
    assert gate.finish("agent")
    assert isinstance(await new[1], Entered)
    gate.leave("new1", ok=True, usage=None)
    assert is_empty(gate)


async def test_a_parked_session_whose_turn_is_cancelled_stays_parked() -> None:
    clock = Clock()
    gate = gate_of(clock=clock, parkIdleSeconds=5)
    await gate.enter(Arrival("agent", "agentic"))
    gate.leave("agent", ok=True, usage=Usage(160, 160))
    new = asyncio.create_task(gate.enter(Arrival("new", "agentic", single=True)))
    await asyncio.sleep(0)
    clock.now = 5.0
    gate.tick()
    await new
    again = asyncio.create_task(gate.enter(Arrival("agent", "agentic")))
    await asyncio.sleep(0)
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again

    assert gate.waiting == 0
    assert gate.controller.table.parked("agent") is not None
    gate.leave("new", ok=True, usage=None)
    clock.now = 1000.0
    gate.tick()
    assert is_empty(gate)


async def test_requests_of_a_class_that_is_taken_out_are_told_which_there_are() -> None:
    gate = gate_of()
    await enter(gate, "first")
    waiting = asyncio.create_task(gate.enter(Arrival("waits", "rlvr")))
    await asyncio.sleep(0)
    pool = pool_object(
        {"e0": "http://e0"}, caps={"other": 1}, workloads=[{"name": "other", "share": 1.0}], revision=2
    )
    pool["metadata"]["generation"] = 2
    gate.apply(parse_pool(pool), {})

    refusal = await waiting
    assert isinstance(refusal, Refusal)
    assert refusal.outcome is Outcome.CLASS_UNKNOWN
    assert "other" in refusal.message
    gate.leave("first", ok=True, usage=None)
    assert is_empty(gate)
