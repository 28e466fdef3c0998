"""Streams that waited and got comments: what goes wrong then is their last event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rolloutpool_router import comments
from rolloutpool_router.testing import Answer, FakeEngine, pool_object, running_router

CAPS = {"rlvr": 4, "rlhf": 4, "agentic": 4}
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
RLVR = {"X-Rollout-Class": "rlvr"}


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def breaks_off(said: bytes | None, *, status: int = 200) -> Answer:
    """An engine that says this of an answer and then goes away; None: not even the head."""

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Type": "text/event-stream"})
        if said is not None:
            await response.prepare(request)
            await response.write(said)
            await asyncio.sleep(0.01)  # or nothing of it would leave
        assert request.transport is not None
        request.transport.abort()
        return response

    return answer


async def ask(client: aiohttp.ClientSession, folder: Path, answer: Answer) -> bytes:
    """The whole stream of a request that waits for an engine with such an answer, and gets a comment."""
    async with (
        FakeEngine(answer=answer).running() as engine,
        running_router(folder / "pool.json", pool_object({}, caps=CAPS)) as router,
        client.post(router.url + CHAT, json=BODY, headers=RLVR) as stream,
    ):
        said = await stream.content.readuntil(b"\n\n")
        router.write(pool_object({"e0": engine.url}, caps=CAPS, revision=2))
        try:
            async for piece in stream.content.iter_any():
                said += piece
        finally:
            assert said.startswith(comments.ROOM)
        return said.replace(comments.ROOM, b"")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(breaks_off(None), id="no-answer"),
        pytest.param(breaks_off(b""), id="head-alone"),
        pytest.param(breaks_off(b"half an error", status=500), id="half-an-error"),
    ],
)
async def test_an_engine_that_goes_before_the_first_token(
    answer: Answer, client: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comments, "PERIOD_SECONDS", 0.01)
    said = await ask(client, tmp_path, answer)
    assert said.startswith(b'data: {"error":{"message":"engine e0 went away')
    assert b'"code":"engine_lost"' in said
    assert said.endswith(b"}}\n\ndata: [DONE]\n\n")
    assert said.count(b"data: ") == 2


async def test_an_engine_that_goes_after_it(
    client: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comments, "PERIOD_SECONDS", 0.01)
    with pytest.raises(aiohttp.ClientPayloadError):
        await ask(client, tmp_path, breaks_off(b"data: 1\n\n"))


async def test_an_answer_that_was_passed_on_from_its_head_is_broken_off(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine(answer=breaks_off(b"")).running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
        client.post(router.url + CHAT, json=BODY, headers=RLVR) as answer,
    ):
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
