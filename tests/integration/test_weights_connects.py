"""Pauses that come while a connection to an engine is being made: nothing is sent after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rolloutpool_router import comments
from rolloutpool_router.testing import FakeEngine, pool_object, running_router, until
from rolloutpool_router.weights.testing import FakeTrainable, running_pool
from rolloutpool_testkit.connects import hold_connects

CAPS = {"rlvr": 4, "rlhf": 4, "agentic": 4}
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello " * 100}]}
RLVR = {"X-Rollout-Class": "rlvr"}


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_a_request_that_connects_while_the_pool_is_paused_waits_and_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeTrainable().running() as engine, running_pool(tmp_path, {"e-0": engine.url}) as pool:
        router = pool.router.router
        held = hold_connects(monkeypatch, router.upstream, engine.url)
        generating = [asyncio.create_task(pool.generate(f"s-{number}")) for number in range(3)]
        await until(lambda: router.open_requests == 3 and held.begun >= 3)
        assert (await pool.call("/pause", mode="keep"))[0] == 200
        held.go.set()
        await until(lambda: router.pause.waiting == 3)
        assert engine.arrived == 0
        assert len(router.gate.controller.table) == 3, "they keep their permits"
        assert (await pool.call("/resume"))[0] == 200
        assert [status for status, _ in await asyncio.gather(*generating)] == [200] * 3
        assert engine.arrived == 3
        residents = router.gate.controller.table
        assert all(known.in_flight == 0 for number in range(3) if (known := residents.get(f"s-{number}")))


@pytest.mark.parametrize("leg", ["p", "d"])
async def test_a_pause_that_came_and_went_makes_kv_void(
    leg: str, client: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeEngine().running() as prefill, FakeEngine().running() as decode:
        urls = {"d": decode.url, "p": prefill.url}
        pool = pool_object(urls, caps=CAPS, roles={"d": "decode", "p": "prefill"})
        async with running_router(tmp_path / "pool.json", pool) as running:
            held = hold_connects(monkeypatch, running.router.upstream, urls[leg])
            asking = asyncio.create_task(client.post(running.url + CHAT, json=BODY, headers=RLVR))
            await until(lambda: held.begun and (leg == "p" or prefill.seen))
            running.router.pause.close()
            running.router.pause.open()
            held.go.set()
            assert (await asking).status == 200
            (only,) = decode.seen
            # The second time the prefill engine computes it with the new weights.
            before, now = {"p": (0, False), "d": (2, True)}[leg]
            assert (len(prefill.seen), "kv_transfer_params" in only.body) == (before, now)


async def test_a_stream_that_entered_is_told_when_the_router_shuts_down(
    client: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comments, "PERIOD_SECONDS", 0.01)
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as running,
    ):
        router = running.router
        held = hold_connects(monkeypatch, router.upstream, engine.url)
        body = BODY | {"stream": True}
        asking = asyncio.create_task(client.post(running.url + CHAT, json=body, headers=RLVR))
        await until(lambda: held.begun and router.open_requests)
        router.pause.close()
        held.go.set()
        async with await asking as answer:
            assert await answer.content.readuntil(b"\n\n") == comments.WEIGHTS
            router.turn_away()
            said = await answer.text()
        assert '"code":"shutting_down"' in said
        assert said.endswith("data: [DONE]\n\n")
        assert engine.seen == []
