"""One request and its answer, as the handler sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

from rolloutpool_router.wire.heads import (
    CHUNKED,
    CLOSE,
    FRAMING,
    KEEP_ALIVE,
    Framing,
    RequestHead,
    ResponseHead,
    encode,
    encode_head,
    end_to_end,
    status_line,
)

if TYPE_CHECKING:
    from rolloutpool_router.wire.connection import ClientConnection

BODY_BUFFER_BYTES = 256 * 1024
"""How much of a body is held that nobody has asked for, before reading from the client is paused."""
DISCARDED_BYTES = 64 * 1024
"""A rest of a body up to this size is dropped after an answer; with more to come the connection closes."""
_CONTENT_LENGTH = frozenset({b"content-length"})
# Looking up a member of an Enum class costs as much as a call (Python 3.11), and these are looked up often.
_CHUNKED, _CLOSE = Framing.CHUNKED, Framing.CLOSE


class Exchange:
    """One request and its answer; used only by the handler it was given to.

    The client's disconnect cancels the handler, so none of the methods reports it.
    """

    __slots__ = (
        "_awaits_continue",
        "_buffered",
        "_chunked",
        "_connection",
        "_delimited",
        "_discarding",
        "_keep_alive",
        "_pieces",
        "_waiter",
        "_wanted",
        "body_complete",
        "body_length",
        "closes",
        "ended",
        "has_own_head",
        "head",
        "left",
        "room",
        "started",
    )

    def __init__(
        self, connection: ClientConnection, head: RequestHead, length: int | None, *, keep_alive: bool
    ) -> None:
        self.head = head
        self.body_length = length
        """Content-Length; 0 without a body, None if it comes in chunks."""
        self.body_complete = False
        """All of the body has arrived."""
        self.started = False
        """The head of an answer was written."""
        self.has_own_head = False
        """The answer began with `start`, before there was one of an engine."""
        self.ended = False
        """All of the answer was written."""
        self.closes = False
        """The connection ends with this answer."""
        self.left = length or 0
        """Bytes of the body that have not arrived, where its length is known."""
        self.room = BODY_BUFFER_BYTES
        """Reading from the client pauses when so much of the body is held."""
        self._awaits_continue = length != 0 and not head.http_1_0 and _expects_continue(head)
        self._connection = connection
        self._keep_alive = keep_alive
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._wanted = 0
        """How many bytes wake whoever waits."""
        self._discarding = False
        self._waiter: asyncio.Future[None] | None = None
        self._chunked = False
        self._delimited = True
        """The end of the answer can be seen while the connection stays."""

    # The request's body

    async def read_body(self, limit: int) -> bytes:
        """The body, or its beginning of at least `limit` bytes where it is longer; see `body_complete`.

        It may be longer than `limit` by what arrived at once with it (at most 256 KiB).
        """
        if not self.body_complete:
            await self._arrival(limit)
        return self._take()

    def body_rest(self) -> AsyncIterator[bytes]:
        """What follows that which `read_body` gave. While nobody asks, reading from the client pauses."""
        return _Rest(self)

    async def _next_piece(self) -> bytes:
        while not self._pieces:
            if self.body_complete:
                raise StopAsyncIteration
            await self._arrival(1)
        return self._take()

    async def _arrival(self, size: int) -> None:
        """Wait until so many bytes are held, or the body is complete."""
        self.room = max(size, BODY_BUFFER_BYTES)
        self._wanted = size
        if self._awaits_continue:
            self._awaits_continue = False
            if not self.started:
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._connection.go_on()
        while not self.body_complete and self._buffered < size:
            self._waiter = self._connection.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self.room = BODY_BUFFER_BYTES

    def _take(self) -> bytes:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._buffered = 0
        if not self.body_complete:
            self._connection.go_on()
        return body

    @property
    def full(self) -> bool:
        """No more of the body may be held."""
        return self._buffered >= self.room

    @property
    def awaits_continue(self) -> bool:
        """The client waits for "100 Continue" before it sends the body."""
        return self._awaits_continue

    def arrived(self, piece: bytes) -> None:
        """Take a piece of the body from the parser."""
        self._awaits_continue = False
        self.left -= len(piece)
        if self._discarding:
            return
        self._pieces.append(piece)
        self._buffered += len(piece)
        if self._buffered >= self._wanted:
            self._wake()

    def arrived_whole(self) -> None:
        """The parser saw the end of the body."""
        self.body_complete = True
        self._wake()

    def discard(self) -> None:
        """Drop what has come of the body, and what comes."""
        self._discarding = True
        self._pieces = []
        self._buffered = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The answer

    def answer(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """Write a whole answer. Framing headers are made here and ignored in `headers`.

        Raises:
            ValueError: a header holds a line break.
            RuntimeError: there is an answer already.
        """
        own = _encoded(headers)
        if status not in (204, 304):
            own.append((b"Content-Length", b"%d" % len(body)))
        if self.head.method == "HEAD" or status in (204, 304):
            body = b""
        self._begin(status_line(status), own, body, delimited=True)
        self.ended = True

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Begin an answer of unknown length: in chunks, for HTTP/1.0 up to the end of the connection."""
        self._start_stream(status_line(status), _encoded(headers))
        self.has_own_head = True

    def end(self) -> None:
        """End a started answer."""
        if self._chunked and not self.ended:
            self._connection.write(b"0\r\n\r\n")
        self.ended = True

    def abort(self) -> None:
        """Break the connection off, so that the client cannot take the answer for whole."""
        self._connection.break_off(reset=self.started and not self._delimited)

    def write_piece(self, data: bytes) -> None:
        """Write a piece of a started answer, however full the client's buffer is."""
        if not data or self.ended or self.head.method == "HEAD":
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.write(data)

    def _start_stream(self, first_line: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self._chunked = not self.head.http_1_0
        if self._chunked:
            headers.append(CHUNKED)
        self._begin(first_line, headers, delimited=self._chunked)
        self._chunked = self._chunked and self.head.method != "HEAD"

    def _begin(
        self, first_line: bytes, headers: list[tuple[bytes, bytes]], body: bytes = b"", *, delimited: bool
    ) -> None:
        """Write the head, and the body where it is there."""
        if self.started:
            raise RuntimeError("this request has an answer already")
        connection = self._connection
        self._delimited = delimited
        self.closes = not (self._keep_alive and delimited and self._rest_is_small()) or connection.leaving
        if self.closes:
            headers.append(CLOSE)
        elif self.head.http_1_0:
            headers.append(KEEP_ALIVE)
        head = encode_head(first_line, headers)
        self.started = True
        connection.write(head + body)

    def _rest_is_small(self) -> bool:
        if self.body_complete:
            return True
        return self.body_length is not None and self.left <= DISCARDED_BYTES and not self._awaits_continue

    # An engine's answer, passed on

    def begin_relay(
        self, head: ResponseHead, headers: Iterable[tuple[bytes, bytes]], framing: Framing
    ) -> bool:
        """Write the head of an engine's answer, and `headers`; a started answer goes on without a head.

        Returns:
            Whether the answer's body can be passed on just as the engine framed it, with `write_raw`;
            otherwise it has to be decoded and written with `write_piece`.
        """
        if self.started:
            return self._chunked and framing is _CHUNKED
        first_line = status_line(head.status, head.reason)
        if framing is _CHUNKED or framing is _CLOSE:
            own = end_to_end(head.headers, _CONTENT_LENGTH)
            own.extend(headers)
            self._start_stream(first_line, own)
            return self._chunked is (framing is _CHUNKED) and self.head.method != "HEAD"
        own = end_to_end(head.headers)
        own.extend(headers)
        self._begin(first_line, own, delimited=True)
        return self.head.method != "HEAD"

    @property
    def write_raw(self) -> Callable[[bytes], None]:
        """Writes bytes that are framed already, however full the client's buffer is."""
        return self._connection.write

    def cork(self) -> None:
        """Hold back what is written until `uncork`, so that it goes out at once."""
        self._connection.cork()

    def uncork(self) -> None:
        """Send what was held back."""
        self._connection.uncork()

    def end_relay(self, *, raw: bool) -> None:
        """The engine's answer is whole."""
        if self._chunked and not raw:
            self._connection.write(b"0\r\n\r\n")
        self.ended = True

    def watch_writing(self, pause: Callable[[], None] | None, resume: Callable[[], None] | None) -> None:
        """Call `pause` when the client's buffer is full, and `resume` when it has room again."""
        self._connection.watch_writing(pause, resume)


class _Rest:
    """The pieces of a body as they come: no asynchronous generator, since mypyc compiles none."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> _Rest:
        return self

    async def __anext__(self) -> bytes:
        return await self._exchange._next_piece()


def _expects_continue(head: RequestHead) -> bool:
    return (head.headers.first(b"expect") or b"").lower() == b"100-continue"


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    pairs = [(encode(name), encode(value)) for name, value in headers]
    return [pair for pair in pairs if pair[0].lower() not in FRAMING]
