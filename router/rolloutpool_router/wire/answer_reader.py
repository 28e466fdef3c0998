"""An engine's answers out of a stream of bytes, however it is cut into pieces. Pure."""

from __future__ import annotations

from collections.abc import Callable

import httptools

from rolloutpool_router.wire.heads import BadMessage, Framing, Headers, ResponseHead, response_framing

MAX_HEAD_BYTES = 2**20
"""Heads of one answer (with those of 1xx answers before it) may be so long."""
_END = b"\r\n\r\n"
# Looking up a member of an Enum class costs as much as a call (Python 3.11), and these are looked up often.
_NONE, _CHUNKED, _CLOSE = Framing.NONE, Framing.CHUNKED, Framing.CLOSE


class AnswerReader:
    """Reads one answer after the other; each begins with `begin`."""

    __slots__ = (
        "_fruitless",
        "_headers",
        "_parser",
        "_reason",
        "_tail",
        "_to_head",
        "complete",
        "extra",
        "framing",
        "head",
        "head_bytes",
        "keep_alive",
        "left",
        "on_piece",
    )

    def __init__(self) -> None:
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.begin(to_head=False)

    def begin(self, *, to_head: bool) -> None:
        """Expect an answer; `to_head`: to a HEAD, so without a body."""
        self.head: ResponseHead | None = None
        self.head_bytes = 0
        """Bytes of heads so far."""
        self.framing = _NONE
        self.left: int | None = 0
        """Bytes of the body that have not come; None: not known."""
        self.complete = False
        """The answer is whole."""
        self.extra = False
        """More came than the answer."""
        self.keep_alive = False
        """The engine will take another request after this one."""
        self.on_piece: Callable[[bytes], None] | None = None
        """Gets the pieces of the body."""
        self._to_head = to_head
        self._reason = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._tail = b""
        """The latest bytes of a head or of chunks, in which the end may have been cut."""
        self._fruitless = 0
        """Bytes of chunk framing since the latest byte of the body."""

    def close(self) -> None:
        """Let go of the parser, which refers to this object and so would outlive it."""
        self._parser = None

    def feed_head(self, data: bytes) -> bytes:
        """Read until `head` is there, skipping 1xx answers; what follows it.

        Raises:
            BadMessage: this is no answer.
        """
        while data:
            joined = self._tail + data
            at = joined.find(_END)
            if at < 0:
                self._tail = joined[1 - len(_END) :]
                piece, data = data, b""
            else:
                size = at + len(_END) - len(self._tail)
                self._tail = b""
                piece, data = data[:size], data[size:]
            self.head_bytes += len(piece)
            if self.head_bytes > MAX_HEAD_BYTES:
                raise BadMessage(502, "the engine's headers are too long")
            self._parse(piece)
            if self.head is not None:
                self._begin_body(data)
                return data
        return b""

    def _begin_body(self, rest: bytes) -> None:
        if self.framing is _NONE or self.left == 0:
            self.complete = True
            self.extra = bool(rest)
            if self._to_head:
                # The parser waits for the body that a GET would have had.
                self._parser = httptools.HttpResponseParser(self)

    def feed_body(self, data: bytes) -> bytes:
        """Read a piece of the body; what of it belongs to the answer, framing included.

        Raises:
            BadMessage: the framing is broken.
            Exception: what `on_piece` raised.
        """
        if self.complete:
            self.extra = True
            return b""
        if self.left is not None:
            if len(data) > self.left:
                data = data[: self.left]
                self.extra = True
            self.left -= len(data)
        self._fruitless += len(data)
        self._parse(data)
        if self.framing is _CHUNKED:
            self._check_chunks(data)
        return data

    def _check_chunks(self, data: bytes) -> None:
        # Where in `data` the answer ended is not known, so nothing of it can be passed on.
        self._tail = data[-6:] if len(data) >= 6 else (self._tail + data)[-6:]
        if self.extra or (self.complete and _overruns(self._tail)):
            raise BadMessage(502, "the engine sent bytes after the end of its answer")
        if self._fruitless > MAX_HEAD_BYTES:
            raise BadMessage(502, "the engine's chunk extensions or trailers are too long")

    def feed_eof(self) -> bool:
        """The engine closed its side; whether that was the end of an answer."""
        if self.head is not None and self.framing is _CLOSE:
            self.complete = True
        return self.complete

    def _parse(self, piece: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise BadMessage(502, f"the engine's answer is malformed: {error}") from error

    # What llhttp calls

    def on_message_begin(self) -> None:
        """The first byte of an answer."""
        if self.head is not None:
            self.extra = True
        self._reason = b""
        self._headers = []

    def on_status(self, reason: bytes) -> None:
        """A piece of the reason phrase."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; after the body a trailer."""
        if self.head is None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """A head is whole."""
        parser = self._parser
        if self.head is not None or parser is None:
            self.extra = True
            return
        status = parser.get_status_code()
        if 100 <= status < 200:
            return
        head = ResponseHead(status, self._reason.decode("latin-1"), Headers(self._headers))
        self.framing, self.left = response_framing(head, to_head=self._to_head)
        self.keep_alive = parser.should_keep_alive()
        self.head = head

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._fruitless = 0
        if self.on_piece is not None:
            self.on_piece(piece)

    def on_message_complete(self) -> None:
        """The answer is whole, or one with a 1xx status."""
        if self.head is not None:
            self.complete = True


def _overruns(tail: bytes) -> bool:
    """The end of a chunked body is followed by an empty line, which llhttp skips."""
    return not tail.endswith(b"\n") or tail == b"\r\n\r\n\r\n"
