"""Answers passed from an engine to a client: untouched where they can be, whole or seen to be broken."""

import asyncio
import gzip
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from rolloutpool_router.testing import until
from rolloutpool_router.wire.client import ConnectionLost, Origin, Unreachable, Upstream
from rolloutpool_router.wire.heads import OF_THE_REQUEST, end_to_end
from rolloutpool_router.wire.server import Exchange, Limits, Server
from rolloutpool_router.wire.testing import (
    RawClient,
    RawEngine,
    Script,
    raw_client,
    running_server,
    saying,
    talk,
)
from rolloutpool_testkit.loops import on_both_loops

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
CLOSE = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
OLD = b"GET /x HTTP/1.0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
QUICK = Limits(sweep_seconds=0.01, linger_seconds=0.05)


@dataclass
class Proxy:
    """Passes everything on to one engine."""

    origin: Origin
    upstream: Upstream = field(default_factory=Upstream)
    seen: list[bytes] = field(default_factory=list)
    """Pieces of answers."""
    lost: int = 0
    cancelled: int = 0
    port: int = 0
    read_limit: int = 2**20
    first_says: bytes = b""
    """Said before the engine is asked."""

    async def handle(self, exchange: Exchange) -> None:
        head = exchange.head
        try:
            body = await exchange.read_body(self.read_limit)
            if self.first_says:
                exchange.start(200, [("Content-Type", "text/event-stream")])
                exchange.write_piece(self.first_says)
            rest = None if exchange.body_complete else exchange.body_rest()
            async with await self.upstream.request(
                self.origin,
                head.method,
                head.target,
                end_to_end(head.headers, OF_THE_REQUEST),
                body,
                rest=rest,
                length=exchange.body_length if rest else None,
            ) as answer:
                await answer.relay(exchange, [(b"X-Own", b"1")], on_body=self.seen.append)
        except (ConnectionLost, Unreachable):
            self.lost += 1
            if exchange.started:
                exchange.abort()
            else:
                exchange.answer(502, [], b"lost")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@asynccontextmanager
async def proxying(origin: Origin, limits: Limits | None = None) -> AsyncIterator[tuple[Proxy, Server]]:
    """A proxy within the block; at its end it holds on to nothing."""
    proxy = Proxy(origin)
    async with running_server(proxy.handle, limits) as running:
        proxy.port = running.port
        try:
            yield proxy, running.server
            await until(lambda: running.server.connections == 0 and proxy.upstream.busy == 0)
        finally:
            await proxy.upstream.close()


CHUNKS = b"3;ext=1\r\none\r\n4\r\n two\r\n0\r\nX-Trailer: 1\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("request_bytes", "answer", "said"),
    [
        pytest.param(
            CLOSE,
            b"Content-Length: 7\r\n\r\none two",
            b"Content-Length: 7\r\nX-Own: 1\r\nConnection: close\r\n\r\none two",
            id="length",
        ),
        pytest.param(
            OLD,
            b"Content-Length: 7\r\n\r\none two",
            b"Content-Length: 7\r\nX-Own: 1\r\nConnection: close\r\n\r\none two",
            id="length-to-1.0",
        ),
        pytest.param(
            CLOSE,
            b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
            b"X-Own: 1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + CHUNKS,
            id="chunked",
        ),
        pytest.param(
            OLD,
            b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
            b"X-Own: 1\r\nConnection: close\r\n\r\none two",
            id="chunked-to-1.0",
        ),
        pytest.param(OLD, b"\r\none two", b"X-Own: 1\r\nConnection: close\r\n\r\none two", id="close-to-1.0"),
        pytest.param(
            CLOSE,
            b"Keep-Alive: timeout=5\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
            b"Content-Length: 0\r\n\r\n",
            b"Content-Length: 0\r\nX-Own: 1\r\nConnection: close\r\n\r\n",
            id="empty-with-hop-by-hop",
        ),
        pytest.param(
            CLOSE.replace(b"GET", b"HEAD"),
            b"Content-Length: 7\r\n\r\n",
            b"Content-Length: 7\r\nX-Own: 1\r\nConnection: close\r\n\r\n",
            id="head",
        ),
    ],
)
@on_both_loops
async def test_framings(request_bytes: bytes, answer: bytes, said: bytes, size: int) -> None:
    raw = OK + answer
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    script = saying(*pieces, close=answer.startswith(b"\r\n"))
    async with RawEngine(script).running() as engine, proxying(engine.origin) as (proxy, _):
        assert await talk(proxy.port, request_bytes) == OK + said
        if said.endswith((b"one two", CHUNKS)):
            assert b"".join(proxy.seen) == b"one two"


