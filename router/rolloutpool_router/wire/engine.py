"""A connection to an engine: one request at a time, and its answer read or passed on as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from rolloutpool_router.wire.answer_reader import AnswerReader
from rolloutpool_router.wire.heads import BadMessage, Framing, ResponseHead
from rolloutpool_router.wire.sockets import probe

ONE_WRITE_BYTES = 64 * 1024
"""A body up to this size is joined with its head."""
HELD_BYTES = 256 * 1024
"""How much of an answer is held that nobody takes, before reading from the engine is paused."""


class Unreachable(Exception):
    """No connection was made: the other side has seen nothing of the request."""


class ConnectionLost(Exception):
    """It broke, or answered garbage, after the request or a part of it was sent: it may have run."""


class NotSent(Exception):
    """There is a connection, but the request is not to be sent now: the other side saw nothing of it."""


class Origin(NamedTuple):
    """Where a server listens: a tuple, since each request looks connections up by it."""

    host: str
    port: int
    authority: str
    """As in the Host header."""

    @staticmethod
    @lru_cache(4096)
    def of(url: str) -> Origin:
        """The origin of an http URL.

        Raises:
            ValueError: it has another scheme, or no host, or a port that is no number.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// URL")
        return Origin(parts.hostname, parts.port or 80, parts.netloc.rpartition("@")[2])


class Phase(Enum):
    """What a connection to an engine is doing."""

    IDLE = "idle"
    """No request."""
    HEAD = "head"
    """Waiting for the answer's head."""
    HELD = "held"
    """The head is there; what follows is kept for whoever takes it."""
    BODY = "body"
    """What arrives is passed on."""
    DONE = "done"
    """The answer is whole."""


# Looking up a member of an Enum class costs as much as a call (Python 3.11), and these are looked up often.
_IDLE, _HEAD, _HELD, _BODY, _DONE = Phase


