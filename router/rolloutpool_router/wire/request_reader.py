"""Requests out of a stream of bytes, however it is cut into pieces: llhttp, and what it leaves open. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import httptools

from rolloutpool_router.wire.heads import (
    CHUNKED,
    BadMessage,
    RequestHead,
    body_length,
    encode_head,
    request_head,
)

log = logging.getLogger(__name__)

SLICE_BYTES = 4096
"""The parser gets no more at once where a request may begin: so much is parsed ahead of its turn."""


class Incoming(Protocol):
    """Who takes the body of a request."""

    body_length: int | None
    """In bytes; None: not known."""
    left: int
    """Bytes that have not arrived, where the length is known."""

    @property
    def full(self) -> bool:
        """No more may be held."""

    @property
    def awaits_continue(self) -> bool:
        """The client waits for a sign before it sends the body."""

    def arrived(self, piece: bytes, /) -> None:
        """Take a piece of it."""

    def arrived_whole(self) -> None:
        """There is no more of it."""


Body = TypeVar("Body", bound=Incoming)


class RequestReader(Generic[Body]):
    """Reads the requests of one connection."""

    __slots__ = (
        "_begin",
        "_fruitless",
        "_head_bytes",
        "_headers",
        "_max_head_bytes",
        "_parser",
        "_upgrading",
        "_url",
        "in_head",
        "incoming",
        "last",
    )

    def __init__(self, begin: Callable[[RequestHead, int | None, bool], Body], max_head_bytes: int) -> None:
        """`begin` gets each head, the length of its body (None: unknown), and whether another may follow."""
        self.in_head = False
        """A head has begun and not ended."""
        self.incoming: Body | None = None
        """Who gets the body that is arriving."""
        self.last = False
        """No request follows the latest one."""
        self._begin = begin
        self._max_head_bytes = max_head_bytes
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._fruitless = 0
        """Bytes of chunk framing since the latest byte of a body."""
        self._upgrading = False
        """llhttp takes the head for the end of HTTP/1.1 on this connection."""

    def close(self) -> None:
        """Let go of the parser, which refers to this object and so would outlive it."""
        self._parser = None

    @property
    def appetite(self) -> int:
        """How many bytes to feed at most."""
        incoming = self.incoming
        if incoming is None or incoming.body_length is None:
            return SLICE_BYTES
        return incoming.left

    @property
    def exhausted(self) -> bool:
        """The last request was read whole."""
        return self.last and self.incoming is None

    def feed(self, piece: bytes | memoryview) -> None:
        """Read a piece.

        Raises:
            BadMessage: what came is no request, or not one to take.
        """
        parser = self._parser
        if parser is None:
            return
        self._fruitless += len(piece)
        try:
            parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay(piece[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if self.exhausted:
                return
            raise _refusal(error) from error
        if self.in_head:
            self._head_bytes += len(piece)
            if self._head_bytes > self._max_head_bytes:
                raise BadMessage(431, "the request's head is too long")
        elif self._fruitless > self._max_head_bytes and self.incoming is not None:
            raise BadMessage(400, "chunk extensions or trailers are too long")

    def _stay(self, rest: bytes | memoryview) -> None:
        """Go on in HTTP/1.1 after a head that asked for another protocol: llhttp would end there.

        A fresh parser gets a head with the same framing, and then the body.
        """
        incoming = self.incoming
        assert incoming is not None
        length = incoming.body_length
        self._parser = httptools.HttpRequestParser(self)
        framing = CHUNKED if length is None else (b"Content-Length", b"%d" % length)
        self._parser.feed_data(encode_head(b"POST / HTTP/1.1", [framing]))
        self._upgrading = False
        if length == 0:
            self.on_message_complete()
        if rest:
            self.feed(rest)

    # What llhttp calls

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if not self._upgrading:
            self.in_head = True
            self._head_bytes = 0
            self._url = b""
            self._headers = []

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; after the body a trailer, which is dropped."""
        if self.in_head:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        parser = self._parser
        if self._upgrading or parser is None:
            return
        self.in_head = False
        head = request_head(parser.get_method(), self._url, self._headers, parser.get_http_version())
        self._headers = []
        keep_alive = parser.should_keep_alive()
        self.last = not keep_alive
        self._upgrading = parser.should_upgrade()
        self.incoming = self._begin(head, body_length(head.headers), keep_alive)

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._fruitless = 0
        if self.incoming is not None:
            self.incoming.arrived(piece)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._upgrading:
            return
        incoming, self.incoming = self.incoming, None
        if incoming is not None:
            incoming.arrived_whole()


def _refusal(error: httptools.HttpParserError) -> BadMessage:
    cause = error.__context__
    if isinstance(cause, BadMessage):
        return cause
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return BadMessage(501, "unknown method")
    if isinstance(error, httptools.HttpParserCallbackError):
        log.error("reading a request failed", exc_info=cause)
    return BadMessage(400, f"malformed request: {error}")