@on_both_loops
async def test_an_answer_without_framing_becomes_chunked() -> None:
    script = saying(OK + b"\r\n", b"one", b" two", close=True)
    async with (
        RawEngine(script).running() as engine,
        proxying(engine.origin) as (proxy, _),
        raw_client(proxy.port) as client,
    ):
        for _ in range(2):
            await client.send(GET)
            head = await client.until(b"\r\n\r\n")
            assert head == OK + b"X-Own: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
            body = await client.until(b"\r\n0\r\n\r\n")
            assert b"".join(proxy.seen) == b"one two"
            assert b"one" in body
            proxy.seen.clear()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS, id="chunked"),
        pytest.param(b"Content-Length: 7\r\n\r\none two", id="length"),
        pytest.param(b"\r\none two", id="close"),
    ],
)
@pytest.mark.parametrize("old", [True, False])
@on_both_loops
async def test_an_answer_that_has_begun_goes_on(answer: bytes, old: bool) -> None:
    script = saying(OK + answer, close=True)
    async with RawEngine(script).running() as engine, proxying(engine.origin) as (proxy, _):
        proxy.first_says = b": waiting\n\n"
        said = await talk(proxy.port, OLD if old else CLOSE)
        head, _, body = said.partition(b"\r\n\r\n")
        assert b"X-Own" not in head
        if old:
            assert body == b": waiting\n\none two"
        elif b"chunked" in answer:
            assert body == b"b\r\n: waiting\n\n\r\n" + CHUNKS
        else:
            assert body == b"b\r\n: waiting\n\n\r\n7\r\none two\r\n0\r\n\r\n"


@on_both_loops
async def test_compressed_bodies_pass_untouched() -> None:
    packed = gzip.compress(b"hello" * 1000)

    async def echo(exchange: Exchange) -> None:
        body = await exchange.read_body(2**20)
        exchange.answer(200, [("Content-Encoding", exchange.head.headers.lower["content-encoding"])], body)

    async with (
        running_server(echo) as engine,
        proxying(engine.origin) as (proxy, _),
        raw_client(proxy.port) as client,
    ):
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        await client.send(head % len(packed) + packed)
        assert await client.answer() == (200, packed)


@pytest.mark.parametrize("framing", ["length", "chunked"])
@on_both_loops
async def test_large_bodies_stream_through(framing: str) -> None:
    """What is held of one is bounded by buffers, and what arrives is what was sent."""
    size = 20_000_000
    body = random.Random(1).randbytes(size)

    async def digest(exchange: Exchange) -> None:
        found = hashlib.sha256()
        async for piece in exchange.body_rest():
            found.update(piece)
        exchange.answer(200, [], found.hexdigest().encode())

    if framing == "length":
        raw = b"Content-Length: %d\r\n\r\n" % size + body
    else:
        raw = b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n" % (size, body) + b"0\r\n\r\n"
    async with running_server(digest) as engine, proxying(engine.origin) as (proxy, _):
        async with raw_client(proxy.port) as client:
            await client.send(b"POST / HTTP/1.1\r\nHost: a\r\n" + raw)
            assert await client.answer() == (200, hashlib.sha256(body).hexdigest().encode())
        await until(lambda: proxy.upstream.busy == 0)


@dataclass
class Endless:
    """An engine that says more and more."""

    sent: int = 0
    framing: bytes = b"Transfer-Encoding: chunked\r\n\r\n"

    async def script(self, client: RawClient) -> None:
        await client.until(b"\r\n\r\n")
        await client.send(OK + self.framing)
        piece = bytes(100_000)
        if b"chunked" in self.framing:
            piece = b"186a0\r\n%b\r\n" % piece
        while True:
            await client.send(piece)
            self.sent += 1


@pytest.mark.parametrize(
    "framing", [b"Transfer-Encoding: chunked\r\n\r\n", b"Content-Length: 99999999999\r\n\r\n", b"\r\n"]
)
@on_both_loops
async def test_a_slow_client_slows_the_engine_down(framing: bytes) -> None:
    endless = Endless(framing=framing)
    async with RawEngine(endless.script).running() as engine, proxying(engine.origin) as (proxy, _):
        async with raw_client(proxy.port, receive_buffer=4096) as client:
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(GET)
            await until(lambda: endless.sent)
            before = -1
            while endless.sent > before:
                before = endless.sent
                for _ in range(50):
                    await asyncio.sleep(0)
            assert endless.sent < 200
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]
            while endless.sent <= before:
                await client.exactly(100_000)
        await until(lambda: not engine.open)
        assert proxy.cancelled == 1


