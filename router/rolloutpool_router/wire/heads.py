"""Heads of HTTP/1.1 messages: parsed, framed and written. Pure.

RFC 9112 (HTTP/1.1) says how a message is framed, RFC 9110 which headers speak of one connection only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from http import HTTPStatus

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that speak of one connection (RFC 9110, section 7.6.1)."""
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
"""Headers that whoever writes a message makes itself."""
OF_THE_REQUEST = frozenset({b"host", b"content-length", b"expect"})
"""End-to-end request headers that a proxy answers or makes anew."""

CHUNKED = (b"Transfer-Encoding", b"chunked")
CLOSE = (b"Connection", b"close")
KEEP_ALIVE = (b"Connection", b"keep-alive")
_COLON = b": "

RawHeaders = Iterable[tuple[bytes, bytes]]


class BadMessage(Exception):
    """A message that must not be taken: what to answer, and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Headers:
    """Headers in their order, duplicates kept, bytes as they came."""

    __slots__ = ("_lower", "names", "raw")

    def __init__(self, raw: RawHeaders) -> None:
        self.raw: tuple[tuple[bytes, bytes], ...] = tuple(raw)
        self.names = [pair[0].lower() for pair in self.raw]
        """Their names in lower case, in the same order."""
        self._lower: dict[str, str] | None = None

    def first(self, name: bytes) -> bytes | None:
        """The first value of this name, given in lower case; None if there is none."""
        return self.raw[self.names.index(name)][1] if name in self.names else None

    def get(self, name: str) -> str | None:
        """The first value of this name, whatever its case; None if there is none."""
        value = self.first(name.lower().encode())
        return None if value is None else decode(value)

    @property
    def repeated(self) -> list[str]:
        """Lower-case names that come more than once; mostly none."""
        names = self.names
        if len(set(names)) == len(names):
            return []
        return [name.decode("latin-1") for name in dict.fromkeys(names) if names.count(name) > 1]

    @property
    def lower(self) -> Mapping[str, str]:
        """Value by lower-case name; several of one name are joined by ", " (RFC 9110, section 5.3)."""
        if self._lower is None:
            joined: dict[str, str] = {}
            for key, (_, value) in zip(self.names, self.raw, strict=True):
                name, text = key.decode("latin-1"), decode(value)
                joined[name] = f"{joined[name]}, {text}" if name in joined else text
            self._lower = joined
        return self._lower

    def __repr__(self) -> str:
        return f"Headers({list(self.raw)!r})"


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body."""

    method: str
    target: str
    """Path and query as on the wire; of an absolute URL only these."""
    path: str
    """Not decoded, without the query."""
    query: str
    headers: Headers
    http_1_0: bool = False


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """An answer without its body."""

    status: int
    reason: str
    headers: Headers


