"""The server's side of HTTP/1.1, over real sockets: requests in, answers out."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from rolloutpool_router.testing import until
from rolloutpool_router.wire.server import MOST_AT_ONCE, Exchange, Limits
from rolloutpool_router.wire.testing import Held, echo, raw_client, running_server, talk
from rolloutpool_testkit.loops import on_both_loops

QUICK = Limits(sweep_seconds=0.01, linger_seconds=0.05)
GET = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"
CLOSE = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@on_both_loops
async def test_requests_of_one_connection() -> None:
    async with running_server(echo) as running, raw_client(running.port) as client:
        for index in range(3):
            await client.send(b"POST /%d?q HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe" % index)
            await client.send(b"llo")
            assert await client.answer() == (200, b"POST /%d?q hello" % index)
        assert running.server.connections == 1
    assert running.server.connections == 0


@on_both_loops
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running_server(echo) as running:
        said = await talk(running.port, b"".join(GET % index for index in range(1000)) + CLOSE)
        bodies = [part.split(b"\r\n\r\n")[1] for part in said.split(b"HTTP/1.1 ")[1:]]
        assert bodies == [b"GET /%d " % index for index in range(1000)] + [b"GET /last "]


@on_both_loops
async def test_a_pipelining_client_waits_in_the_kernel() -> None:
    held = Held()
    async with running_server(held) as running, raw_client(running.port) as client:
        padding = b"X-Padding: %b\r\n\r\n" % (b"x" * 7000)
        client.writer.write(b"".join(GET[:-2] % index + padding for index in range(3_000)))
        sending = asyncio.create_task(client.writer.drain())
        await until(lambda: held.started == 1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not sending.done()
        held.go.set()
        for index in range(3_000):
            assert await client.answer() == (200, b"/%d" % index)
        await sending


@on_both_loops
async def test_a_client_that_reads_no_answer_gets_no_more() -> None:
    answered = 0

    async def handler(exchange: Exchange) -> None:
        nonlocal answered
        answered += 1
        exchange.answer(200, [], b"x" * 100_000)

    async with running_server(handler) as running, raw_client(running.port, receive_buffer=4096) as client:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(b"".join(GET % index for index in range(1000)))
        await until(lambda: answered > 0)
        for _ in range(300):
            await asyncio.sleep(0)
        assert answered < 500


@pytest.mark.parametrize(
    ("request_bytes", "head", "body"),
    [
        pytest.param(
            b"GET / HTTP/1.0\r\n\r\n", b"Content-Length: 6\r\nConnection: close", b"GET / ", id="1.0"
        ),
        pytest.param(CLOSE, b"Content-Length: 10\r\nConnection: close", b"GET /last ", id="close"),
        pytest.param(
            b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            b"Content-Length: 7\r\nConnection: close",
            b"",
            id="head",
        ),
        pytest.param(
            b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /b HTTP/1.0\r\n\r\n",
            b"Content-Length: 6\r\nConnection: keep-alive",
            b"GET / HTTP/1.1 200 OK\r\nX-Own: \xc3\xa4\r\nContent-Length: 7\r\nConnection: close"
            b"\r\n\r\nGET /b ",
            id="1.0-keep-alive",
        ),
        pytest.param(
            b"PROPFIND http://elsewhere/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            b"Content-Length: 12\r\nConnection: close",
            b"PROPFIND /x ",
            id="absolute",
        ),
        pytest.param(
            b"\r\n\r\nPOST / HTTP/1.1\r\nhost:a\r\nconnection:close, Upgrade\r\nupgrade:h2c\r\n"
            b"transfer-encoding:chunked\r\n\r\n2;x=y\r\nhi\r\n0\r\nX-Trailer: 1\r\n\r\n",
            b"Content-Length: 9\r\nConnection: close",
            b"POST / hi",
            id="chunked-with-upgrade",
        ),
    ],
)
@on_both_loops
async def test_kinds_of_requests(request_bytes: bytes, head: bytes, body: bytes) -> None:
    async with running_server(echo) as running:
        said = await talk(running.port, request_bytes)
    assert said == b"HTTP/1.1 200 OK\r\nX-Own: \xc3\xa4\r\n" + head + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00", 501, id="tls"),
        pytest.param(b"NONSENSE / HTTP/1.1\r\nHost: a\r\n\r\n", 501, id="method"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, id="no-host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400, id="bare-lf"),
        pytest.param(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400, id="asterisk"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70000, 431, id="header-bomb"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            id="smuggling",
        ),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz", 400, id="chunk"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\nxyz", 501, id="coding"),
        pytest.param(b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, id="version"),
    ],
)
@on_both_loops
async def test_what_is_refused(request_bytes: bytes, status: int) -> None:
    async with running_server(echo, QUICK) as running:
        said = await talk(running.port, request_bytes + b"x" * 100)
        assert said.startswith(b"HTTP/1.1 %d " % status)
        assert b"Connection: close" in said
        assert b'"error"' in said
        await until(lambda: running.server.connections == 0)


@on_both_loops
async def test_garbage_after_a_request_does_not_touch_its_answer() -> None:
    held = Held()
    async with running_server(held, QUICK) as running, raw_client(running.port) as client:
        await client.send(GET % 1 + b"garbage\r\n\r\n")
        await until(lambda: held.started == 1)
        held.go.set()
        assert await client.answer() == (200, b"/1")
        assert (await client.answer())[0] == 501
        assert await client.rest() == b""


@on_both_loops
async def test_a_broken_body_ends_its_handler() -> None:
    held = Held()
    async with running_server(held, QUICK) as running, raw_client(running.port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await until(lambda: held.started == 1)
        await client.send(b"zz\r\n")
        assert (await client.answer())[0] == 400
        await until(lambda: held.cancelled == 1)


# Answers


@on_both_loops
async def test_a_stream() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.start(200, [("Content-Type", "text/event-stream"), ("Content-Length", "7")])
        for piece in (b"data: 1\n\n", b"", b"data: 2\n\n"):
            exchange.write_piece(piece)
        exchange.end()

    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    async with running_server(handler) as running:
        said = await talk(running.port, CLOSE)
        chunks = b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"
        assert said == head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks
        said = await talk(running.port, b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert said == head + b"Connection: close\r\n\r\ndata: 1\n\ndata: 2\n\n"
        said = await talk(running.port, b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert said == head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


async def fails(_: Exchange) -> None:
    raise RuntimeError("broken handler")


async def fails_later(exchange: Exchange) -> None:
    exchange.start(200, [])
    exchange.write_piece(b"beginning")
    raise RuntimeError("broken handler")


async def forgets(_: Exchange) -> None:
    pass


async def aborts(exchange: Exchange) -> None:
    exchange.start(200, [])
    exchange.write_piece(b"beginning")
    exchange.abort()


async def answers_twice(exchange: Exchange) -> None:
    exchange.answer(500, [], b"once")
    exchange.answer(500, [], b"twice")


async def injects(exchange: Exchange) -> None:
    exchange.answer(200, [("X", "a\r\nY: b")], b"")


@pytest.mark.parametrize(
    ("handler", "whole"),
    [
        pytest.param(fails, True, id="fails"),
        pytest.param(fails_later, False, id="fails-later"),
        pytest.param(forgets, True, id="forgets"),
        pytest.param(aborts, False, id="aborts"),
        pytest.param(injects, True, id="injects"),
        pytest.param(answers_twice, True, id="answers-twice"),
    ],
)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@on_both_loops
async def test_handlers_that_do_not_answer(
    handler: Callable[[Exchange], object], whole: bool, version: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with running_server(handler) as running, raw_client(running.port) as client:  # type: ignore[arg-type]
        await client.send(b"GET / HTTP/%b\r\nHost: a\r\n\r\n" % version)
        if whole:
            assert (await client.answer())[0] == 500
            client.writer.write_eof()
            assert await client.rest() == b""
        elif version == b"1.1":
            assert not (await client.rest()).endswith(b"0\r\n\r\n")
        else:
            with pytest.raises(ConnectionResetError):
                await client.rest()


# Servers


@on_both_loops
async def test_a_leaving_server_sends_its_clients_away() -> None:
    held = Held()
    async with (
        running_server(held) as running,
        raw_client(running.port) as idle,
        raw_client(running.port) as busy,
    ):
        await busy.send(GET % 1)
        await until(lambda: held.started == 1 and running.server.connections == 2)
        running.server.stop_listening()
        running.server.leave()
        assert await idle.rest() == b""
        held.go.set()
        assert b"Connection: close" in await busy.rest()
        with pytest.raises(OSError):  # noqa: PT011 (which one is the kernel's choice)
            await asyncio.open_connection("127.0.0.1", running.port)


@on_both_loops
async def test_too_many_connections() -> None:
    held = Held()
    async with running_server(held, replace(QUICK, max_connections=2)) as running:
        async with raw_client(running.port) as one, raw_client(running.port) as two:
            await one.send(GET % 1)
            await two.send(GET % 2)
            await until(lambda: held.started == 2)
            async with raw_client(running.port) as three:
                assert (await three.rest()).startswith(b"HTTP/1.1 503 ")
            held.go.set()
            assert await one.answer() == (200, b"/1")
        await until(lambda: running.server.connections == 0)
        assert b"200 OK" in await talk(running.port, CLOSE)


@on_both_loops
async def test_close_cancels_and_waits() -> None:
    ended: list[str] = []

    async def handler(_: Exchange) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append("whole")

    async with running_server(handler) as running, raw_client(running.port) as client:
        await client.send(GET % 1)
        await until(lambda: running.server._tasks)
        await asyncio.sleep(0.01)
        await running.server.close()
        assert ended == ["whole"]
        assert running.server.connections == 0


class Idle:
    """Stands for a connection; how often its limits were looked at."""

    def __init__(self) -> None:
        self.looked_at: list[float] = []

    def sweep(self, now: float) -> None:
        self.looked_at.append(now)


@on_both_loops
async def test_many_connections_are_looked_at_some_at_a_time() -> None:
    """Each has its turn, and no look holds up everything else."""
    idle = [Idle() for _ in range(3 * MOST_AT_ONCE + 10)]
    async with running_server(echo, replace(QUICK, sweep_seconds=0.05)) as running:
        for one in idle:
            running.server.add(one)  # type: ignore[arg-type]
        await until(lambda: all(len(one.looked_at) >= 3 for one in idle))
        for one in idle:
            running.server.remove(one)  # type: ignore[arg-type]
    at_once = Counter(now for one in idle for now in one.looked_at)
    assert max(at_once.values()) <= MOST_AT_ONCE
    often = [len(one.looked_at) for one in idle]
    assert max(often) - min(often) <= 1