class EngineConnection(asyncio.Protocol):
    """The client's side of one connection."""

    __slots__ = (
        "_broke",
        "_drain",
        "_eof",
        "_error",
        "_held",
        "_held_bytes",
        "_phase",
        "_raw",
        "_reader",
        "_sender",
        "_waiter",
        "_writing_paused",
        "has_body",
        "idle_since",
        "last_byte_at",
        "loop",
        "on_gone",
        "origin",
        "reading_paused",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: Origin,
        on_gone: Callable[[EngineConnection], None],
    ) -> None:
        """`on_gone` is called when the connection ends while it is idle."""
        self.loop = loop
        self.origin = origin
        self.on_gone = on_gone
        self.last_byte_at = 0.0
        """The event loop's clock when the latest bytes came, in seconds."""
        self.idle_since = 0.0
        """The same when it was last given back."""
        self.has_body = False
        """Some of the answer's body was read."""
        self._reader = AnswerReader()
        self._phase = _IDLE
        self._raw: Callable[[bytes], None] | None = None
        """Gets the bytes of the answer's body as they are framed."""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._error: BaseException | None = None
        self._eof = False
        self._broke: Exception | None = None
        """What broke the connection while an answer was held."""
        self._sender: asyncio.Task[None] | None = None
        """Sends the rest of a request's body."""
        self._waiter: asyncio.Future[None] | None = None
        self._drain: asyncio.Future[None] | None = None
        self._writing_paused = False
        self.reading_paused = False

    # Requests

    def send(self, head: bytes, body: bytes, *, to_head: bool) -> None:
        """Write a request's head and (the beginning of) its body; `to_head`: it is a HEAD."""
        self._reader.begin(to_head=to_head)
        self._phase = _HEAD
        self.has_body = False
        if len(body) <= ONE_WRITE_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)

    def send_rest(self, rest: AsyncIterator[bytes], left: int | None) -> None:
        """Send more of the body as it comes, while the answer is awaited.

        Args:
            rest: the pieces.
            left: how many bytes they are; None: not known, so they are sent in chunks.
        """
        self._sender = self.loop.create_task(self._send_rest(rest, left))

    async def _send_rest(self, rest: AsyncIterator[bytes], left: int | None) -> None:
        try:
            async for piece in rest:
                if left is None:
                    self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                else:
                    left -= len(piece)
                    self.transport.write(piece)
                while self._writing_paused:
                    self._drain = self.loop.create_future()
                    await self._drain
            if left is None:
                self.transport.write(b"0\r\n\r\n")
            elif left != 0:
                raise ConnectionLost("the request's body does not have the length that was announced")
        except Exception as error:
            self._fail(error)
        finally:
            self._sender = None

    # Answers

    @property
    def head(self) -> ResponseHead | None:
        """The head of the answer, once it is there."""
        return self._reader.head

    @property
    def framing(self) -> Framing:
        """How the answer's body is framed."""
        return self._reader.framing

    @property
    def done(self) -> bool:
        """The answer is whole."""
        return self._phase is _DONE

    def pass_on(
        self,
        *,
        raw: Callable[[bytes], None] | None = None,
        pieces: Callable[[bytes], None] | None = None,
    ) -> None:
        """Give what was held of the body, and what comes, to these.

        Args:
            raw: gets the bytes as they are framed.
            pieces: gets them without framing, before `raw`.
        """
        if self._phase is not _HELD:
            return
        self._raw, self._reader.on_piece = raw, pieces
        self._phase = _BODY
        held, self._held = self._held, []
        self._held_bytes = 0
        for data in held:
            self._consume(data)
        self.resume_reading()
        if self._eof:
            self._ended(self._broke)

    async def whole(self) -> None:
        """Wait for the end of the answer.

        Raises:
            ConnectionLost: it broke off.
        """
        while self._phase is not _DONE:
            await self.more()

    async def more(self) -> None:
        """Wait until `wake` is called, or for the answer's head or end.

        Raises:
            ConnectionLost: the answer broke off.
        """
        if self._error is None:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error

    def wake(self) -> None:
        """Let whoever waits for this connection look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pause_reading(self) -> None:
        """Leave what the engine sends to the kernel, so that the engine waits."""
        if not self.reading_paused and not self.transport.is_closing():
            self.reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self.reading_paused and not self.transport.is_closing():
            self.reading_paused = False
            self.transport.resume_reading()

    def finish(self) -> bool:
        """End with this answer; whether the connection can carry another request.

        Otherwise it is closed, so that an engine that is still at work stops.
        """
        reader = self._reader
        self._raw = reader.on_piece = None
        reusable = (
            self._phase is _DONE
            and reader.keep_alive
            and not reader.extra
            and not self._eof
            and self._sender is None
            and not self.transport.get_write_buffer_size()
            and not self.transport.is_closing()
        )
        if reusable:
            self._phase = _IDLE
            reader.head = None
            self.resume_reading()
        else:
            self.close()
        return reusable

    def close(self) -> None:
        """Close at once."""
        if self._error is None:
            self._error = ConnectionLost("closed")
        self._abandon()

    def _abandon(self) -> None:
        self.transport.abort()
        self._reader.close()
        self._held.clear()
        if self._sender is not None:
            self._sender.cancel()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        probe(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._ended(exc)
        if self._sender is not None:
            self._sender.cancel()

    def eof_received(self) -> None:
        """The engine closed its side."""
        self._ended(None)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        self.last_byte_at = self.loop.time()
        if self._phase is _BODY:
            self._consume(data)
        elif self._phase is _HEAD:
            self._read_head(data)
        elif self._phase is _HELD:
            self._hold(data)
        else:
            self._reader.extra = True
            self.close()

    def pause_writing(self) -> None:
        """The engine takes the request slower than it comes."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """It has room again."""
        self._writing_paused = False
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)

    def _read_head(self, data: bytes) -> None:
        reader = self._reader
        try:
            rest = reader.feed_head(data)
        except BadMessage as problem:
            self._fail(ConnectionLost(str(problem)))
            return
        if reader.head is None:
            return
        self._phase = _DONE if reader.complete else _HELD
        if rest:
            self._hold(rest)
        self.wake()

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES:
            self.pause_reading()

    def _consume(self, data: bytes) -> None:
        """Parse a piece of the body, and pass it on."""
        if self._error is not None:
            return
        self.has_body = True
        reader = self._reader
        try:
            data = reader.feed_body(data)
        except BadMessage as problem:
            self._fail(ConnectionLost(str(problem)))
            return
        except Exception as error:  # of whoever looks at the pieces
            self._fail(error)
            return
        if self._raw is not None:
            self._raw(data)
        if reader.complete:
            self._phase = _DONE
            self.wake()

    def _ended(self, exc: Exception | None) -> None:
        """The engine closed, or the connection broke."""
        self._eof = True
        phase = self._phase
        if phase is _IDLE:
            self.on_gone(self)
            self._abandon()
        elif phase is _HELD:
            self._broke = self._broke or exc
        elif phase is _BODY and exc is None and self._error is None and self._reader.feed_eof():
            self._phase = _DONE
            self.wake()
        elif phase is not _DONE:
            self._fail(self._loss(exc))

    def _loss(self, exc: Exception | None) -> ConnectionLost:
        why = f": {exc}" if exc else ""
        if self._phase is _HEAD:
            return ConnectionLost(f"the engine closed the connection without an answer{why}")
        return ConnectionLost(f"the engine's answer broke off{why}")

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._abandon()
        self.wake()
