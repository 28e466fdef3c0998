"""Engines judged by their real work: those that answer every probe and fail, break off, or fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rolloutpool_router import server
from rolloutpool_router.core import health
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.health import EJECT_FAILURES
from rolloutpool_router.core.stalls import StallBounds
from rolloutpool_router.testing import Answer, FakeEngine, RunningRouter, pool_object, running_router, until

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
CAPS = {"rlvr": 99, "rlhf": 99, "agentic": 99}
numbers = count()
"""Samples of one prompt would go to one engine."""


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials and looks come at once."""
    monkeypatch.setattr(health, "FIRST_EJECTION_SECONDS", 0.05)
    monkeypatch.setattr(health, "MAX_EJECTION_SECONDS", 0.2)
    monkeypatch.setattr(server, "STALL_LOOK_SECONDS", 0.05)


def fleet_of(router: RunningRouter) -> Fleet:
    return router.router.gate.controller.fleet


async def ask(client: aiohttp.ClientSession, router: RunningRouter, **more: Any) -> tuple[int, str]:
    """A session of one request: status, and the engine that answered; status 0: it broke off."""
    headers = {"X-Rollout-Class": "rlvr"}
    prompt = {"messages": [{"role": "user", "content": f"question {next(numbers)}"}]}
    try:
        async with client.post(router.url + CHAT, json=BODY | prompt | more, headers=headers) as answer:
            await answer.read()
            return answer.status, answer.headers.get("X-RolloutPool-Engine", "")
    except aiohttp.ClientError:
        return 0, ""


async def fail(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "CUDA error", "code": 500}}, status=500)


async def reset(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def garbage(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"\x00garbage\r\n\r\n")
    request.transport.close()
    return web.Response()


async def break_off(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"data: {}\n\n")
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("broken", [fail, reset, garbage, break_off])
async def test_one_that_answers_probes_and_fails_every_generation_stays_out_until_one_succeeds(
    client: aiohttp.ClientSession, tmp_path: Path, broken: Answer
) -> None:
    async with FakeEngine(answer=broken).running() as e0, FakeEngine().running() as e1:
        good, pool = e1.answer, pool_object({"e0": e0.url, "e1": e1.url}, caps=CAPS)
        async with running_router(tmp_path / "pool.json", pool) as router:
            fleet = fleet_of(router)
            while not fleet.ejections["e0"]:
                await ask(client, router)
            assert len(e0.seen) == EJECT_FAILURES
            failed = 0
            for _ in range(100):
                status, engine = await ask(client, router)
                failed += (status, engine) != (200, "e1")
            assert failed == len(e0.seen) - EJECT_FAILURES, "none but trials"
            assert failed < 25

            e0.answer = good
            await until(lambda: fleet.reachable("e0", router.router.clock()))
            while (await ask(client, router))[1] != "e0":
                pass
            assert fleet.is_up("e0", router.router.clock())
            assert len(router.router.gate.controller.table) == 0


async def test_with_all_failing_requests_are_tried_and_not_held(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with FakeEngine(answer=fail).running() as e0, FakeEngine(answer=fail).running() as e1:
        pool = pool_object({"e0": e0.url, "e1": e1.url}, caps=CAPS)
        async with running_router(tmp_path / "pool.json", pool) as router:
            for _ in range(40):
                assert (await ask(client, router))[0] == 500
            assert len(e0.seen) + len(e1.seen) == 40
            assert len(router.router.gate.controller.table) == 0


@pytest.mark.usefixtures("quick")
async def test_a_stream_that_stops_after_the_head_is_broken_off_and_others_go_on(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async def stop(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    async def stream(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while not done.is_set():
            await response.write(b"data: {}\n\n")
            await asyncio.sleep(0.02)
        return response

    done = asyncio.Event()
    async with FakeEngine(answer=stop).running() as e0, FakeEngine(answer=stream).running() as e1:
        pool = pool_object({"e0": e0.url, "e1": e1.url}, caps=CAPS)
        async with running_router(tmp_path / "pool.json", pool) as router:
            fleet = fleet_of(router)
            fleet.stalls.bounds = StallBounds(first_token_seconds=0.3, next_token_seconds=60)
            asked = [asyncio.create_task(ask(client, router, stream=True)) for _ in range(8)]
            await until(lambda: e0.in_flight and e1.in_flight and e0.in_flight + e1.in_flight == 8)
            stuck = e0.in_flight
            await until(lambda: sum(task.done() for task in asked) == stuck)
            assert fleet.ejections["e0"] == 1
            assert not fleet.ejections["e1"]
            await until(lambda: e0.aborted == stuck)
            done.set()
            answers = await asyncio.gather(*asked)
            assert answers.count((200, "e1")) == 8 - stuck
            assert {status for status, _ in answers} <= {0, 200}
            await until(lambda: len(router.router.gate.controller.table) == 0)


@pytest.mark.usefixtures("quick")
async def test_engines_that_hang_hold_nobody_up_while_others_serve(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with FakeEngine().running() as e0, FakeEngine().running() as e1:
        e0.go.clear()
        e1.go.clear()
        pool = pool_object({"e0": e0.url, "e1": e1.url}, caps=CAPS)
        async with running_router(tmp_path / "pool.json", pool) as router:
            asked = [asyncio.create_task(ask(client, router)) for _ in range(8)]
            await until(lambda: e0.in_flight and e1.in_flight and e0.in_flight + e1.in_flight == 8)
            fleet = fleet_of(router)
            fleet.stalls.bounds = StallBounds(answer_seconds=0.2)
            e1.go.set()
            while not fleet.ejections["e0"]:
                await asyncio.wait_for(ask(client, router), 5)
            for _ in range(20):
                assert await ask(client, router) == (200, "e1")
            e0.go.set()
            assert {status for status, _ in await asyncio.gather(*asked)} == {200}
            assert fleet.is_up("e0", router.router.clock()), "they were long, not lost"


async def test_an_engine_that_drains_keeps_its_sessions_and_gets_no_new_ones(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with FakeEngine().running() as e0, FakeEngine().running() as e1:
        pool = pool_object({"e0": e0.url}, caps=CAPS)
        async with running_router(tmp_path / "pool.json", pool) as router:
            agent = {"X-Session-ID": "agent-1"}
            async with client.post(router.url + CHAT, json=BODY, headers=agent) as answer:
                assert answer.headers["X-RolloutPool-Engine"] == "e0"
            both = pool_object({"e0": e0.url, "e1": e1.url}, caps=CAPS, revision=2)
            both["status"]["endpoints"]["admin"][0] |= {"draining": True, "ready": False}
            router.write(both)
            await until(lambda: len(fleet_of(router).engines) == 2)
            for _ in range(10):
                assert await ask(client, router) == (200, "e1")
            async with client.post(router.url + CHAT, json=BODY, headers=agent) as answer:
                assert answer.headers["X-RolloutPool-Engine"] == "e0"
