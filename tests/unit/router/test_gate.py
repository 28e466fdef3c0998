"""The gate: whoever is cancelled, at whatever moment, leaves no permit and no ticket behind."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.controller import AdmissionController, Arrival, Entered
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.gate import Gate
from rolloutpool_router.testing import pool_object


def gate_of(cap: int = 1) -> Gate:
    gate = Gate(AdmissionController(Random(1)), clock=asyncio.get_running_loop().time)
    pool = pool_object({"e0": "http://e0"}, caps={"rlvr": cap, "rlhf": cap, "agentic": cap})
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

    gate.refuse_all(Refusal(Outcome.SHUTTING_DOWN, "bye"))
    gate.leave("first", ok=True, usage=None)

    assert [type(answer) for answer in await asyncio.gather(*waiting)] == [Refusal] * 3
    assert is_empty(gate)


async def test_refusing_a_resident_session_that_waits_for_an_engine_ends_its_request() -> None:
    gate = gate_of()
    await enter(gate, "first")
    gate.engine_failed("e0")
    moved = asyncio.create_task(gate.reroute("first", avoid=()))
    again = asyncio.create_task(gate.enter(Arrival("first", "rlvr")))
    await asyncio.sleep(0)

    gate.refuse_all(Refusal(Outcome.SHUTTING_DOWN, "bye"))

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
    gate.controller.expire(asyncio.get_running_loop().time() + 1e6)
    assert is_empty(gate)
