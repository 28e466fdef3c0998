"""Requests that any engine answers: bodies are bounded, and whoever drains waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rolloutpool_router import anywhere, bodies
from rolloutpool_router.testing import FakeEngine, pool_object, running_router, until
from rolloutpool_router.wire.testing import raw_client

CAPS = {"rlvr": 4, "rlhf": 4, "agentic": 4}
BODY: dict[str, Any] = {"model": "m", "prompt": "hello"}
LIMIT = anywhere.READ_BYTES + 1_000_000


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def spaces(count: int) -> AsyncIterator[bytes]:
    """A body of so many pieces, and no announced length."""
    for _ in range(count):
        yield b" " * 100_000
    yield b"{}"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions/render"])
async def test_a_body_without_length_is_bounded(
    path: str, client: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_BODY_BYTES", LIMIT)
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        async with client.post(router.url + path, data=spaces(30)) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (413, "too_large")
        assert engine.seen == []
        async with client.post(router.url + path, data=spaces(15)) as answer:
            assert answer.status == 200
        assert len(engine.seen[0].raw) == 1_500_002
        assert (router.router.budget.held, router.router.open_requests) == (0, 0)


async def test_a_body_that_is_announced_as_too_long_is_not_read(tmp_path: Path) -> None:
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
        raw_client(int(router.url.rpartition(":")[2])) as client,
    ):
        length = bodies.MAX_BODY_BYTES + 1
        await client.send(b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % length)
        assert (await client.answer())[0] == 413
        assert engine.seen == []


async def test_whoever_drains_waits_for_them(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with FakeEngine().running() as engine:
        pool = pool_object({"e0": engine.url}, caps=CAPS)
        async with running_router(tmp_path / "pool.json", pool) as router:
            engine.go.clear()
            asking = asyncio.create_task(client.post(router.url + "/tokenize", json=BODY))
            await until(lambda: engine.in_flight == 1)
            assert router.router.open_requests == 1
            router.router.draining = True
            router.router.settle()
            assert not router.router.quiet.is_set()
            engine.go.set()
            assert (await asking).status == 200
            await until(router.router.quiet.is_set)


async def test_without_an_engine_the_answer_says_so(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with (
        running_router(tmp_path / "pool.json", pool_object({})) as router,
        client.post(router.url + "/tokenize", json=BODY) as answer,
    ):
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (503, "no_engine")
        assert answer.headers["x-should-retry"] == "true"
