"""A pause that waits for other calls, or that fails: the gate is closed while engines are sent one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from rolloutpool_router.testing import pool_object, until
from rolloutpool_router.weights.sync import MAX_WAITING_CALLS
from rolloutpool_router.weights.testing import CAPS, FakeTrainable, Pool, running_pool


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Pool, FakeTrainable, FakeTrainable]]:
    """A router before two engines."""
    async with (
        FakeTrainable().running() as one,
        FakeTrainable().running() as other,
        running_pool(folder, {"e-0": one.url, "e-1": other.url}) as pool,
    ):
        yield pool, one, other


def hold(engine: FakeTrainable, path: str) -> asyncio.Event:
    """Let the engine answer calls of a path only once the event is set."""
    return engine.go.setdefault(path, asyncio.Event())


async def held_at(engine: FakeTrainable, path: str) -> None:
    """Wait until the engine has such a call."""
    await until(lambda: path in engine.paths())


async def looked_at(engine: FakeTrainable) -> asyncio.Event:
    """Wait until the router asks whether the engine is paused; no answer comes until the event is set."""
    answer = hold(engine, "/is_paused")
    before = engine.asked["/is_paused"]
    await until(lambda: engine.asked["/is_paused"] > before)
    return answer


async def test_a_look_under_way_does_not_open_the_gate_for_a_pause_behind_it(tmp_path: Path) -> None:
    async with two(tmp_path) as (pool, one, other):
        gate, pauses = pool.sync.gate, [hold(engine, "/pause") for engine in (one, other)]
        look = await looked_at(one)
        pausing = asyncio.create_task(pool.call("/pause", mode="wait"))
        await until(lambda: not gate.is_open)
        epoch = gate.epoch
        generating = asyncio.create_task(pool.generate())
        await until(lambda: gate.waiting == 1)
        look.set()
        await held_at(one, "/pause")
        await held_at(other, "/pause")
        assert (gate.is_open, gate.epoch) == (False, epoch)
        assert pool.sync.describe()["pausedBy"] == "pause"
        for pause in pauses:
            pause.set()
        assert (await pausing)[0] == 200
        assert one.arrived + other.arrived == 0
        assert (await pool.call("/resume"))[0] == 200
        assert (await generating)[0] == 200


async def test_the_gate_is_closed_for_a_pause_behind_a_resume(tmp_path: Path) -> None:
    async with two(tmp_path) as (pool, one, other):
        gate = pool.sync.gate
        assert (await pool.call("/pause"))[0] == 200
        resume = hold(one, "/resume")
        resuming = asyncio.create_task(pool.call("/resume"))
        await held_at(one, "/resume")
        other.faults["/pause"], pause = 500, hold(one, "/pause")
        pausing = asyncio.create_task(pool.call("/pause"))
        await until(lambda: pool.sync.waiting == 1)
        resume.set()
        assert (await resuming)[0] == 200
        await until(lambda: one.asked["/pause"] == 2)
        assert not gate.is_open
        pause.set()
        # It fails, and there is no other pause any more: the engine that carried it out is resumed.
        status, body = await pausing
        assert (status, [item["engine"] for item in body["undone"]]) == (500, ["e-0"])
        assert (gate.is_open, one.paused) == (True, False)


async def test_a_pause_that_fails_does_not_open_the_gate_for_the_next(tmp_path: Path) -> None:
    async with two(tmp_path) as (pool, one, other):
        gate, pauses = pool.sync.gate, [hold(engine, "/pause") for engine in (one, other)]
        other.faults["/pause"] = 500
        first = asyncio.create_task(pool.call("/pause"))
        await held_at(other, "/pause")
        second = asyncio.create_task(pool.call("/sleep"))
        await until(lambda: pool.sync.waiting == 1)
        epoch, sleep = gate.epoch, hold(one, "/sleep")
        for pause in pauses:
            pause.set()
        assert (await first)[0] == 500
        await held_at(one, "/sleep")
        assert not gate.is_open
        sleep.set()
        assert (await second)[0] == 200
        assert (gate.is_open, gate.epoch) == (False, epoch)
        assert pool.sync.describe()["pausedBy"] == "sleep"


async def test_a_pause_that_may_not_wait_leaves_the_gate_open(tmp_path: Path) -> None:
    async with two(tmp_path) as (pool, one, _):
        start = hold(one, "/start_weight_update")
        updating = [asyncio.create_task(pool.call("/start_weight_update"))]
        await held_at(one, "/start_weight_update")
        updating += [asyncio.create_task(pool.call("/start_weight_update")) for _ in range(MAX_WAITING_CALLS)]
        await until(lambda: pool.sync.waiting == MAX_WAITING_CALLS)
        assert (await pool.call("/pause"))[0] == 503
        assert pool.sync.gate.is_open
        assert (await pool.generate())[0] == 200
        start.set()
        assert [status for status, _ in await asyncio.gather(*updating)] == [200] * len(updating)


async def test_an_engine_that_joins_is_barred_at_once(tmp_path: Path) -> None:
    """However long the calls and looks take that are under way."""
    async with two(tmp_path) as (pool, one, other), FakeTrainable().running() as late:
        for path in ("/start_weight_update", "/update_weights", "/finish_weight_update"):
            assert (await pool.call(path, {}))[0] == 200
        look = await looked_at(one)
        urls = {"e-0": one.url, "e-1": other.url, "e-2": late.url}
        pool.router.write(pool_object(urls, caps=CAPS, revision=2))
        fleet = pool.router.router.gate.controller.fleet
        await until(lambda: "e-2" in fleet.engines)
        assert pool.sync.stale().keys() == {"e-2"}
        answers = await asyncio.gather(*(pool.generate(f"s-{number}") for number in range(6)))
        assert [status for status, _ in answers] == [200] * 6
        assert (late.arrived, one.arrived + other.arrived) == (0, 6)
        look.set()


async def test_a_token_of_any_bytes_is_refused(tmp_path: Path) -> None:
    async with two(tmp_path) as (pool, one, _):
        host = urlsplit(pool.url)
        reader, writer = await asyncio.open_connection(host.hostname, host.port)
        writer.write(b"GET /weights HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert one.calls == []
