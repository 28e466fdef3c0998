"""The server and clients that are slow, that send much, or that go."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from rolloutpool_router.testing import until
from rolloutpool_router.wire.exchange import BODY_BUFFER_BYTES
from rolloutpool_router.wire.server import Exchange, Limits
from rolloutpool_router.wire.testing import Held, RawClient, echo, raw_client, running_server, talk
from rolloutpool_testkit.loops import on_both_loops

QUICK = Limits(sweep_seconds=0.01, linger_seconds=0.05)
GET = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"


# Time


@pytest.mark.parametrize(
    ("begin", "limits", "status"),
    [
        pytest.param(b"GET / HT", Limits(head_timeout_seconds=0.05), 408, id="head"),
        pytest.param(GET % 1 + b"GET", Limits(head_timeout_seconds=0.05), 408, id="second-head"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx",
            Limits(body_idle_timeout_seconds=0.05),
            408,
            id="body",
        ),
        pytest.param(GET % 1, Limits(keepalive_idle_seconds=0.05), None, id="idle"),
        pytest.param(b"", Limits(keepalive_idle_seconds=0.05), None, id="silent"),
    ],
)
@on_both_loops
async def test_slow_clients_are_sent_away(begin: bytes, limits: Limits, status: int | None) -> None:
    limits = replace(limits, sweep_seconds=0.01, linger_seconds=0.05)
    async with running_server(echo, limits) as running, raw_client(running.port) as client:
        await client.send(begin)
        said = await client.rest()
        assert (b"HTTP/1.1 408 " in said) == (status == 408)
        await until(lambda: running.server.connections == 0)


@on_both_loops
async def test_a_reader_that_stalls_is_cut_off() -> None:
    cancelled = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        exchange.start(200, [])
        try:
            exchange.write_piece(bytes(10_000_000))
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    limits = replace(QUICK, stalled_reader_seconds=0.1)
    async with (
        running_server(handler, limits) as running,
        raw_client(running.port, receive_buffer=4096) as client,
    ):
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(GET % 1)
        await asyncio.wait_for(cancelled.wait(), 20)
        await until(lambda: running.server.connections == 0)


# Bodies


@on_both_loops
async def test_expect_is_answered_when_the_body_is_wanted() -> None:
    wanted = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        await wanted.wait()
        exchange.answer(200, [], await exchange.read_body(10))

    async with running_server(handler, QUICK) as running, raw_client(running.port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.05)
        wanted.set()
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hi")
        assert await client.answer() == (200, b"hi")


@on_both_loops
async def test_a_refused_expectation_closes() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.answer(413, [], b"")

    async with running_server(handler, QUICK) as running:
        said = await talk(
            running.port, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (
            said == b"HTTP/1.1 413 Request Entity Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )


@on_both_loops
async def test_a_small_body_that_nobody_read_does_not_end_the_connection() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.answer(200, [], exchange.head.target.encode())

    async with running_server(handler) as running, raw_client(running.port) as client:
        await client.send(b"POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n" + b"x" * 10000)
        assert await client.answer() == (200, b"/1")
        await client.send(b"x" * 10000 + GET % 2)
        assert await client.answer() == (200, b"/2")


@on_both_loops
async def test_a_refusal_reaches_a_client_that_still_sends() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.answer(413, [], b"too large")

    async with running_server(handler, replace(QUICK, linger_seconds=10)) as running:
        async with raw_client(running.port) as client:
            await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
            for _ in range(200):
                await client.send(b"x" * 100_000)
            assert (await client.answer()) == (413, b"too large")
        await until(lambda: running.server.connections == 0)


@on_both_loops
async def test_a_body_comes_in_two_parts() -> None:
    size = 3_000_000

    async def handler(exchange: Exchange) -> None:
        first = await exchange.read_body(1_000_000)
        assert not exchange.body_complete
        assert exchange.body_length == size
        assert 1_000_000 <= len(first) <= 1_000_000 + BODY_BUFFER_BYTES
        rest = [piece async for piece in exchange.body_rest()]
        assert exchange.body_complete
        exchange.answer(200, [], b"%d" % len(first + b"".join(rest)))

    async with running_server(handler) as running, raw_client(running.port) as client:
        for _ in range(2):
            await client.send(
                b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
            )
            assert await client.answer() == (200, b"%d" % size)


@pytest.mark.parametrize("framing", ["length", "chunked"])
@on_both_loops
async def test_a_body_that_nobody_asks_for_waits_in_the_kernel(framing: str) -> None:
    size = 30_000_000
    held: list[Exchange] = []
    go = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        held.append(exchange)
        await go.wait()
        exchange.answer(200, [], b"%d" % len(await exchange.read_body(2**30)))

    if framing == "length":
        data = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
    else:
        data = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        data += b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000) * (size // 100_000) + b"0\r\n\r\n"
    async with running_server(handler) as running, raw_client(running.port) as client:
        client.writer.write(data)
        sending = asyncio.create_task(client.writer.drain())
        await until(lambda: held and held[0].full)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not sending.done()
        assert held[0]._buffered <= 2 * BODY_BUFFER_BYTES
        go.set()
        assert await client.answer() == (200, b"%d" % size)
        await sending


# Disconnects


async def leave_with_eof(client: RawClient) -> None:
    client.writer.write_eof()


async def leave_with_reset(client: RawClient) -> None:
    client.reset()


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(GET % 1, id="waiting"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx", id="half-a-body"),
        pytest.param(GET % 1 + GET % 2 + b"GET", id="pipelined"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999\r\n\r\n" + b"x" * 500_000, id="paused"
        ),
    ],
)
@pytest.mark.parametrize("leave", [leave_with_eof, leave_with_reset])
@on_both_loops
async def test_a_client_that_goes_ends_its_handler(
    begin: bytes, leave: Callable[[RawClient], object]
) -> None:
    held = Held()
    async with running_server(held, QUICK) as running, raw_client(running.port) as client:
        await client.send(begin)
        await until(lambda: held.started == 1)
        await leave(client)  # type: ignore[misc]
        await until(lambda: held.cancelled == 1)
        await until(lambda: running.server.connections == 0)
    assert held.started == 1


@on_both_loops
async def test_clean_up_is_not_disturbed() -> None:
    cleaned: list[str] = []

    async def handler(exchange: Exchange) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            exchange.answer(500, [], b"nobody reads this")
            cleaned.append("whole")

    async with running_server(handler) as running:
        async with raw_client(running.port) as client:
            await client.send(GET % 1)
            await until(lambda: len(running.server._tasks) == 1)
            client.writer.write_eof()
            await asyncio.sleep(0.01)
            client.reset()
        await until(lambda: cleaned)


@on_both_loops
async def test_many_clients_go_at_once() -> None:
    held = Held()
    async with running_server(held) as running:
        clients = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(200)]
        for _, writer in clients:
            writer.write(GET % 1)
        await until(lambda: held.started == len(clients))
        assert running.server.connections == len(clients)
        for _, writer in clients:
            writer.transport.abort()
        await until(lambda: held.cancelled == len(clients))
        await until(lambda: running.server.connections == 0)
        await until(lambda: not running.server._tasks)
