"""Engines that fail, and objects that are no good: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rolloutpool_router.testing import FakeEngine, RunningRouter, pool_object, running_router, until
from rolloutpool_testkit.connects import hold_connects

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
CAPS = {"rlvr": 4, "rlhf": 4, "agentic": 4}
AGENT = {"X-Session-ID": "agent-1"}


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def served_by(client: aiohttp.ClientSession, router: RunningRouter) -> tuple[int, str]:
    async with client.post(router.url + CHAT, json=BODY, headers=AGENT) as answer:
        await answer.read()
        return answer.status, answer.headers.get("X-RolloutPool-Engine", "")


async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "queue full", "code": 503}}, status=503)


async def test_the_next_turn_of_a_killed_engine_is_served_elsewhere(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with FakeEngine().running() as e1, FakeEngine().running() as e2, FakeEngine().running() as e0:
        pool = pool_object({"e0": e0.url}, caps=CAPS)
        async with running_router(tmp_path / "pool.json", pool) as router:
            assert await served_by(client, router) == (200, "e0")
            router.write(pool_object({"e0": e0.url, "e1": e1.url, "e2": e2.url}, caps=CAPS, revision=2))
            await until(lambda: len(router.router.gate.controller.fleet.engines) == 3)
            assert await served_by(client, router) == (200, "e0")
            await e0.stop()

            status, moved = await served_by(client, router)
            assert (status, moved) in {(200, "e1"), (200, "e2")}
            assert await served_by(client, router) == (200, moved)
            table = router.router.gate.controller.table
            assert table.tally("e0") == {}
            assert table.tally(moved)["agentic"].sessions == 1


async def test_an_engine_that_is_full_is_passed_over(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with (
        FakeEngine(answer=refuse).running() as e0,
        FakeEngine().running() as e1,
        running_router(tmp_path / "pool.json", pool_object({"e0": e0.url}, caps=CAPS)) as router,
    ):
        async with client.post(router.url + CHAT, json=BODY, headers=AGENT) as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["message"] == "queue full"
        assert len(router.router.gate.controller.table) == 0

        router.write(pool_object({"e0": e0.url, "e1": e1.url}, caps=CAPS, revision=2))
        await until(lambda: len(router.router.gate.controller.fleet.engines) == 2)
        for _ in range(3):
            assert await served_by(client, router) == (200, "e1")
        assert len(e1.seen) == 3


async def test_a_request_that_an_engine_took_is_not_repeated(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async def die(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with (
        FakeEngine(answer=die).running() as e0,
        FakeEngine(answer=die).running() as e1,
        running_router(
            tmp_path / "pool.json", pool_object({"e0": e0.url, "e1": e1.url}, caps=CAPS)
        ) as router,
    ):
        async with client.post(router.url + CHAT, json=BODY, headers=AGENT) as answer:
            assert answer.status == 502
            assert (await answer.json())["error"]["code"] == "engine_lost"
        assert len(e0.seen) + len(e1.seen) == 1


async def test_while_no_engine_is_up_requests_wait(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    engine = FakeEngine()
    async with engine.running() as first:
        port = int(first.url.rpartition(":")[2])
        pool = pool_object({"e0": first.url}, caps=CAPS)
    async with running_router(tmp_path / "pool.json", pool) as router:
        gate = router.router.gate
        fresh = asyncio.create_task(served_by(client, router))
        await until(lambda: gate.controller.stalled.requests == 1)
        async with client.get(router.url + "/admission/snapshot") as answer:
            assert (await answer.json())["engines"][0]["healthy"] is False
        async with engine.running(port):
            assert await fresh == (200, "e0")


async def test_a_restarted_engine_is_found_without_the_operator(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """The last word of an operator that is away was that the engine is not ready."""
    pool = pool_object({"e0": "http://127.0.0.1:9"}, caps=CAPS)
    async with FakeEngine().running() as engine:
        pool["status"]["endpoints"]["admin"][0] |= {"url": engine.url, "ready": False}
        async with running_router(tmp_path / "pool.json", pool) as router:
            assert await served_by(client, router) == (200, "e0")


async def test_without_any_engine_requests_wait_for_one(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({})) as router,
    ):
        early = asyncio.create_task(served_by(client, router))
        await until(lambda: router.router.gate.waiting == 1)
        router.write(pool_object({"e0": engine.url}, caps=CAPS))
        assert await early == (200, "e0")


async def test_a_request_whose_engine_and_class_are_gone_is_told(
    client: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its connection was being made: there is no other engine, and nothing to wait for."""
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        held = hold_connects(monkeypatch, router.router.upstream, engine.url, fail=True)
        asking = asyncio.create_task(client.post(router.url + CHAT, json=BODY, headers=AGENT))
        await until(lambda: held.begun and len(router.router.gate.controller.table) == 1)
        pool = pool_object({}, caps={"rlvr": 4}, workloads=[{"name": "rlvr", "share": 1.0}], revision=2)
        pool["metadata"]["generation"] = 2
        router.write(pool)
        await until(lambda: not router.router.gate.controller.fleet.engines)
        held.go.set()
        async with await asking as answer:
            assert answer.status == 503
            assert answer.headers["x-should-retry"] == "true"
            assert (await answer.json())["error"]["code"] == "no_engine"
        assert len(router.router.gate.controller.table) == 0


def with_admission(pool: dict[str, Any], **fields: Any) -> dict[str, Any]:
    changed = copy.deepcopy(pool)
    changed["status"]["admission"] |= fields
    return changed


GOOD = pool_object({"e0": "http://127.0.0.1:9"}, caps={"rlvr": 3, "rlhf": 2, "agentic": 1}, revision=5)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param("", id="empty-file"),
        pytest.param("{", id="half-a-file"),
        pytest.param("[]", id="list"),
        pytest.param('{"kind": "Pod"}', id="another-kind"),
        pytest.param(with_admission(GOOD, revision=4), id="older-revision"),
        pytest.param(with_admission(GOOD, revision="six"), id="revision-is-no-number"),
        pytest.param(
            with_admission(
                GOOD,
                revision=6,
                engines=[
                    {
                        "name": "e0",
                        "capacityBlocks": 9,
                        "protectedBlocks": 9,
                        "classes": [{"name": "rlvr", "cap": -1}],
                    }
                ],
            ),
            id="negative-cap",
        ),
        pytest.param(GOOD | {"metadata": GOOD["metadata"] | {"generation": 0}}, id="older-spec"),
        pytest.param(GOOD | {"spec": {}}, id="no-spec"),
        pytest.param(
            pool_object({"e0": "http://[::x"}, caps=CAPS, revision=6), id="url-that-cannot-be-parsed"
        ),
    ],
)
async def test_an_object_that_is_no_good_is_ignored_and_counted(
    bad: dict[str, Any] | str, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with running_router(tmp_path / "pool.json", GOOD) as router:
        router.write(bad)
        await until(lambda: router.router.feed.ignored == 1)

        async with client.get(router.url + "/admission/snapshot") as answer:
            snapshot = await answer.json()
        assert (snapshot["appliedRevision"], snapshot["ignoredStatuses"]) == (5, 1)
        caps = router.router.gate.controller.fleet.engines["e0"].caps
        assert dict(caps) == {"rlvr": 3, "rlhf": 2, "agentic": 1}

        router.write(with_admission(GOOD, revision=6))
        await until(
            lambda: router.router.gate.controller.view and router.router.gate.controller.view.revision == 6
        )
