"""The gate over real sockets: caps hold, and permits come back whatever becomes of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rolloutpool_router import comments, testing
from rolloutpool_router.testing import (
    FakeEngine,
    RunningRouter,
    chat_answer,
    running_router,
    until,
)
from rolloutpool_sim.testing import running_server

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RLVR = {"X-Rollout-Class": "rlvr"}
CAPS = {"rlvr": 1, "rlhf": 1, "agentic": 1}
pool_object = partial(testing.pool_object, admission={"lending": False, "mixtureDebt": False})
"""Caps bind, whoever waits."""


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def post(
    client: aiohttp.ClientSession, router: RunningRouter, *, body: dict[str, Any] = BODY, **headers: str
) -> int:
    named = RLVR | {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.post(router.url + CHAT, json=body, headers=named) as answer:
        await answer.read()
        return answer.status


def residents(router: RunningRouter) -> int:
    return len(router.router.gate.controller.table)


def waiting(router: RunningRouter, class_name: str = "rlvr") -> int:
    return router.router.gate.controller.classes[class_name].queue.requests


async def test_200_requests_at_once_never_exceed_the_caps(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.002)
        return await chat_answer(request, body)

    async with (
        FakeEngine(answer=slow).running() as e0,
        FakeEngine(answer=slow).running() as e1,
        running_router(
            tmp_path / "pool.json",
            pool_object({"e0": e0.url, "e1": e1.url}, caps={"rlvr": 5, "rlhf": 3, "agentic": 2}),
        ) as router,
    ):
        classes = ["rlvr", "rlhf", "agentic", "rlvr"] * 50
        statuses = await asyncio.gather(*(post(client, router, X_Rollout_Class=name) for name in classes))

        assert set(statuses) == {200}
        assert (e0.most_in_flight, e1.most_in_flight) == (10, 10)
        assert len(e0.seen) + len(e1.seen) == 200
        assert (residents(router), waiting(router)) == (0, 0)


async def test_emulated_engines_hold_what_the_caps_allow(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    caps = {"rlvr": 3, "rlhf": 2, "agentic": 1}
    flags = ("--served-model-name", "m", "--num-gpu-blocks-override", "512", "--max-model-len", "2048")
    async with (
        running_server(*flags, time_scale=500.0) as server,
        running_router(tmp_path / "pool.json", pool_object({"e0": server.url}, caps=caps)) as router,
    ):
        body = BODY | {"max_tokens": 20, "ignore_eos": True}
        tasks = [asyncio.create_task(post(client, router, body=body)) for _ in range(60)]
        most = 0
        while not all(task.done() for task in tasks):
            engine = server.emulator.engine
            most = max(most, engine.running + engine.waiting)
            await asyncio.sleep(0.001)

        assert {task.result() for task in tasks} == {200}
        assert 1 <= most <= 3
        consumed = router.router.gate.controller.classes["rlvr"]
        assert consumed.counters.finished == 60
        assert residents(router) == 0


async def test_raising_a_cap_lets_the_waiting_in_and_lowering_it_evicts_nobody(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        engine.go.clear()
        tasks = [asyncio.create_task(post(client, router)) for _ in range(6)]
        await until(lambda: waiting(router) == 5)
        router.write(pool_object({"e0": engine.url}, caps=CAPS | {"rlvr": 4}, revision=2))
        await until(lambda: engine.in_flight == 4)
        router.write(pool_object({"e0": engine.url}, caps=CAPS | {"rlvr": 1}, revision=3))
        await until(
            lambda: router.router.gate.controller.view and router.router.gate.controller.view.revision == 3
        )
        assert (engine.in_flight, waiting(router)) == (4, 2)

        engine.go.set()
        assert await asyncio.gather(*tasks) == [200] * 6
        assert engine.most_in_flight == 4


async def upstream_error(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "no"}}, status=500)


async def broken_stream(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"data: {}\n\n")
    assert request.transport is not None
    request.transport.abort()
    return response


async def no_answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        pytest.param(chat_answer, "served", id="answered"),
        pytest.param(upstream_error, "engine_refused", id="engine-error"),
        pytest.param(broken_stream, "engine_lost", id="stream-breaks-off"),
        pytest.param(no_answer, "engine_lost", id="engine-hangs-up"),
    ],
)
async def test_a_permit_comes_back_after(
    answer: Any, outcome: str, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine(answer=answer).running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        for _ in range(3):
            try:
                status = await post(client, router)
            except aiohttp.ClientPayloadError:
                status = 0
            assert status == {"served": 200, "engine_refused": 500}.get(
                outcome, 502 if answer is no_answer else 0
            )

        await until(lambda: residents(router) == 0)
        assert len(engine.seen) == 3
        text = (await router.router.metrics.exposition()).decode()
        assert f'rolloutpool_router_requests_total{{class="rlvr",outcome="{outcome}"}} 3.0' in text


async def test_a_client_that_leaves_the_queue_is_forgotten(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        engine.go.clear()
        tasks = [asyncio.create_task(post(client, router)) for _ in range(5)]
        await until(lambda: waiting(router) == 4)
        for task in tasks[1:]:
            if task.cancel():
                break
        await until(lambda: waiting(router) == 3)
        engine.go.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert sum(result == 200 for result in results) == 4
        assert (residents(router), waiting(router), len(engine.seen)) == (0, 0, 4)


async def test_a_client_that_hangs_up_stops_its_generation(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async def endless(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"data: {}\n\n")
            await asyncio.sleep(0.005)

    async with (
        FakeEngine(answer=endless).running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        async with client.post(router.url + CHAT, json=BODY, headers=RLVR) as answer:
            await answer.content.readany()
            assert (engine.in_flight, residents(router)) == (1, 1)

        await until(lambda: residents(router) == 0 and engine.in_flight == 0)
        assert engine.aborted == 1
        assert 'outcome="client_gone"} 1.0' in (await router.router.metrics.exposition()).decode()


async def test_a_client_that_hangs_up_before_the_answer_starts(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        engine.go.clear()
        task = asyncio.create_task(post(client, router))
        await until(lambda: engine.in_flight == 1)
        task.cancel()
        await until(lambda: residents(router) == 0 and engine.aborted == 1)


async def test_an_idle_session_expires(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    workloads = [{"name": "rlvr", "share": 1.0, "sessionIdleSeconds": 0.05}]
    pool = pool_object({}, caps={"rlvr": 1}, workloads=workloads)
    async with FakeEngine().running() as engine:
        pool = pool_object({"e0": engine.url}, caps={"rlvr": 1}, workloads=workloads)
        async with running_router(tmp_path / "pool.json", pool) as router:
            assert await post(client, router, X_Session_ID="a") == 200
            assert await post(client, router, X_Session_ID="b") == 200
            await until(lambda: residents(router) == 0)
            assert router.router.gate.controller.classes["rlvr"].counters.finished == 2


async def test_a_class_that_rejects_says_when_to_try_again(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    overload = {"answer": "Reject", "status": 429, "retryAfterSeconds": 3}
    workloads = [{"name": "rlvr", "share": 1.0, "overload": overload}]
    async with FakeEngine().running() as engine:
        pool = pool_object({"e0": engine.url}, caps={"rlvr": 1}, workloads=workloads)
        async with running_router(tmp_path / "pool.json", pool) as router:
            engine.go.clear()
            first = asyncio.create_task(post(client, router))
            await until(lambda: engine.in_flight == 1)
            async with client.post(router.url + CHAT, json=BODY) as answer:
                assert answer.status == 429
                assert answer.headers["Retry-After"] == "3"
                assert answer.headers["x-should-retry"] == "true"
                assert (await answer.json())["error"]["code"] == "class_full"
            engine.go.set()
            assert await first == 200


async def test_requests_of_a_class_that_is_taken_out_are_told(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        engine.go.clear()
        tasks = [asyncio.create_task(post(client, router)) for _ in range(3)]
        await until(lambda: waiting(router) == 2)
        pool = pool_object({"e0": engine.url}, caps=CAPS, workloads=[{"name": "rlhf", "share": 1.0}])
        pool["metadata"]["generation"] = 2
        router.write(pool)
        await until(lambda: sum(task.done() for task in tasks) == 2)
        engine.go.set()

        assert sorted(await asyncio.gather(*tasks)) == [200, 400, 400]
        assert residents(router) == 0


async def test_an_adopted_session_does_not_wait(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    history = BODY | {
        "messages": [*BODY["messages"], {"role": "assistant", "content": "hi"}, *BODY["messages"]]
    }
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        assert await post(client, router, X_Rollout_Class="agentic", X_Session_ID="new") == 200
        waiter = asyncio.create_task(post(client, router, X_Rollout_Class="agentic", X_Session_ID="next"))
        await until(lambda: waiting(router, "agentic") == 1)

        assert await post(client, router, body=history, X_Rollout_Class="agentic", X_Session_ID="old") == 200
        assert router.router.gate.controller.classes["agentic"].counters.adopted == 1
        assert not waiter.done()
        for name in ("new", "old"):
            async with client.post(router.url + "/finish_session", params={"session_id": name}) as answer:
                assert answer.status == 200
        assert await waiter == 200


async def test_nothing_is_left_behind(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with FakeEngine().running() as engine:
        pool = pool_object({"e0": engine.url}, caps=CAPS)
        async with running_router(tmp_path / "pool.json", pool) as router:
            assert await post(client, router) == 200
            engine.go.clear()
            tasks = [asyncio.create_task(post(client, router)) for _ in range(4)]
            await until(lambda: waiting(router) == 3)
            tasks[0].cancel()
            tasks[-1].cancel()
            await until(lambda: engine.in_flight + waiting(router) == 2)
        results = await asyncio.gather(*tasks, return_exceptions=True)

    assert 503 in results
    assert sum(isinstance(result, aiohttp.ClientError) for result in results) <= 1
    await until(lambda: asyncio.all_tasks() == before)
    assert (residents(router), router.router.open_requests, router.router.gate.waiting) == (0, 0, 0)


async def test_a_stream_that_waits_is_told_what_for_and_then_goes_on(
    client: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comments, "PERIOD_SECONDS", 0.01)
    body = BODY | {"stream": True}
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        engine.go.clear()
        first = asyncio.create_task(client.post(router.url + CHAT, json=body, headers=RLVR))
        await until(lambda: engine.in_flight == 1)
        async with client.post(router.url + CHAT, json=body, headers=RLVR) as second:
            assert second.status == 200
            assert (await second.content.readline()).decode().strip() == comments.ROOM.decode().strip()
            engine.go.set()
            rest = await second.text()
        assert "usage" in rest
        (await first).close()
    assert router.router.gate.waiting == 0
