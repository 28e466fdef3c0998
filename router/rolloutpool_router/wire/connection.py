"""A client's connection: requests in, one after the other, each handed to the handler.

One task serves a connection, from its first request to its end. Requests that a client sends ahead of their
turn wait unparsed, with reading paused.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rolloutpool_router.wire.exchange import Exchange
from rolloutpool_router.wire.heads import CLOSE, BadMessage, RequestHead, encode_head, status_line
from rolloutpool_router.wire.request_reader import RequestReader
from rolloutpool_router.wire.sockets import peer_has_left, probe, reset_on_close

if TYPE_CHECKING:
    from rolloutpool_router.wire.server import Server

log = logging.getLogger(__name__)

MOST_REFUSED = 1024
"""Connections beyond the limit that get to read why they are refused, at a time; others are just closed."""
Handler = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True)
class Limits:
    """What one connection may take; times in seconds."""

    max_head_bytes: int = 65536
    """A longer head is answered with 431."""
    head_timeout_seconds: float = 60.0
    """A head that takes longer from its first byte is answered with 408."""
    body_idle_timeout_seconds: float = 300.0
    """A body of which nothing comes for so long is answered with 408."""
    keepalive_idle_seconds: float = 75.0
    """A connection without a request for so long is closed."""
    stalled_reader_seconds: float = 600.0
    """A client that takes nothing of its answer for so long is cut off."""
    linger_seconds: float = 2.0
    """How long a refused client may go on sending, so that it gets to read the refusal."""
    max_connections: int = 65536
    """Beyond, connections are answered with 503 and closed."""
    sweep_seconds: float = 1.0
    """About how often the times above are looked at, for each connection."""


class ClientConnection(asyncio.Protocol):
    """The server's side of one connection."""

    __slots__ = (
        "_broken",
        "_cancelled",
        "_closing",
        "_corked",
        "_current",
        "_deadline",
        "_drain",
        "_head_since",
        "_heard_at",
        "_on_pause",
        "_on_resume",
        "_paused_since",
        "_queue",
        "_reader",
        "_rest",
        "_server",
        "_stopped",
        "_task",
        "_waiter",
        "loop",
        "transport",
        "writing_paused",
    )

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.loop = server.loop
        self.writing_paused = False
        """The client takes its answer slower than it comes."""
        self._server = server
        self._reader = RequestReader(self._begin, server.limits.max_head_bytes)
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._queue: list[Exchange] = []
        """Requests whose turn has not come."""
        self._current: Exchange | None = None
        """The request that is being answered."""
        self._head_since: float | None = None
        """When the head that is arriving began."""
        self._broken: BadMessage | None = None
        """Why nothing more is read."""
        self._rest: bytes | memoryview = b""
        """What was received and waits to be parsed."""
        self._stopped = False
        """Reading is paused."""
        self._heard_at = server.now
        self._paused_since: float | None = None
        self._deadline: float | None = None
        """When the closing connection is cut off."""
        self._closing = False
        self._corked: list[bytes] | None = None
        """What is held back, while it is."""
        self._cancelled = False
        self._drain: asyncio.Future[None] | None = None
        self._on_pause: Callable[[], None] | None = None
        self._on_resume: Callable[[], None] | None = None

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        probe(transport)
        connections = self._server.add(self)
        most = self._server.limits.max_connections
        if connections <= most:
            self._task = self.loop.create_task(self._serve())
            self._server.serving(self._task)
        elif connections > most + MOST_REFUSED:
            self.transport.abort()
        else:
            self._refuse(BadMessage(503, "too many connections; try again later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: end its handler."""
        self._closing = True
        self._reader.close()
        self._rest = b""
        self._server.remove(self)
        self._cancel()

    def eof_received(self) -> None:
        """The client closed its side: nobody waits for the answer."""
        if self._idle():
            self._close()
        self._cancel()

    def data_received(self, data: bytes) -> None:
        """Parse what came, as far as it may be held."""
        if self._closing or self._broken is not None:
            return
        self._heard_at = self._server.now
        self._feed(data)

    def pause_writing(self) -> None:
        """The client's buffer is full."""
        self.writing_paused = True
        self._paused_since = self._server.now
        if self._on_pause is not None:
            self._on_pause()

    def resume_writing(self) -> None:
        """The client's buffer has room again."""
        self.writing_paused = False
        self._paused_since = None
        if self._on_resume is not None:
            self._on_resume()
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)

    # Reading

    def _feed(self, data: bytes | memoryview) -> None:
        """Read requests as far as they may be held; the rest waits."""
        reader = self._reader
        while data and not reader.exhausted:
            incoming = reader.incoming
            if incoming.full if incoming is not None else self._queue:
                self._rest = data
                self._pause()
                return
            size = reader.appetite
            if len(data) <= size:
                piece, data = data, b""
            else:
                view = memoryview(data)
                piece, data = view[:size], view[size:]
            try:
                reader.feed(piece)
            except BadMessage as problem:
                self._break(problem)
                return
            if not reader.in_head:
                self._head_since = None
            elif self._head_since is None:
                self._head_since = self._server.now

    def _pause(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.transport.pause_reading()

    def _begin(self, head: RequestHead, length: int | None, keep_alive: bool) -> Exchange:
        """Take a request whose head was read."""
        exchange = Exchange(self, head, length, keep_alive=keep_alive)
        self._head_since = None
        self._queue.append(exchange)
        self._wake()
        return exchange

    def _break(self, problem: BadMessage) -> None:
        """Read nothing more; answer `problem` when the requests before have been answered."""
        self._broken = problem
        self._rest = b""
        self._head_since = None
        broken, self._reader.incoming = self._reader.incoming, None
        if broken is None:
            self._wake()
            return
        if broken in self._queue:
            self._queue.remove(broken)
            self._wake()
            return
        if broken.ended:
            self._linger()
        elif broken.started:
            broken.abort()
        else:
            self._refuse(problem)
        self._cancel()

    # Serving

    async def _serve(self) -> None:
        try:
            while (exchange := await self._next()) is not None:
                self._current = exchange
                try:
                    await self._server.handler(exchange)
                except Exception:
                    log.exception("%s %s failed", exchange.head.method, exchange.head.path)
                if not self._finish(exchange):
                    return
                del exchange  # or an idle connection would keep its latest request
                if self.writing_paused:
                    await self.drained()  # or a client that only sends would have its answers pile up
                elif self._queue:
                    await asyncio.sleep(0)  # or a client that sends ahead would keep the others waiting
            if self._broken is not None:
                self._refuse(self._broken)
        finally:
            if not self._closing:
                self.transport.abort()

    async def _next(self) -> Exchange | None:
        """The next request; None: none will come."""
        while not self._queue:
            if self._broken is not None:
                return None
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._queue.pop(0)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _finish(self, exchange: Exchange) -> bool:
        """End an exchange; whether the connection goes on."""
        self._current = None
        if self._closing:
            return False
        if not exchange.started:
            exchange.answer(500, [("Content-Type", "application/json")], _error(500, "internal error"))
        if not exchange.ended:
            exchange.abort()
            return False
        if exchange.closes:
            if exchange.body_complete and not self._rest:
                self._close()
            else:
                self._linger()
            return False
        if not exchange.body_complete:
            exchange.discard()
        self._heard_at = self._server.now
        self.go_on()
        return True

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    # Closing

    def _refuse(self, problem: BadMessage) -> None:
        body = _error(problem.status, str(problem))
        headers = [
            (b"Content-Type", b"application/json"),
            (b"Content-Length", b"%d" % len(body)),
            CLOSE,
        ]
        self.transport.write(encode_head(status_line(problem.status), headers) + body)
        self._linger()

    def _close(self) -> None:
        """Close once all is written."""
        self._closing = True
        self._deadline = self._server.now + self._server.limits.linger_seconds
        self.transport.close()

    def _linger(self) -> None:
        """Close, but not while the client still sends: a reset would take the answer from it."""
        self._closing = True
        self._rest = b""
        self._deadline = self._server.now + self._server.limits.linger_seconds
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._stopped:
            self._stopped = False
            self.transport.resume_reading()

    def break_off(self, *, reset: bool) -> None:
        """Close in the middle of an answer; `reset`: its end would look like a whole one."""
        if self._closing:
            return
        if reset:
            self._closing = True
            reset_on_close(self.transport)
            self.transport.abort()
        else:
            self._close()

    def leave(self) -> None:
        """Close if nothing is going on."""
        if self._idle():
            self._close()

    def cancel(self) -> asyncio.Task[None] | None:
        """Cut the connection off; its task, to wait for."""
        self.transport.abort()
        self._cancel()
        return self._task

    def _idle(self) -> bool:
        return not (
            self._closing
            or self._current
            or self._queue
            or self._reader.incoming
            or self._rest
            or self._head_since is not None
        )

    def sweep(self, now: float) -> None:
        """Look at the limits in time."""
        limits = self._server.limits
        incoming = self._reader.incoming
        if self._deadline is not None:
            patience = limits.stalled_reader_seconds if self.transport.get_write_buffer_size() else 0.0
            if now >= self._deadline + patience:
                self.transport.abort()
        elif self._paused_since is not None and now - self._paused_since > limits.stalled_reader_seconds:
            self.transport.abort()
        elif self._head_since is not None:
            if now - self._head_since > limits.head_timeout_seconds:
                self._break(BadMessage(408, "the request's head did not arrive in time"))
        elif self._stopped:
            if peer_has_left(self.transport):
                self.transport.abort()
        elif incoming is not None:
            quiet = now - self._heard_at > limits.body_idle_timeout_seconds
            if quiet and not incoming.awaits_continue:
                self._break(BadMessage(408, "the request's body stopped arriving"))
        elif now - self._heard_at > limits.keepalive_idle_seconds and self._idle():
            self._close()

    # What an exchange needs

    @property
    def leaving(self) -> bool:
        """The server wants its clients to go elsewhere."""
        return self._server.leaving

    def write(self, data: bytes) -> None:
        """Send bytes of an answer, unless the connection is ending."""
        if self._corked is not None:
            self._corked.append(data)
        elif not self._closing:
            self.transport.write(data)

    def cork(self) -> None:
        """Hold back what is written, so that it goes out at once: each write is a system call."""
        self._corked = []

    def uncork(self) -> None:
        """Send what was held back."""
        corked, self._corked = self._corked, None
        if corked:
            self.write(b"".join(corked))

    def go_on(self) -> None:
        """Parse what waits, and read on, as far as it may be held."""
        if not self._stopped or self._closing:
            return
        self._feed(self._take_rest())
        if not self._rest and self._stopped and not self._closing:
            self._stopped = False
            self._heard_at = self._server.now
            self.transport.resume_reading()

    def _take_rest(self) -> bytes | memoryview:
        rest, self._rest = self._rest, b""
        return rest

    async def drained(self) -> None:
        """Wait until the client's buffer has room."""
        while self.writing_paused:
            self._drain = self.loop.create_future()
            try:
                await self._drain
            finally:
                self._drain = None

    def watch_writing(self, pause: Callable[[], None] | None, resume: Callable[[], None] | None) -> None:
        """Call `pause` and `resume` with the fill of the client's buffer."""
        self._on_pause, self._on_resume = pause, resume
        if self.writing_paused and pause is not None:
            pause()


def _error(status: int, message: str) -> bytes:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": f"http_{status}"}
    return json.dumps({"error": error}).encode()