@on_both_loops
async def test_a_client_that_goes_ends_the_engine_s_work() -> None:
    async def stream(client: RawClient) -> None:
        await client.until(b"\r\n\r\n")
        await client.send(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        await client.rest()

    async with RawEngine(stream).running() as engine, proxying(engine.origin) as (proxy, _):
        async with raw_client(proxy.port) as client:
            await client.send(GET)
            await client.until(b"1\r\nx\r\n")
            assert len(engine.open) == 1
        await until(lambda: not engine.open)
        assert (proxy.cancelled, proxy.lost) == (1, 0)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n", id="chunked"),
        pytest.param(b"Content-Length: 7\r\n\r\none", id="length"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\ngarbage\r\n", id="garbage"),
    ],
)
@on_both_loops
async def test_an_answer_that_breaks_off_is_seen_to_be_broken(answer: bytes) -> None:
    script = saying(OK + answer, close=True)
    async with RawEngine(script).running() as engine, proxying(engine.origin) as (proxy, _):
        said = await talk(proxy.port, GET)
        assert not said.endswith((b"0\r\n\r\n", b"one two"))
        assert proxy.lost == 1


@on_both_loops
async def test_an_answer_that_breaks_off_is_a_reset_where_its_end_is_that_of_the_connection() -> None:
    script = saying(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n", close=True)
    async with RawEngine(script).running() as engine, proxying(engine.origin) as (proxy, _):
        with pytest.raises(ConnectionResetError):
            await talk(proxy.port, OLD)


@on_both_loops
async def test_many_clients_go_at_once() -> None:
    async def stream(client: RawClient) -> None:
        await client.until(b"\r\n\r\n")
        await client.send(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        await client.rest()

    async with RawEngine(stream).running() as engine, proxying(engine.origin) as (proxy, server):
        clients = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(200)]
        for _, writer in clients:
            writer.write(GET)
        await until(lambda: len(proxy.seen) == len(clients))
        for _, writer in clients:
            writer.transport.abort()
        await until(lambda: not engine.open and server.connections == 0)
        assert proxy.cancelled == len(clients)


# Chaos


def misbehaving(rng: random.Random) -> Script:
    """An engine that answers, streams, dawdles, resets, breaks off and talks nonsense, as chance has it."""

    async def script(client: RawClient) -> None:
        while True:
            head = await client.until(b"\r\n\r\n")
            if b"Content-Length" in head and rng.random() < 0.9:
                await client.exactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
            match rng.randrange(8):
                case 0:
                    client.reset()
                    return
                case 1:
                    await client.send(b"nonsense\r\n\r\n")
                    return
                case 2:
                    await client.send(OK + b"Content-Length: 500000\r\n\r\n" + bytes(rng.randrange(500_000)))
                    return
                case 3:
                    await client.send(OK + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS + OK)
                case 4:
                    await client.send(OK + b"Transfer-Encoding: chunked\r\n\r\n")
                    for _ in range(rng.randrange(20)):
                        await client.send(b"5\r\nhello\r\n")
                        await asyncio.sleep(0)
                    await client.send(b"0\r\n\r\n")
                case 5:
                    await client.send(OK + b"\r\nuntil the end")
                    return
                case _:
                    await client.send(OK + b"Content-Length: 7\r\n\r\none two")

    return script


async def misbehave(port: int, rng: random.Random) -> None:
    """A client that asks, reads a little, and goes in one way or another."""
    async with raw_client(port) as client:
        for _ in range(rng.randrange(1, 4)):
            size = rng.choice([0, 3, 300_000])
            raw = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
            cut = rng.choice([len(raw), len(raw), rng.randrange(len(raw))])
            client.writer.write(raw[:cut])
            if rng.random() < 0.8:
                with suppress(TimeoutError):
                    await asyncio.wait_for(client.reader.read(100), rng.random() / 20)
        match rng.randrange(3):
            case 0:
                client.reset()
            case 1:
                client.writer.write(b"\0\r\n\r\n")
            case _:
                if client.writer.can_write_eof() and not client.writer.is_closing():
                    client.writer.write_eof()


@pytest.mark.parametrize("seed", range(3))
@on_both_loops
async def test_nothing_is_left_after_chaos(seed: int) -> None:
    rng = random.Random(seed)
    limits = Limits(
        sweep_seconds=0.01, linger_seconds=0.05, body_idle_timeout_seconds=1, head_timeout_seconds=1
    )
    async with (
        RawEngine(misbehaving(rng)).running() as engine,
        proxying(engine.origin, limits) as (proxy, server),
    ):
        clients = (misbehave(proxy.port, random.Random(rng.random())) for _ in range(150))
        await asyncio.gather(*clients, return_exceptions=True)
        await until(lambda: server.connections == 0 and proxy.upstream.busy == 0)
        await until(lambda: not server._tasks)
        await until(lambda: len(engine.open) == proxy.upstream.idle)
        # It serves on as if nothing had been.
        while b"one two" not in await talk(proxy.port, CLOSE):
            pass
