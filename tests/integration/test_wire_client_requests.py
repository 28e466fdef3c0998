"""Requests as the client writes them, and bodies that are streamed to engines."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from rolloutpool_router.testing import until
from rolloutpool_router.wire.client import ConnectionLost
from rolloutpool_router.wire.server import Exchange
from rolloutpool_router.wire.testing import (
    RawClient,
    RawEngine,
    running_server,
    saying,
    talk,
    whole_upstream,
)
from rolloutpool_testkit.loops import on_both_loops

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HEAD_200 = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("method", "body", "framing"),
    [
        pytest.param("GET", b"", b"", id="get"),
        pytest.param("POST", b"", b"Content-Length: 0\r\n", id="empty-post"),
        pytest.param("POST", b"hello", b"Content-Length: 5\r\n", id="post"),
        pytest.param("DELETE", b"x", b"Content-Length: 1\r\n", id="delete-with-body"),
    ],
)
@on_both_loops
async def test_requests_on_the_wire(method: str, body: bytes, framing: bytes) -> None:
    seen: list[bytes] = []

    async def script(client: RawClient) -> None:
        seen.append(await client.until(b"\r\n\r\n") + await client.exactly(len(body)))
        await client.send(OK)

    given = [(b"X-A", b"\xff"), (b"content-length", b"99"), (b"Host", b"evil"), (b"x-a", b"2")]
    async with RawEngine(script).running() as engine, whole_upstream() as upstream:
        answer = await upstream.request(engine.origin, method, "/p?q", given, body)
        assert await answer.read() == b"ok"
    head = f"{method} /p?q HTTP/1.1\r\nHost: 127.0.0.1:{engine.port}\r\n".encode()
    assert seen == [head + b"X-A: \xff\r\nx-a: 2\r\n" + framing + b"\r\n" + body]


@on_both_loops
async def test_a_header_cannot_break_out() -> None:
    async with RawEngine(saying(OK)).running() as engine, whole_upstream() as upstream:
        with pytest.raises(ValueError, match="line break"):
            await upstream.request(engine.origin, "GET", "/", [(b"X", b"a\r\nY: b")])
        with pytest.raises(ValueError, match="line break"):
            await upstream.request(engine.origin, "GET", "/ HTTP/1.1\r\nX: y", [])


async def pieces_of(data: bytes, size: int, taken: list[int] | None = None) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        if taken is not None:
            taken.append(size)
        yield data[at : at + size]


@pytest.mark.parametrize("known", [True, False])
@on_both_loops
async def test_a_body_is_streamed(known: bool) -> None:
    async def echo(exchange: Exchange) -> None:
        assert exchange.body_length == (len(body) if known else None)
        exchange.answer(200, [], await exchange.read_body(2**30))

    body = bytes(range(256)) * 20_000
    async with running_server(echo) as running, whole_upstream() as upstream:
        for first in (b"", body[:1000]):
            rest = pieces_of(body[len(first) :], 70_000)
            length = len(body) if known else None
            async with await upstream.request(
                running.origin, "POST", "/", [], first, rest=rest, length=length
            ) as answer:
                assert await answer.read() == body
        assert running.server.connections == 1


@on_both_loops
async def test_a_slow_engine_slows_the_body_down() -> None:
    go = asyncio.Event()

    async def slow(client: RawClient) -> None:
        await client.until(b"\r\n\r\n")
        await go.wait()
        await client.exactly(50_000_000)
        await client.send(OK)

    taken: list[int] = []
    async with RawEngine(slow).running() as engine, whole_upstream() as upstream:
        rest = pieces_of(bytes(50_000_000), 100_000, taken)
        sending = asyncio.create_task(
            upstream.request(engine.origin, "POST", "/", [], rest=rest, length=50_000_000)
        )
        await until(lambda: taken)
        for _ in range(300):
            await asyncio.sleep(0)
        assert len(taken) < 400
        go.set()
        assert await (await sending).read() == b"ok"
        assert len(taken) == 500


@pytest.mark.parametrize("first", [b"", b"x"])
@on_both_loops
async def test_an_engine_may_answer_before_the_body_ends(first: bytes) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000
            await asyncio.sleep(0.001)

    early = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"

    async def refuses(client: RawClient) -> None:
        await client.until(b"\r\n\r\n")
        await client.send(early)
        await client.rest()

    async with RawEngine(refuses).running() as engine, whole_upstream() as upstream:
        async with await upstream.request(engine.origin, "POST", "/", [], first, rest=endless()) as answer:
            assert answer.head.status == 413
            assert await answer.read() == b"no"
        await until(lambda: not engine.open)
        assert upstream.idle == 0


@on_both_loops
async def test_the_body_goes_on_while_the_answer_comes() -> None:
    async def echo(exchange: Exchange) -> None:
        exchange.start(200, [])
        async for piece in exchange.body_rest():
            exchange.write_piece(piece)
        exchange.end()

    answered = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"one "
        await answered.wait()
        yield b"two"

    async def proxy(exchange: Exchange) -> None:
        async with await upstream.request(engine.origin, "POST", "/", [], rest=body()) as answer:
            await answer.relay(exchange, on_body=lambda _: answered.set())

    async with running_server(echo) as engine, whole_upstream() as upstream, running_server(proxy) as running:
        said = await talk(running.port, b"GET / HTTP/1.0\r\n\r\n")
        assert said.endswith(b"\r\n\r\none two")


@on_both_loops
async def test_a_connection_with_unsent_bytes_is_not_used_again() -> None:
    async def refuses(client: RawClient) -> None:
        await client.until(b"\r\n\r\n")
        await client.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await asyncio.Event().wait()

    async with RawEngine(refuses).running() as engine, whole_upstream() as upstream:
        answer = await upstream.request(engine.origin, "POST", "/", [], bytes(50_000_000))
        assert await answer.read() == b"no"
        assert upstream.idle == 0


async def too_short() -> AsyncIterator[bytes]:
    yield b"x"


async def broken() -> AsyncIterator[bytes]:
    yield b"x"
    raise RuntimeError("the source broke")


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        pytest.param(too_short, ConnectionLost, id="too-short"),
        pytest.param(broken, RuntimeError, id="broken"),
    ],
)
@on_both_loops
async def test_a_body_that_breaks(rest: Callable[[], AsyncIterator[bytes]], error: type[Exception]) -> None:
    async def waits(client: RawClient) -> None:
        await client.rest()

    async with RawEngine(waits).running() as engine, whole_upstream() as upstream:
        with pytest.raises(error):
            await upstream.request(engine.origin, "POST", "/", [], rest=rest(), length=5)
        await until(lambda: engine.accepted and not engine.open)