class Framing(Enum):
    """How the end of a body is found."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


# Looking up a member of an Enum class costs as much as a call (Python 3.11), and these are looked up often.
_NONE, _LENGTH, _CHUNKED, _CLOSE = Framing


def request_head(method: bytes, target: bytes, headers: RawHeaders, version: str) -> RequestHead:
    """Head of a request that llhttp took.

    Raises:
        BadMessage: it must be refused.
    """
    if version not in ("1.1", "1.0"):
        raise BadMessage(505, f"HTTP/{version} is not spoken here; use HTTP/1.1")
    if method == b"CONNECT":
        raise BadMessage(501, "CONNECT is not supported")
    wanted = origin_form(target.decode("latin-1"))
    path, _, query = wanted.partition("?")
    head = RequestHead(method.decode("latin-1"), wanted, path, query, Headers(headers), version == "1.0")
    check_request(head)
    return head


def origin_form(target: str) -> str:
    """Path and query of a request's target, which is a path already or an absolute URL; no fragment.

    Raises:
        BadMessage: it is neither.
    """
    if "#" in target:
        target = target.partition("#")[0]
    if target.startswith("/"):
        return target
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        raise BadMessage(400, "the request's target must be a path")
    ends = [at for at in (rest.find("/"), rest.find("?")) if at >= 0]
    found = rest[min(ends) :] if ends else ""
    return found if found.startswith("/") else "/" + found


def check_request(head: RequestHead) -> None:
    """Refuse what two readers may take for different requests, beyond what llhttp refuses itself.

    Raises:
        BadMessage: no or several Host, or a transfer coding that is not understood (RFC 9112, 3.2 and 6.1).
    """
    headers = head.headers
    hosts = headers.names.count(b"host")
    if hosts != 1 and not (hosts == 0 and head.http_1_0):
        raise BadMessage(400, "exactly one Host header is needed")
    coding = headers.first(b"transfer-encoding")
    if coding is None:
        return
    if head.http_1_0:
        raise BadMessage(400, "Transfer-Encoding is not part of HTTP/1.0")
    if coding.strip().lower() != b"chunked":
        raise BadMessage(501, "the only transfer coding understood is chunked")


def body_length(headers: Headers) -> int | None:
    """Bytes of a request's body; None where it comes in chunks."""
    length = headers.first(b"content-length")
    if length is not None:
        return int(length)
    return None if b"transfer-encoding" in headers.names else 0


def response_framing(head: ResponseHead, *, to_head: bool) -> tuple[Framing, int | None]:
    """Framing of an answer's body, and its length in bytes where it is known beforehand.

    Args:
        head: of the answer.
        to_head: the request was a HEAD.

    Raises:
        BadMessage: the body has a transfer coding that nobody asked for.
    """
    if to_head or head.status in (204, 304):
        return _NONE, 0
    coding = head.headers.first(b"transfer-encoding")
    if coding is not None:
        if coding.strip().lower() != b"chunked":
            raise BadMessage(502, "the answer has an unknown transfer coding")
        return _CHUNKED, None
    length = head.headers.first(b"content-length")
    return (_CLOSE, None) if length is None else (_LENGTH, int(length))


def end_to_end(headers: Headers, drop: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """Headers without those of one connection, those named in Connection, and `drop` (lower case)."""
    unwanted = _unwanted(drop)
    if b"connection" in headers.names:
        unwanted |= _named_in_connection(headers)
    return [pair for name, pair in zip(headers.names, headers.raw, strict=False) if name not in unwanted]


@lru_cache(64)
def _unwanted(drop: frozenset[bytes]) -> frozenset[bytes]:
    return HOP_BY_HOP | drop


def _named_in_connection(headers: Headers) -> frozenset[bytes]:
    values = [pair[1] for name, pair in zip(headers.names, headers.raw, strict=True) if name == b"connection"]
    if values == [b"keep-alive"]:
        return frozenset()
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def encode(text: str) -> bytes:
    """Bytes of a header's name or value; text that is no UTF-8 becomes the bytes that it was read from."""
    return text.encode("utf-8", "surrogateescape")


def decode(raw: bytes) -> str:
    """Text of a header's name or value; the inverse of `encode`."""
    return raw.decode("utf-8", "surrogateescape")


def encode_head(first_line: bytes, headers: RawHeaders) -> bytes:
    """A head as on the wire.

    Raises:
        ValueError: a name or value would end its line early, and so begin another header.
    """
    lines = [first_line, *map(_COLON.join, headers)]
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    ends = len(lines) + 1
    if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head:
        raise ValueError("a header holds a line break or a NUL; encode it before it is sent")
    return head


def status_line(status: int, reason: str | None = None) -> bytes:
    """First line of an answer; the usual reason phrase where none is given."""
    if reason is None:
        return _USUAL.get(status) or b"HTTP/1.1 %d " % status
    return b"HTTP/1.1 %d %s" % (status, encode(reason))


_USUAL = {status.value: b"HTTP/1.1 %d %s" % (status.value, status.phrase.encode()) for status in HTTPStatus}
