"""Probes of engines over real sockets: one that hangs delays no other, and a port alone is no model."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest
from aiohttp import web

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router import engine_probes
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.stalls import StallBounds
from rolloutpool_router.core.standing import Standing
from rolloutpool_router.core.view import Ignored, accept
from rolloutpool_router.testing import HOST, pool_object, served, until
from rolloutpool_router.wire.client import Unreachable, Upstream

NOBODY = f"http://{HOST}:9"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PERIOD_SECONDS", "SICK_PERIOD_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(engine_probes, name, 0.02)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    yield upstream
    await upstream.close()


@dataclass
class OddEngine:
    """An engine that answers GET /v1/models and /is_paused as told."""

    status: int = 200
    body: str = "{}"
    paused: object = None
    """What /is_paused says; None: there is no such path."""
    hangs: bool = False
    asked: int = 0
    asked_if_paused: int = 0
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def models(self, _: web.Request) -> web.Response:
        """GET /v1/models."""
        self.asked += 1
        if self.hangs:
            await self.freed.wait()
        return web.Response(status=self.status, text=self.body)

    async def is_paused(self, _: web.Request) -> web.Response:
        """GET /is_paused."""
        self.asked_if_paused += 1
        if self.paused is None:
            raise web.HTTPNotFound
        return web.json_response(self.paused)

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[OddEngine]:
        """Serve within the block."""
        app = web.Application()
        app.add_routes([web.get("/v1/models", self.models), web.get("/is_paused", self.is_paused)])
        async with served(app, port) as self.url:
            yield self


def apply(fleet: Fleet, ready: bool = True, **engines: str) -> None:
    pool = pool_object(engines)
    for endpoint in pool["status"]["endpoints"]["admin"]:
        endpoint["ready"] = ready
    view = accept(None, parse_pool(pool))
    assert not isinstance(view, Ignored)
    fleet.apply(view)


@asynccontextmanager
async def probing(upstream: Upstream, fleet: Fleet) -> AsyncIterator[None]:
    task = asyncio.create_task(engine_probes.watch_engines(fleet, upstream, rng=Random(1)))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def standing(fleet: Fleet, engine: str) -> Standing:
    return fleet.state(engine, time.monotonic()).standing


@pytest.mark.parametrize(
    ("status", "expected"),
    [(200, True), (204, True), (401, None), (404, None), (302, False), (500, False), (503, False)],
)
async def test_what_an_answer_says(upstream: Upstream, status: int, expected: bool | None) -> None:
    async with OddEngine(status=status).serving() as engine:
        assert await engine_probes.serves(upstream, engine.url) is expected


async def test_nobody_there(upstream: Upstream) -> None:
    with pytest.raises(Unreachable):
        await engine_probes.serves(upstream, NOBODY)
    assert not await engine_probes.is_paused(upstream, NOBODY)
    assert await engine_probes.serves(upstream, "ftp://odd") is False
    assert not await engine_probes.is_paused(upstream, "ftp://odd")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"is_paused": True}, True),
        ({"is_paused": False}, False),
        ({"is_paused": "yes"}, False),
        ([], False),
        (None, False),
    ],
)
async def test_whether_it_is_paused(upstream: Upstream, answer: object, expected: bool) -> None:
    async with OddEngine(paused=answer).serving() as engine:
        assert await engine_probes.is_paused(upstream, engine.url) is expected


async def test_a_list_of_models_has_an_end(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_probes, "MAX_ANSWER_BYTES", 100)
    async with OddEngine(body="x" * 1000).serving() as engine:
        assert await engine_probes.serves(upstream, engine.url) is False


async def test_one_that_hangs_goes_out_and_delays_no_other(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_probes, "TIMEOUT_SECONDS", 0.2)
    fleet = Fleet()
    async with OddEngine(hangs=True).serving() as hangs, OddEngine().serving() as quick:
        apply(fleet, e0=hangs.url, e1=quick.url)
        async with probing(upstream, fleet):
            await until(lambda: hangs.asked == 2)
            assert quick.asked > 4
            await until(lambda: standing(fleet, "e0") is Standing.UNREACHABLE)
            assert standing(fleet, "e1") is Standing.UP
            hangs.hangs = False
            hangs.freed.set()
            await until(lambda: standing(fleet, "e0") is Standing.UP)


async def test_an_engine_that_comes_up_takes_sessions_whatever_an_old_object_says(upstream: Upstream) -> None:
    fleet = Fleet()
    async with OddEngine(status=503).serving() as engine:
        apply(fleet, ready=False, e0=engine.url)
        async with probing(upstream, fleet):
            await until(lambda: engine.asked > 2)
            assert not fleet.is_up("e0", time.monotonic())
            engine.status = 401
            seen = engine.asked
            await until(lambda: engine.asked > seen + 2)
            assert standing(fleet, "e0") is Standing.NOT_READY
            engine.status = 200
            await until(lambda: fleet.is_up("e0", time.monotonic()))


async def test_one_that_is_gone_goes_out_and_is_back_as_soon_as_it_answers(
    upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="rolloutpool_router")
    fleet, engine = Fleet(), OddEngine()
    async with engine.serving():
        apply(fleet, e0=engine.url)
        port = int(engine.url.rpartition(":")[2])
    async with probing(upstream, fleet):
        await until(lambda: standing(fleet, "e0") is Standing.UNREACHABLE)
        await until(lambda: "engine e0 is unreachable" in caplog.text)
        async with engine.serving(port):
            await until(lambda: standing(fleet, "e0") is Standing.UP)
            await until(lambda: "engine e0 is up" in caplog.text)


async def test_engines_come_and_go_with_the_object(upstream: Upstream) -> None:
    fleet = Fleet()
    async with OddEngine().serving() as one, OddEngine().serving() as two:
        apply(fleet, e0=one.url)
        async with probing(upstream, fleet):
            await until(lambda: one.asked > 1)
            apply(fleet, e1=two.url)
            await until(lambda: two.asked > 1)
            seen = one.asked
            await until(lambda: two.asked > 5)
            assert one.asked <= seen + 1
            apply(fleet, e0=one.url, e1=two.url)
            await until(lambda: one.asked > seen + 2)


async def test_an_engine_that_is_silent_for_long_is_asked_whether_it_is_paused(upstream: Upstream) -> None:
    fleet = Fleet()
    fleet.stalls.bounds = StallBounds(answer_seconds=4)
    async with OddEngine().serving() as silent, OddEngine().serving() as lively:
        apply(fleet, e0=silent.url, e1=lively.url)
        assert fleet.generation_begins("e0", 0) is not None
        for second in range(4):
            fleet.stalls.delivered("e1")
            assert not fleet.stalled_answers(second)
        async with probing(upstream, fleet):
            await until(lambda: silent.asked_if_paused > 1)
            assert fleet.stalls.is_suspect("e0"), "there is no such path: it has no excuse"
            silent.paused = json.loads('{"is_paused": true}')
            await until(lambda: not fleet.stalls.is_suspect("e0"))
            assert lively.asked_if_paused == 0
