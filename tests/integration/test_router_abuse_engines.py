"""Engines, objects and clocks that misbehave: clear errors, no permit lost, other sessions unharmed.

What must hold after each is checked by `arena`. Its good engine serves the session beside; requests of class
rlhf go to the bad one, where it alone has room for them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web

from rolloutpool_router.app import build_router
from rolloutpool_router.feed import PoolFeed
from rolloutpool_router.server import serving
from rolloutpool_router.testing import FakeEngine, until, write_pool
from rolloutpool_router.watch_file import watch_file
from rolloutpool_router.wire.testing import HOST, RawClient, RawEngine, Script, raw_client
from rolloutpool_testkit.abuse import Arena, arena, ask, held, pool_of, prompt, request

MANY = 40
OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def say_nothing(client: RawClient) -> None:
    """Take connections and whatever comes on them, and never answer."""
    while await client.reader.read(65536):
        pass


async def reset_at_once(client: RawClient) -> None:
    client.reset()


async def reset_after_the_head(client: RawClient) -> None:
    await client.until(b"\r\n\r\n")
    client.reset()


def when_asked(script: Script) -> Script:
    """Answer probes well, and generations by the script."""

    async def answer(client: RawClient) -> None:
        while True:
            head = await client.until(b"\r\n\r\n")
            if head.startswith(b"POST"):
                return await script(client)
            await client.send(OK + b'Content-Length: 11\r\n\r\n{"data":[]}')

    return answer


def break_off(said: bytes) -> Script:
    """Say something, and close."""

    async def script(client: RawClient) -> None:
        await client.send(said)

    return script


async def only_a_head(client: RawClient) -> None:
    await client.send(STREAM)
    await say_nothing(client)


BROKEN = [
    pytest.param(reset_at_once, id="resets"),
    pytest.param(when_asked(reset_at_once), id="resets-generations"),
    pytest.param(when_asked(break_off(b"")), id="closes"),
    pytest.param(when_asked(break_off(b"\x00\xffgarbage\r\n\r\n")), id="garbage"),
    pytest.param(when_asked(break_off(b"HTTP/1.1 200")), id="half-a-status-line"),
    pytest.param(when_asked(break_off(OK + b"Content-Length: 10\r\n\r\n{")), id="half-an-answer"),
    pytest.param(when_asked(break_off(STREAM + b"5\r\ndata:\r\n")), id="half-a-stream"),
    pytest.param(when_asked(break_off(STREAM + b"zz\r\n")), id="garbage-for-a-chunk"),
    pytest.param(when_asked(break_off(OK + b"X: " + b"a" * 2**20)), id="endless-head"),
    pytest.param(when_asked(break_off(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}")), id="503"),
    pytest.param(when_asked(break_off(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}")), id="500"),
    pytest.param(when_asked(break_off(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)), id="only-interim-answers"),
]


@pytest.mark.parametrize("script", BROKEN)
async def test_what_engines_break_is_told_and_nothing_is_lost(tmp_path: Path, script: Script) -> None:
    engine = RawEngine(script)
    async with engine.running():
        url = f"http://{HOST}:{engine.port}"
        async with arena(tmp_path, {"bad": url}) as place:
            answers = await asyncio.gather(*(_outcome(place, f"question {n}") for n in range(MANY)))
            assert set(answers) <= {200, 500, 502, 503, BROKEN_OFF}
            assert answers.count(200) >= MANY / 4


BROKEN_OFF = 0


async def _outcome(place: Arena, text: str, **fields: Any) -> int:
    """Status of an answer that came whole."""
    async with raw_client(place.port) as client:
        await client.send(request(prompt(text, **fields), class_name="rlhf", more="Connection: close\r\n"))
        answer = await client.rest()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return BROKEN_OFF
    if b"chunked" in head.lower():
        whole = body.endswith(b"0\r\n\r\n")
    else:
        lengths = [
            int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        ]
        whole = bool(lengths) and len(body) == lengths[0]
    return int(head.split()[1]) if whole else BROKEN_OFF


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(say_nothing, id="silent-to-all"),
        pytest.param(when_asked(say_nothing), id="silent-to-generations"),
        pytest.param(when_asked(only_a_head), id="head-only"),
    ],
)
async def test_clients_of_a_silent_engine_get_out_and_others_are_served(
    tmp_path: Path, script: Script
) -> None:
    engine = RawEngine(script)
    async with engine.running():
        url = f"http://{HOST}:{engine.port}"
        async with arena(tmp_path, {"bad": url}, rooms={"rlhf": "bad", "rlvr": "good"}) as place:
            stuck = [asyncio.create_task(_outcome(place, f"{n}", stream=True)) for n in range(MANY)]
            await until(lambda: place.running.router.open_requests >= MANY)
            served = await asyncio.gather(*(ask(place, request(prompt(f"other {n}"))) for n in range(MANY)))
            assert {status for status, _ in served} == {200}
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)


async def test_a_storm_of_503_passes(tmp_path: Path) -> None:
    storm = asyncio.Event()

    async def busy(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if storm.is_set():
            return web.json_response({"error": {"message": "queue full"}}, status=503)
        return web.json_response({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    engines = FakeEngine(answer=busy), FakeEngine(answer=busy)
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(engine.running()) for engine in engines]
        urls = {"first": first.url, "second": second.url}
        place = await stack.enter_async_context(arena(tmp_path, urls))
        storm.set()
        during = await asyncio.gather(*(_outcome(place, f"during {n}") for n in range(MANY)))
        assert set(during) <= {200, 503}
        storm.clear()
        after = await asyncio.gather(*(_outcome(place, f"after {n}") for n in range(MANY)))
        assert set(after) == {200}


def huge(engines: int, *, revision: int) -> dict[str, Any]:
    """A status with as many engines, none of which is there."""
    urls = {f"engine-{n}": f"http://{HOST}:9" for n in range(engines)}
    pool = pool_of(urls, revision=revision)
    for engine in pool["status"]["endpoints"]["admin"]:
        engine["ready"] = False
    return pool


def _with(pool: dict[str, Any], **status: Any) -> dict[str, Any]:
    pool["status"]["admission"] |= status
    return pool


BAD_OBJECTS: list[Any] = [
    pytest.param(lambda good: "{" * 100_000, id="garbage"),
    pytest.param(lambda good: json.dumps(good)[:-100], id="half"),
    pytest.param(lambda good: "[" + "1," * 5_000_000 + "1]", id="ten-megabytes"),
    pytest.param(lambda good: _with(good, revision=1), id="stale"),
    pytest.param(lambda good: _with(good, revision=-7), id="negative-revision"),
    pytest.param(lambda good: _with(good, engines=[None] * 1000), id="no-engines"),
    pytest.param(lambda good: _with(good, engines="many"), id="wrong-type"),
    pytest.param(lambda good: huge(20_000, revision=9), id="20000-engines"),
]


@pytest.mark.parametrize("bad", BAD_OBJECTS)
async def test_objects_that_are_no_good_change_nothing(
    tmp_path: Path, bad: Callable[[dict[str, Any]], Mapping[str, Any] | str]
) -> None:
    async with FakeEngine().running() as other, arena(tmp_path, {"other": other.url}) as place:
        router = place.running.router
        urls = {"good": place.good.url, "other": other.url}
        stuck = [asyncio.create_task(ask(place, request(held(f"{n}")))) for n in range(MANY)]
        await until(lambda: router.open_requests >= MANY)
        for _ in range(3):
            ignored = router.feed.ignored
            place.running.write(bad(pool_of(urls, revision=2)))
            await _is_ignored(router.feed, ignored)
        assert set(router.gate.controller.fleet.engines) == {"good", "other"}
        place.go.set()
        assert {status for status, _ in await asyncio.gather(*stuck)} == {200}


async def _is_ignored(feed: PoolFeed, before: int) -> None:
    await until(lambda: feed.ignored > before, timeout=30)


async def test_256_engines_come_and_go_while_requests_run(tmp_path: Path) -> None:
    async with arena(tmp_path) as place:
        for revision in range(2, 6):
            engines = 256 if revision % 2 else 1
            pool = huge(engines - 1, revision=revision)
            alone = pool_of({"good": place.good.url}, revision=revision)
            for section, name in (("endpoints", "admin"), ("admission", "engines")):
                pool["status"][section][name] += alone["status"][section][name]
            place.running.write(pool)
            await _has_engines(place, engines)
            answers = await asyncio.gather(*(ask(place, request(prompt(f"{n}"))) for n in range(MANY)))
            assert {status for status, _ in answers} == {200}


async def _has_engines(place: Arena, count: int) -> None:
    await until(lambda: len(place.running.router.gate.controller.fleet.engines) == count)


class Clock:
    """Seconds that may leap."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        """The time."""
        return asyncio.get_running_loop().time() + self.ahead


async def test_a_clock_that_leaps_loses_nothing(tmp_path: Path) -> None:
    """As that of a machine that was suspended; no monotonic clock goes back."""
    clock = Clock()
    async with FakeEngine().running() as engine:
        write_pool(tmp_path / "pool.json", pool_of({"e0": engine.url}))
        router = build_router("router-0", clock=clock, rng=Random(1))
        watch = partial(watch_file, tmp_path / "pool.json", router.feed)
        async with serving(router, watch, host=HOST, port=0, grace_seconds=0) as port:
            await until(lambda: router.gate.controller.view is not None)
            table = router.gate.controller.table

            async def chat(session: str) -> int:
                async with raw_client(port) as client:
                    await client.send(request(prompt(), session=session, class_name="agentic"))
                    return (await client.answer())[0]

            assert await chat("idle") == 200
            engine.go.clear()
            running = [asyncio.create_task(chat(f"running-{n}")) for n in range(10)]
            await until(lambda: engine.in_flight == 10)
            clock.ahead += 86_400
            await asyncio.sleep(0.6)
            assert len(table) >= 10, "those with a request stay"
            engine.go.set()
            assert set(await asyncio.gather(*running)) == {200}
            assert await chat("late") == 200
            assert sum(session.in_flight for session in table) == 0
            clock.ahead += 86_400
            await until(lambda: len(table) == 0)
            assert await chat("last") == 200
