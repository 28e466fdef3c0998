"""Clients that misbehave: clear errors, bounded memory, no permit lost, other sessions unharmed.

What must hold after each is checked by `arena`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rolloutpool_router.bodies import MAX_BODY_BYTES
from rolloutpool_router.testing import FakeEngine, until
from rolloutpool_router.wire.connection import Limits
from rolloutpool_router.wire.testing import HOST, RawClient, RawEngine, raw_client
from rolloutpool_testkit.abuse import (
    CAPS,
    CHAT,
    allow_files,
    arena,
    ask,
    crowd,
    held,
    prompt,
    request,
    rss_bytes,
)

MEGABYTE = 2**20


HASTY = Limits(
    head_timeout_seconds=0.3,
    body_idle_timeout_seconds=0.3,
    stalled_reader_seconds=0.3,
    linger_seconds=0.1,
    sweep_seconds=0.05,
)
"""Slow clients are sent away soon."""


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"P", id="one-byte"),
        pytest.param(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nX-Rollout-Class: rl", id="half-a-head"),
        pytest.param(request(b'{"model": ', length=100), id="half-a-body"),
        pytest.param(request(length=MAX_BODY_BYTES, session="s"), id="start-of-a-large-body"),
    ],
)
async def test_a_writer_that_stops_is_told_so_and_sent_away(tmp_path: Path, sent: bytes) -> None:
    async with arena(tmp_path, limits=HASTY) as place, raw_client(place.port) as client:
        await client.send(sent)
        head = await client.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        await client.rest()
        assert place.residents == 1, "the session beside"


async def test_a_writer_that_is_slow_is_served(tmp_path: Path) -> None:
    async with arena(tmp_path) as place, raw_client(place.port) as client:
        for byte in request(prompt()):
            await client.send(bytes([byte]))
        assert (await client.answer())[0] == 200


async def flood(http_request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(http_request)
    event = b"data: " + b"x" * 65536 + b"\n\n"
    while True:
        await response.write(event)


@asynccontextmanager
async def flooded(
    folder: Path, readers: int, limits: Limits | None = None
) -> AsyncIterator[tuple[FakeEngine, list[RawClient]]]:
    """Readers that read nothing of answers without end."""
    flooding = FakeEngine(answer=flood)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(flooding.running())
        place = await stack.enter_async_context(
            arena(folder, {"flooding": flooding.url}, rooms={"rlhf": "flooding"}, limits=limits)
        )
        clients = [
            await stack.enter_async_context(raw_client(place.port, receive_buffer=4096))
            for _ in range(readers)
        ]
        for number, client in enumerate(clients):
            await client.send(request(prompt(f"{number}", stream=True), class_name="rlhf"))
        await until(lambda: len(flooding.seen) == readers)
        yield flooding, clients


async def test_readers_that_read_nothing_hold_the_engine_back(tmp_path: Path) -> None:
    before = rss_bytes()
    async with flooded(tmp_path, readers=50) as (flooding, clients):
        for _ in range(20):
            await asyncio.sleep(0.02)
            assert rss_bytes() - before < 150 * MEGABYTE
        for client in clients:
            client.reset()
        await until(lambda: flooding.in_flight == 0)
        assert flooding.aborted == 50


async def test_readers_that_stall_are_cut_off(tmp_path: Path) -> None:
    async with flooded(tmp_path, readers=5, limits=HASTY) as (flooding, _):
        await until(lambda: flooding.in_flight == 0)


@pytest.mark.parametrize("at_the_engine", [True, False])
async def test_a_half_closed_socket_gives_everything_back(tmp_path: Path, at_the_engine: bool) -> None:
    async with arena(tmp_path, caps=dict.fromkeys(CAPS, 1), lending=False) as place:
        router = place.running.router
        async with raw_client(place.port) as first, raw_client(place.port) as second:
            await first.send(request(held(), class_name="rlhf"))
            await until(lambda: place.residents == 2)
            await second.send(request(held(), class_name="rlhf"))
            await until(lambda: router.gate.waiting == 1)
            (first if at_the_engine else second).writer.write_eof()
            await until(lambda: router.gate.waiting == 0)
            place.go.set()
            assert (await (second if at_the_engine else first).answer())[0] == 200


BOMBS = [
    pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * 2**20, id="one-long-header"),
    pytest.param(b"GET /" + b"a" * 2**20, id="long-target"),
    pytest.param(
        b"GET / HTTP/1.1\r\n" + b"".join(b"a%d: 1\r\n" % n for n in range(50_000)), id="many-headers"
    ),
    pytest.param(b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 50_000, id="one-header-many-times"),
]


@pytest.mark.parametrize("bomb", BOMBS)
async def test_header_bombs_are_refused(tmp_path: Path, bomb: bytes) -> None:
    async with arena(tmp_path) as place:

        async def throw() -> None:
            async with raw_client(place.port) as client:
                await client.send(bomb)
                assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 431 ")

        await asyncio.gather(*(throw() for _ in range(20)))


INVALID = [
    pytest.param(b"", id="empty"),
    pytest.param(b"{", id="half"),
    pytest.param(b'{"model": "m"}}', id="too-much"),
    pytest.param(b'{"model": NaN}', id="not-a-number"),
    pytest.param(b"[" * 100_000, id="deep"),
    pytest.param(b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="deep-and-closed"),
    pytest.param(b'"text"', id="string"),
    pytest.param(b"[1]", id="list"),
    pytest.param(b"null", id="null"),
    pytest.param(b"\x00" * 1000, id="zeros"),
]


@pytest.mark.parametrize("body", INVALID)
async def test_invalid_json_is_told_and_the_connection_serves_on(tmp_path: Path, body: bytes) -> None:
    async with arena(tmp_path) as place, raw_client(place.port) as client:
        for _ in range(3):
            await client.send(request(body))
            status, answer = await client.answer()
            assert (status, json.loads(answer)["error"]["code"]) == (400, "invalid_body")
        await client.send(request(prompt()))
        assert (await client.answer())[0] == 200


class Swallower:
    """Engine that reads bodies and keeps nothing of them."""

    def __init__(self) -> None:
        self.took = 0

    async def __call__(self, client: RawClient) -> None:
        """Answer probes, and swallow one body."""
        while (head := await client.until(b"\r\n\r\n")).startswith(b"GET"):
            await client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        (length,) = (int(size) for size in re.findall(rb"(?i)content-length: (\d+)", head))
        while self.took < length:
            self.took += len(await client.reader.read(MEGABYTE))
        await client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


async def test_a_body_of_512_megabytes_streams_through(tmp_path: Path) -> None:
    swallower = Swallower()
    engine = RawEngine(swallower)
    async with engine.running():
        url = f"http://{HOST}:{engine.port}"
        async with (
            arena(tmp_path, {"raw": url}, rooms={"rlhf": "raw"}) as place,
            raw_client(place.port) as client,
        ):
            before, piece = rss_bytes(), b" " * MEGABYTE
            head = request(b"", class_name="rlhf", session="large", length=MAX_BODY_BYTES)
            await client.send(head)
            for _ in range(MAX_BODY_BYTES // MEGABYTE):
                await client.send(piece)
                assert rss_bytes() - before < 150 * MEGABYTE
            assert await client.answer() == (200, b"{}")
            assert swallower.took == MAX_BODY_BYTES


async def test_one_session_id_in_several_classes_is_one_session(tmp_path: Path) -> None:
    async with arena(tmp_path) as place:
        names = ("rlvr", "rlhf", "agentic")
        asked = [
            asyncio.create_task(ask(place, request(held(), session="twin", class_name=names[n % 3])))
            for n in range(30)
        ]
        await until(lambda: sum(task.done() for task in asked) == 20)
        place.go.set()
        answers = await asyncio.gather(*asked)
        assert [status for status, _ in answers].count(200) == 10
        refused = [body["error"] for status, body in answers if status == 400]
        assert {error["code"] for error in refused} == {"class_changed"}
        assert "start another session" in refused[0]["message"]
        await until(lambda: place.residents == 1)


async def test_sessions_that_never_finish_end_by_themselves(tmp_path: Path) -> None:
    classes = [
        {"name": "rlvr", "share": 0.5, "sessionIdleSeconds": 0.3, "overload": {"maxWaitSeconds": 60}},
        {"name": "agentic", "share": 0.5, "priors": {"turns": 5, "toolGapSeconds": 1}},
    ]
    async with arena(tmp_path, caps={"rlvr": 2, "agentic": 2}, workloads=classes, lending=False) as place:
        for number in range(6):
            status, _ = await ask(place, request(prompt(), session=f"forgotten-{number}"))
            assert status == 200, "the third waits until the first has expired"
        assert 2 <= place.residents <= 3
        await until(lambda: place.residents == 1)


CLIENTS = 10_000


async def test_ten_thousand_clients_that_go_at_once(tmp_path: Path) -> None:
    allow_files(CLIENTS + 2000)
    async with arena(tmp_path, caps=dict.fromkeys(CAPS, 200), lending=False) as place:
        router = place.running.router
        async with crowd(place.port, CLIENTS):
            await until(lambda: router.open_requests >= CLIENTS, timeout=60)
            assert router.gate.waiting >= CLIENTS - 200
        await until(lambda: router.gate.waiting == 0, timeout=60)
        await until(lambda: place.residents == 1, timeout=60)
        assert (await ask(place, request(prompt())))[0] == 200
