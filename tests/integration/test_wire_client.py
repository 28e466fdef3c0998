"""The client's side of HTTP/1.1, over real sockets: engines that answer, break off, and answer nonsense."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from rolloutpool_router.testing import until
from rolloutpool_router.wire import client as wire_client
from rolloutpool_router.wire.client import (
    Answer,
    ConnectionLost,
    NotSent,
    Origin,
    Unreachable,
    Upstream,
    fetch,
)
from rolloutpool_router.wire.engine import HELD_BYTES
from rolloutpool_router.wire.testing import RawClient, RawEngine, saying, whole_upstream
from rolloutpool_testkit.loops import on_both_loops

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HEAD_200 = b"HTTP/1.1 200 OK\r\n"


async def get(upstream: Upstream, engine: RawEngine, method: str = "GET") -> Answer:
    return await upstream.request(engine.origin, method, "/x", [])


# Connections


@on_both_loops
async def test_a_connection_is_used_again() -> None:
    async with RawEngine(saying(OK)).running() as engine, whole_upstream() as upstream:
        for _ in range(5):
            async with await get(upstream, engine) as answer:
                assert await answer.read() == b"ok"
        assert engine.accepted == 1
        both = [await get(upstream, engine), await get(upstream, engine)]
        assert [await answer.read() for answer in both] == [b"ok", b"ok"]
        assert engine.accepted == 2
        assert (upstream.busy, upstream.idle) == (0, 2)


@on_both_loops
async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_client, "IDLE_SECONDS", 0.0)
    async with RawEngine(saying(OK)).running() as engine, whole_upstream() as upstream:
        for count in (1, 2):
            await (await get(upstream, engine)).read()
            assert engine.accepted == count
        await until(lambda: not engine.open and upstream.idle == 0)


@on_both_loops
async def test_many_idle_connections_are_closed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_client, "MOST_CLOSED_AT_ONCE", 2)
    async with RawEngine(saying(OK)).running() as engine, whole_upstream() as upstream:
        answers = [await get(upstream, engine) for _ in range(7)]
        for answer in answers:
            await answer.read()
        assert upstream.idle == 7
        monkeypatch.setattr(wire_client, "IDLE_SECONDS", -1.0)
        left = []
        for _ in range(4):
            upstream._sweep()
            left.append(upstream.idle)
        assert left == [5, 3, 1, 0]
        await until(lambda: not engine.open)


@on_both_loops
async def test_without_idle_ones_each_request_has_its_own() -> None:
    async with RawEngine(saying(OK)).running() as engine:
        upstream = Upstream(most_idle=0)
        for count in (1, 2):
            assert await (await get(upstream, engine)).read() == b"ok"
            assert (engine.accepted, upstream.idle) == (count, 0)
        await until(lambda: not engine.open)
        await upstream.close()


@on_both_loops
async def test_what_may_not_be_sent_is_not() -> None:
    """The connection is there, and serves the next request."""
    seen: list[bytes] = []

    async def script(client: RawClient) -> None:
        seen.append(await client.until(b"\r\n\r\n"))
        await client.send(OK)

    async with RawEngine(script).running() as engine, whole_upstream() as upstream:
        for _ in range(2):
            with pytest.raises(NotSent):
                await upstream.request(engine.origin, "GET", "/no", [], may_send=lambda: False)
            await until(lambda: engine.accepted)
            assert (engine.accepted, upstream.busy, upstream.idle) == (1, 0, 1)
        answer = await upstream.request(engine.origin, "GET", "/yes", [], may_send=lambda: True)
        assert await answer.read() == b"ok"
        assert [head.split()[1] for head in seen] == [b"/yes"]


@on_both_loops
async def test_a_connection_that_the_engine_closed_is_not_used() -> None:
    async with RawEngine(saying(OK, close=True)).running() as engine, whole_upstream() as upstream:
        for _ in range(3):
            assert await (await get(upstream, engine)).read() == b"ok"
            await until(lambda: upstream.idle == 0)
        assert engine.accepted == 3


@on_both_loops
async def test_a_kept_connection_that_ends_without_an_answer_is_not_replaced() -> None:
    async def once(client: RawClient) -> None:
        await client.until(b"\r\n\r\n")
        await client.send(OK)
        await client.until(b"\r\n\r\n")

    async with RawEngine(once).running() as engine, whole_upstream() as upstream:
        assert await (await get(upstream, engine)).read() == b"ok"
        with pytest.raises(ConnectionLost):
            await get(upstream, engine)
        assert engine.accepted == 1


@on_both_loops
async def test_bytes_on_an_idle_connection_close_it() -> None:
    async def chatty(client: RawClient) -> None:
        await client.until(b"\r\n\r\n")
        await client.send(OK)
        await asyncio.sleep(0.02)
        await client.send(OK)
        await client.rest()

    async with RawEngine(chatty).running() as engine, whole_upstream() as upstream:
        assert await (await get(upstream, engine)).read() == b"ok"
        await until(lambda: upstream.idle == 0 and not engine.open)


@pytest.mark.parametrize(
    "origin",
    [
        pytest.param(Origin.of("http://127.0.0.1:1"), id="refused"),
        pytest.param(Origin.of("http://nowhere.invalid:80"), id="no-such-name"),
        pytest.param(Origin.of(f"http://{'x' * 70}.invalid:80"), id="no-name"),
    ],
)
@on_both_loops
async def test_unreachable(origin: Origin) -> None:
    async with whole_upstream() as upstream:
        with pytest.raises(Unreachable):
            await upstream.request(origin, "GET", "/", [])


@on_both_loops
async def test_a_connection_that_is_never_made_times_out() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            origin = Origin("127.0.0.1", full.getsockname()[1], "a")
            async with whole_upstream() as upstream:
                with pytest.raises(Unreachable, match="within"):
                    await upstream.request(origin, "GET", "/", [], connect_timeout=0.1)
        finally:
            for filler in fillers:
                filler.close()


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        pytest.param("http://a", Origin("a", 80, "a"), id="name"),
        pytest.param("http://user:secret@a:8000/v1", Origin("a", 8000, "a:8000"), id="user"),
        pytest.param("http://[::1]:8000", Origin("::1", 8000, "[::1]:8000"), id="ipv6"),
    ],
)
def test_origins(url: str, origin: Origin) -> None:
    assert Origin.of(url) == origin


@pytest.mark.parametrize("url", ["https://a", "a:80", "http://", "http://a:b"])
def test_what_is_no_origin(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Origin.of(url)


@on_both_loops
async def test_ipv6_and_names() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        writer.close()

    seen: list[bytes] = []
    server = await asyncio.start_server(script, "::1", 0)
    port = server.sockets[0].getsockname()[1]
    async with whole_upstream() as upstream:
        for host in ("[::1]", "localhost"):
            if host == "localhost":
                server.close()
                server = await asyncio.start_server(script, "localhost", 0)
                port = server.sockets[0].getsockname()[1]
            got = await fetch(upstream, "GET", f"http://{host}:{port}/a?b", timeout=10)
            assert (got.status, got.body) == (200, b"ok")
            assert seen[-1] == f"GET /a?b HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    server.close()


# Answers

KINDS = [
    pytest.param(OK, b"ok", True, id="length"),
    pytest.param(HEAD_200 + b"Content-Length: 0\r\n\r\n", b"", True, id="empty"),
    pytest.param(
        HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n2;x\r\nok\r\n0\r\nX-T: v\r\n\r\n",
        b"ok",
        True,
        id="chunked",
    ),
    pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", b"", True, id="204"),
    pytest.param(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", b"", True, id="304"),
    pytest.param(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n" + OK, b"ok", True, id="1xx"
    ),
    pytest.param(
        HEAD_200 + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", b"ok", False, id="says-close"
    ),
    pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False, id="1.0"),
    pytest.param(OK + b"HTTP/1.1 200 OK\r\n\r\n", b"ok", False, id="more-than-the-answer"),
    pytest.param(HEAD_200[:-5] + b"\r\nContent-Length: 2\r\n\r\nok", b"ok", True, id="no-reason"),
]


@pytest.mark.parametrize(("raw", "body", "kept"), KINDS)
@pytest.mark.parametrize("size", [1, 1000])
@on_both_loops
async def test_kinds_of_answers(raw: bytes, body: bytes, kept: bool, size: int) -> None:
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    async with RawEngine(saying(*pieces)).running() as engine, whole_upstream() as upstream:
        async with await get(upstream, engine) as answer:
            assert await answer.read() == body
        if size > 1:
            assert (upstream.idle == 1) == kept


@on_both_loops
async def test_an_answer_to_head() -> None:
    no_body = HEAD_200 + b"Content-Length: 7\r\n\r\n"
    async with RawEngine(saying(no_body)).running() as engine, whole_upstream() as upstream:
        for _ in range(3):
            async with await get(upstream, engine, "HEAD") as answer:
                assert answer.head.headers.get("content-length") == "7"
                assert await answer.read() == b""
        assert engine.accepted == 1


@on_both_loops
async def test_an_answer_that_ends_with_the_connection() -> None:
    script = saying(HEAD_200 + b"\r\n", b"one ", b"two", close=True)
    async with RawEngine(script).running() as engine, whole_upstream() as upstream:
        for wait in (False, True):
            async with await get(upstream, engine) as answer:
                if wait:
                    await until(lambda: not engine.open)
                assert await answer.read() == b"one two"
        assert engine.accepted == 2


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", id="half-a-head"),
        pytest.param(HEAD_200 + b"Content-Length: 3\r\n\r\nok", id="half-a-body"),
        pytest.param(HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", id="no-last-chunk"),
        pytest.param(HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n", id="broken-chunk"),
        pytest.param(b"garbage" * 100, id="garbage"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2**21, id="header-bomb"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000, id="endless-1xx"),
        pytest.param(
            HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            id="chunked-and-more",
        ),
        pytest.param(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            id="another-protocol",
        ),
    ],
)
@on_both_loops
async def test_answers_that_are_none(raw: bytes) -> None:
    async with RawEngine(saying(raw, close=True)).running() as engine, whole_upstream() as upstream:
        with pytest.raises(ConnectionLost):
            async with await get(upstream, engine) as answer:
                await answer.read()
        await until(lambda: not engine.open)
        assert upstream.idle == 0


async def goes_silent(client: RawClient) -> None:
    await client.until(b"\r\n\r\n")
    await client.send(HEAD_200 + b"Content-Length: 9\r\n\r\nok")
    await client.rest()


async def says_nothing(client: RawClient) -> None:
    await client.rest()


@on_both_loops
async def test_leaving_an_answer_early_ends_the_request() -> None:
    async with RawEngine(goes_silent).running() as engine, whole_upstream() as upstream:
        async with await get(upstream, engine) as answer:
            assert answer.last_byte_at <= asyncio.get_running_loop().time()
        await until(lambda: engine.accepted == 1 and not engine.open)


@pytest.mark.parametrize("script", [goes_silent, says_nothing])
@on_both_loops
async def test_cancelling_ends_the_request(script: Callable[[RawClient], object]) -> None:
    async def ask(upstream: Upstream, engine: RawEngine) -> None:
        async with await get(upstream, engine) as answer:
            await answer.read()

    async with RawEngine(script).running() as engine, whole_upstream() as upstream:  # type: ignore[arg-type]
        asking = asyncio.create_task(ask(upstream, engine))
        await until(lambda: engine.open)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: not engine.open)


@on_both_loops
async def test_another_task_may_end_an_answer() -> None:
    async with RawEngine(goes_silent).running() as engine, whole_upstream() as upstream:
        answer = await get(upstream, engine)
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        answer.close()
        with pytest.raises(ConnectionLost):
            await reading


@on_both_loops
async def test_an_answer_that_is_too_long() -> None:
    async with RawEngine(saying(OK)).running() as engine, whole_upstream() as upstream:
        async with await get(upstream, engine) as answer:
            with pytest.raises(ConnectionLost, match="longer"):
                await answer.read(1)
        await until(lambda: not engine.open)


@on_both_loops
async def test_what_nobody_takes_stays_with_the_engine() -> None:
    sent = 0

    async def script(client: RawClient) -> None:
        nonlocal sent
        await client.until(b"\r\n\r\n")
        await client.send(HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(300):
            await client.send(b"186a0\r\n%b\r\n" % bytes(100_000))
            sent += 1
        await client.send(b"0\r\n\r\n")
        await client.rest()

    async with RawEngine(script).running() as engine, whole_upstream() as upstream:
        answer = await get(upstream, engine)
        await until(lambda: answer.is_held)
        for _ in range(300):
            await asyncio.sleep(0)
        assert sent < 250
        assert answer._connection._held_bytes <= 3 * HELD_BYTES
        assert len(await answer.read()) == 30_000_000
        assert upstream.idle == 1


@pytest.mark.parametrize("script", [goes_silent, says_nothing])
@on_both_loops
async def test_fetch_has_a_deadline(script: Callable[[RawClient], object]) -> None:
    async with RawEngine(script).running() as engine, whole_upstream() as upstream:  # type: ignore[arg-type]
        with pytest.raises(ConnectionLost, match=r"within 0\.05 s"):
            await fetch(upstream, "GET", f"http://127.0.0.1:{engine.port}/", timeout=0.05)
        await until(lambda: not engine.open)


@on_both_loops
async def test_close_ends_everything() -> None:
    async with RawEngine(goes_silent).running() as engine:
        upstream = Upstream()
        answer = await get(upstream, engine)
        await upstream.close()
        with pytest.raises(ConnectionLost):
            await answer.read()
        with pytest.raises(Unreachable):
            await get(upstream, engine)
        await until(lambda: not engine.open)
