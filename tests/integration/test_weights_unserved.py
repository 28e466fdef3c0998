"""What the operator is told while requests wait for weights: in a pause, or after an update that failed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_router.testing import until
from rolloutpool_router.weights.testing import FakeTrainable, Pool, running_pool

BODIES: dict[str, Any] = {
    "/start_weight_update": None,
    "/update_weights": {"update_info": {"names": ["w"]}},
    "/finish_weight_update": {"weight_version": "2"},
}


async def snapshot(pool: Pool) -> AdmissionSnapshot:
    """What the operator reads, with the weights that a router with the second port adds."""
    async with pool.client.get(f"{pool.router.url}/admission/snapshot") as answer:
        found = AdmissionSnapshot.model_validate(await answer.json())
    return found.model_copy(update={"weights": pool.sync.snapshot()})


async def turn(pool: Pool, session: str) -> int:
    """Status of a turn of a session that goes on after it."""
    headers = {"X-Rollout-Class": "agentic", "X-Session-ID": session}
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    url = f"{pool.router.url}/v1/chat/completions"
    async with pool.client.post(url, json=body, headers=headers) as answer:
        await answer.read()
        return answer.status


def held(found: AdmissionSnapshot) -> dict[str, int]:
    return {item.name: item.held for item in found.classes if item.held}


async def test_requests_that_wait_for_the_end_of_a_pause_are_counted(tmp_path: Path) -> None:
    async with (
        FakeTrainable().running() as engine,
        running_pool(tmp_path, {"e-0": engine.url}) as pool,
    ):
        await pool.generate("resident")
        await pool.call("/pause")
        waiting = [asyncio.create_task(pool.generate(session)) for session in ("resident", "s", "t")]
        await until(lambda: pool.router.router.pause.waiting == 3)
        assert held(await snapshot(pool)) == {"rlvr": 3}
        await pool.call("/resume")
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200, 200, 200]
        assert held(await snapshot(pool)) == {}
        assert pool.router.router.pause.held == {}


async def test_an_update_that_failed_everywhere_is_told_until_a_whole_one(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeTrainable().running()) for _ in range(2)]
        urls = {f"e-{number}": engine.url for number, engine in enumerate(engines)}
        pool = await stack.enter_async_context(running_pool(tmp_path, urls))
        assert await turn(pool, "resident") == 200
        assert pool.sync.snapshot().unserved_since is None
        for engine in engines:
            engine.faults["/update_weights"] = 500
        await pool.call("/start_weight_update")
        assert (await pool.call("/update_weights", BODIES["/update_weights"]))[0] == 500

        waiting = [asyncio.create_task(turn(pool, session)) for session in ("resident", "new")]
        await until(lambda: pool.router.router.gate.waiting == 2)
        found = await snapshot(pool)
        weights = found.weights
        assert weights is not None
        assert weights.unserved_since is not None
        assert abs(found.taken_at - weights.unserved_since) < 60
        assert weights.stale_engines == ["e-0", "e-1"]
        assert weights.stale_because.startswith("failed at /update_weights: status 500")
        assert held(found) == {"agentic": 1}, "the session that is in; the new one waits to enter"
        assert [item.waiting for item in found.classes if item.name == "agentic"] == [1]
        assert not any(engine.healthy for engine in found.engines)

        for engine in engines:
            engine.faults.clear()
        for path, body in BODIES.items():
            assert (await pool.call(path, body))[0] == 200
        assert await asyncio.gather(*waiting) == [200, 200]
        told = pool.sync.snapshot()
        assert (told.unserved_since, told.stale_because, told.version) == (None, "", "2")


async def test_one_engine_without_the_weights_stops_nobody(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeTrainable().running()) for _ in range(2)]
        urls = {f"e-{number}": engine.url for number, engine in enumerate(engines)}
        pool = await stack.enter_async_context(running_pool(tmp_path, urls))
        engines[0].faults["/update_weights"] = 500
        for path, body in BODIES.items():
            await pool.call(path, body)
        told = pool.sync.snapshot()
        assert (told.stale_engines, told.unserved_since) == (["e-0"], None)


async def test_a_prefill_engine_with_the_weights_serves_nobody(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        prefill, decode = [await stack.enter_async_context(FakeTrainable().running()) for _ in range(2)]
        roles = {"p-0": "prefill", "d-0": "decode"}
        urls = {"p-0": prefill.url, "d-0": decode.url}
        pool = await stack.enter_async_context(running_pool(tmp_path, urls, roles=roles))
        decode.faults["/update_weights"] = 500
        for path, body in BODIES.items():
            await pool.call(path, body)
        told = pool.sync.snapshot()
        assert told.stale_engines == ["d-0"]
        assert told.unserved_since is not None
