"""The way to the engines and to other routers: kept connections, bytes out, bytes back.

No total or read timeout, since a generation may take an hour; a short connect timeout, since an engine that
is there accepts at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from types import TracebackType
from typing import Self

from rolloutpool_router.wire.engine import ConnectionLost, EngineConnection, NotSent, Origin, Unreachable
from rolloutpool_router.wire.exchange import Exchange
from rolloutpool_router.wire.heads import Headers, ResponseHead, encode, encode_head, origin_form
from rolloutpool_router.wire.names import Names

__all__ = ["Answer", "ConnectionLost", "Fetched", "NotSent", "Origin", "Unreachable", "Upstream", "fetch"]

CONNECT_TIMEOUT_SECONDS = 5.0
IDLE_SECONDS = 4.0
"""How long an idle connection is kept; vLLM closes its own after 5 s by default."""
MAX_IDLE = 1024
"""Idle connections kept for one origin."""
MOST_CLOSED_AT_ONCE = 100
"""Idle connections that are closed before others get the event loop, about 1 ms."""
_MADE_HERE = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection"})
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"})


class Answer:
    """An answer of which the head is there. Leaving its block early closes the connection."""

    __slots__ = ("_connection", "_pieces", "_size", "_upstream", "head")

    def __init__(self, upstream: Upstream, connection: EngineConnection, head: ResponseHead) -> None:
        self.head = head
        self._upstream = upstream
        self._connection = connection
        self._pieces: list[bytes] = []
        self._size = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def last_byte_at(self) -> float:
        """The event loop's clock when the latest bytes came, in seconds."""
        return self._connection.last_byte_at

    @property
    def has_body(self) -> bool:
        """Whether any byte of the body was taken, be it of its framing."""
        return self._connection.has_body

    @property
    def is_held(self) -> bool:
        """Whether reading from the engine is paused, since the client does not take what came."""
        return self._connection.reading_paused

    async def read(self, limit: int = 2**26) -> bytes:
        """All of the body.

        Raises:
            ConnectionLost: it broke off, or is longer than `limit` bytes.
        """

        def collect(piece: bytes) -> None:
            self._size += len(piece)
            if self._size > limit:
                raise ConnectionLost(f"the answer is longer than {limit} bytes")
            self._pieces.append(piece)

        self._connection.pass_on(pieces=collect)
        await self._connection.whole()
        self.close()
        return b"".join(self._pieces)

    async def relay(
        self,
        exchange: Exchange,
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        on_body: Callable[[bytes], None] | None = None,
    ) -> None:
        """Pass the answer on to a client as it comes, its bytes untouched wherever the framing allows.

        A client that is slower than the engine slows the engine down. An answer that the client's has begun
        already (see `Exchange.start`) goes on with this one's body.

        Args:
            exchange: the client's.
            headers: added to the answer's own.
            on_body: sees the pieces of the body, without framing, before they are passed on.

        Raises:
            ConnectionLost: the engine's answer broke off; what came of it was passed on.
            ValueError: one of `headers` holds a line break.
        """
        connection = self._connection
        exchange.cork()
        try:
            raw = exchange.begin_relay(self.head, headers, connection.framing)
            if raw:
                connection.pass_on(raw=exchange.write_raw, pieces=on_body)
            else:
                connection.pass_on(pieces=_both(on_body, exchange.write_piece))
        finally:
            exchange.uncork()
        if not connection.done:
            exchange.watch_writing(connection.pause_reading, connection.resume_reading)
            try:
                await connection.whole()
            finally:
                exchange.watch_writing(None, None)
        exchange.end_relay(raw=raw)
        self.close()

    def close(self) -> None:
        """End with this answer: its connection is kept if it is whole, and closed otherwise."""
        self._upstream.release(self._connection)


class Upstream:
    """HTTP client with kept connections, the latest used first."""

    def __init__(self, *, most_idle: int = MAX_IDLE) -> None:
        """Keep up to `most_idle` idle connections for each origin; 0: each request has one of its own."""
        self._most_idle = most_idle
        self._idle: dict[Origin, dict[EngineConnection, None]] = {}
        """By origin, the longest idle first."""
        self._open: set[EngineConnection] = set()
        """Those that carry a request."""
        self._timer: asyncio.TimerHandle | None = None
        self._names = Names()
        self._closed = False

    @property
    def busy(self) -> int:
        """Connections that carry a request."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """Connections that are kept for another request."""
        return sum(len(kept) for kept in self._idle.values())

    async def request(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes = b"",
        *,
        rest: AsyncIterator[bytes] | None = None,
        length: int | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        may_send: Callable[[], bool] | None = None,
    ) -> Answer:
        """Send a request; its answer once the head is there.

        Args:
            origin: where to.
            method: of the request.
            target: path and query, as on the wire.
            headers: end-to-end ones; Host and those of framing are made here and ignored in it.
            body: all of the body, or its beginning.
            rest: what follows `body`; it is sent as it comes and as the other side takes it, also while the
                answer arrives, and dropped where the answer ends before it.
            length: bytes of `body` and `rest` together; None: not known, they are sent in chunks.
            connect_timeout: in seconds.
            may_send: asked when there is a connection, right before the first byte is written.

        Raises:
            Unreachable: no connection was made.
            NotSent: `may_send` said no.
            ConnectionLost: it broke before the head of an answer.
        """
        if self._closed:
            raise Unreachable("the client is closed")
        head = _request_head(origin, method, target, headers, len(body) if rest is None else length)
        connection = self._take(origin)
        if connection is None:
            connection = await self._connect(origin, connect_timeout)
        if may_send is not None and not may_send():
            self._keep(connection, connection.loop.time())
            raise NotSent(f"{origin.authority}: nothing was sent")
        self._open.add(connection)
        try:
            if rest is None:
                connection.send(head, body, to_head=method == "HEAD")
            else:
                first = body if length is not None or not body else b"%x\r\n%b\r\n" % (len(body), body)
                connection.send(head, first, to_head=method == "HEAD")
                connection.send_rest(rest, None if length is None else length - len(body))
            while (answered := connection.head) is None:
                await connection.more()
            return Answer(self, connection, answered)
        except BaseException:
            connection.close()
            self._open.discard(connection)
            raise

    async def close(self) -> None:
        """Close all connections, also those that carry an answer."""
        self._closed = True
        self._names.close()
        if self._timer is not None:
            self._timer.cancel()
        idle = [connection for kept in self._idle.values() for connection in kept]
        self._idle.clear()
        for connection in (*idle, *self._open):
            connection.close()
        self._open.clear()
        await asyncio.sleep(0)  # transports close in the event loop's next round

    def release(self, connection: EngineConnection) -> None:
        """Take a connection back from its answer; more than once does nothing."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        if connection.finish():
            self._keep(connection, connection.last_byte_at)

    def _keep(self, connection: EngineConnection, since: float) -> None:
        """Keep a connection that carries nothing since then, in seconds of the event loop's clock."""
        kept = self._idle.setdefault(connection.origin, {})
        if self._closed or len(kept) >= self._most_idle:
            connection.close()
            return
        connection.idle_since = since
        kept[connection] = None
        if self._timer is None:
            self._timer = connection.loop.call_later(1.0, self._sweep)

    def _take(self, origin: Origin) -> EngineConnection | None:
        kept = self._idle.get(origin)
        while kept:
            connection, _ = kept.popitem()
            fresh = connection.loop.time() - connection.idle_since < IDLE_SECONDS
            if fresh and not connection.transport.is_closing():
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin, timeout: float) -> EngineConnection:
        try:
            async with asyncio.timeout(timeout):
                return await self._connect_to_one(origin, await self._names.addresses(origin.host))
        except TimeoutError as error:
            self._names.forget(origin.host)
            raise Unreachable(f"{origin.authority}: no connection within {timeout:g} s") from error
        except (OSError, UnicodeError) as error:
            self._names.forget(origin.host)
            raise Unreachable(f"{origin.authority}: {error}") from error

    async def _connect_to_one(self, origin: Origin, addresses: list[str]) -> EngineConnection:
        """Connect to the first address that answers; raises OSError of the last if none does."""
        loop = asyncio.get_running_loop()
        failure = OSError("it has no address")
        for address in addresses:
            try:
                _, connection = await loop.create_connection(
                    lambda: EngineConnection(loop, origin, self._forget), address, origin.port
                )
                return connection
            except OSError as error:
                failure = error
        raise failure

    def _forget(self, connection: EngineConnection) -> None:
        if (kept := self._idle.get(connection.origin)) is not None:
            kept.pop(connection, None)

    def _sweep(self) -> None:
        """Close what has been idle too long, some of it at a time."""
        self._timer = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_SECONDS
        room = MOST_CLOSED_AT_ONCE
        for origin, kept in list(self._idle.items()):
            ended = takewhile(lambda each: each.idle_since < oldest, kept)
            for connection in list(islice(ended, room)):
                room -= 1
                del kept[connection]
                connection.close()
            if not kept:
                del self._idle[origin]
        if self._idle:
            self._timer = loop.call_later(1.0 if room else 0.01, self._sweep)


def _both(first: Callable[[bytes], None] | None, second: Callable[[bytes], None]) -> Callable[[bytes], None]:
    if first is None:
        return second

    def call(piece: bytes) -> None:
        first(piece)
        second(piece)

    return call


def _request_head(
    origin: Origin, method: str, target: str, headers: Iterable[tuple[bytes, bytes]], length: int | None
) -> bytes:
    """Head of a request whose body has `length` bytes; None: comes in chunks."""
    own = [pair for pair in headers if pair[0].lower() not in _MADE_HERE]
    own.insert(0, (b"Host", encode(origin.authority)))
    if length is None:
        own.append((b"Transfer-Encoding", b"chunked"))
    elif length or method not in _WITHOUT_BODY:
        own.append((b"Content-Length", b"%d" % length))
    return encode_head(encode(f"{method} {target} HTTP/1.1"), own)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A small answer, read whole."""

    status: int
    headers: Headers
    body: bytes


async def fetch(
    upstream: Upstream,
    method: str,
    url: str,
    *,
    headers: Iterable[tuple[bytes, bytes]] = (),
    body: bytes = b"",
    timeout: float,
    limit: int = 2**26,
) -> Fetched:
    """Ask for something small, within `timeout` seconds.

    Raises:
        Unreachable: no connection was made.
        ConnectionLost: it broke, took too long, or answered more than `limit` bytes.
        ValueError: the URL is not an http one.
    """
    origin = Origin.of(url)
    target = origin_form(url)
    try:
        async with asyncio.timeout(timeout):
            connect = min(timeout, CONNECT_TIMEOUT_SECONDS)
            async with await upstream.request(
                origin, method, target, headers, body, connect_timeout=connect
            ) as answer:
                return Fetched(answer.head.status, answer.head.headers, await answer.read(limit))
    except TimeoutError as error:
        raise ConnectionLost(f"{origin.authority}: no whole answer within {timeout:g} s") from error
