"""Messages out of bytes: however a stream is cut into pieces, the same messages come out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.wire.answer_reader import MAX_HEAD_BYTES, AnswerReader
from rolloutpool_router.wire.heads import BadMessage, Framing, RequestHead
from rolloutpool_router.wire.request_reader import SLICE_BYTES, RequestReader

# Requests


@dataclass
class Collected:
    """A request as it was read."""

    head: RequestHead
    body_length: int | None
    left: int
    body: bytes = b""
    whole: bool = False
    full: bool = False
    awaits_continue: bool = False

    def arrived(self, piece: bytes) -> None:
        self.body += piece
        self.left -= len(piece)

    def arrived_whole(self) -> None:
        assert not self.whole
        self.whole = True


@dataclass
class Reading:
    """A reader, and what it read."""

    read: list[Collected] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reader: RequestReader[Collected] = RequestReader(self.begin, 65536)

    def begin(self, head: RequestHead, length: int | None, keep_alive: bool) -> Collected:
        self.read.append(Collected(head, length, length or 0))
        return self.read[-1]

    def feed(self, data: bytes) -> None:
        """As a connection does: never more than the reader wants."""
        while data and not self.reader.exhausted:
            size = self.reader.appetite
            self.reader.feed(data[:size])
            data = data[size:]


def chunked(body: bytes, sizes: Sequence[int], trailer: bytes = b"") -> bytes:
    """A body in chunks of these sizes, one after the other and round again."""
    framed = b""
    at = index = 0
    while at < len(body):
        piece = body[at : at + sizes[index % len(sizes)]]
        framed += b"%x;ext=1\r\n%b\r\n" % (len(piece), piece)
        at += len(piece)
        index += 1
    return framed + b"0\r\n" + trailer + b"\r\n"


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=3)
BODIES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([b"\r\n\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 9000]),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """Bytes of a request, its target, its body."""
    target = draw(st.sampled_from([b"/", b"/v1/chat/completions?x=%20", b"/" + b"a" * 300]))
    head = b"POST %b HTTP/1.1\r\nHost: a\r\n" % target
    for index in range(draw(st.integers(0, 3))):
        head += b"X-%d: v\r\n" % index
    if draw(st.booleans()):
        head += b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    body = draw(BODIES)
    match draw(st.sampled_from(["none", "length", "chunked"])):
        case "none":
            return head + b"\r\n", target, b""
        case "length":
            return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, target, body
        case _:
            trailer = draw(st.sampled_from([b"", b"X-Trailer: v\r\n"]))
            return (
                head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, draw(SIZES), trailer),
                target,
                body,
            )


def cut(data: bytes, places: Sequence[float]) -> list[bytes]:
    """Pieces of a stream, cut at these places (0 to 1)."""
    at = sorted(int(place * len(data)) for place in places)
    return [data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True)]


PLACES = st.lists(st.floats(0, 1), max_size=30)


@given(st.lists(requests(), min_size=1, max_size=4), PLACES)
def test_requests_come_out_however_they_are_cut(
    sent: list[tuple[bytes, bytes, bytes]], places: list[float]
) -> None:
    reading = Reading()
    for piece in cut(b"".join(raw for raw, _, _ in sent), places):
        reading.feed(piece)
    assert [(got.head.target.encode(), got.body) for got in reading.read] == [
        (target, body) for _, target, body in sent
    ]
    assert all(got.whole for got in reading.read)
    assert not any(name.lower() == b"x-trailer" for got in reading.read for name, _ in got.head.headers.raw)


def test_byte_by_byte() -> None:
    reading = Reading()
    raw = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"hello", [2])
    for at in range(len(raw)):
        assert not (reading.read and reading.read[0].whole)
        reading.feed(raw[at : at + 1])
    assert reading.read[0].body == b"hello"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", 501, id="tls"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\n\n", 400, id="bare-lf"),
        pytest.param(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, id="space-before-colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n", 400, id="folded"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nX\0: 1\r\n\r\n", 400, id="nul-in-name"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\0\r\n\r\n", 400, id="nul-in-value"),
        pytest.param(b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400, id="bytes-in-target"),
        pytest.param(b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 400, id="version"),
        pytest.param(b"GET /\r\n\r\n", 505, id="http-0.9"),
        pytest.param(b"FROB / HTTP/1.1\r\nHost: a\r\n\r\n", 501, id="method"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="http-2-preface"),
        pytest.param(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400, id="asterisk"),
        pytest.param(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501, id="connect"),
    ],
)
def test_what_is_no_request(raw: bytes, status: int) -> None:
    with pytest.raises(BadMessage) as refused:
        Reading().feed(raw)
    assert refused.value.status == status


@pytest.mark.parametrize(
    "framing",
    [
        pytest.param(b"Content-Length: 3\r\nTransfer-Encoding: chunked", id="both"),
        pytest.param(b"Transfer-Encoding: chunked\r\nContent-Length: 3", id="both-turned"),
        pytest.param(b"Content-Length: 3\r\nContent-Length: 4", id="two-lengths"),
        pytest.param(b"Content-Length: 3\r\nContent-Length: 3", id="same-length-twice"),
        pytest.param(b"Content-Length: 3, 3", id="list"),
        pytest.param(b"Content-Length: +3", id="plus"),
        pytest.param(b"Content-Length: -3", id="minus"),
        pytest.param(b"Content-Length: 0x3", id="hex"),
        pytest.param(b"Content-Length: ", id="empty"),
        pytest.param(b"Content-Length: 99999999999999999999999", id="overflow"),
        pytest.param(b"Transfer-Encoding: chunked, chunked", id="chunked-twice"),
        pytest.param(b"Transfer-Encoding: xchunked", id="almost-chunked"),
        pytest.param(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", id="chunked-not-last"),
        pytest.param(b"Transfer-Encoding:\x0bchunked", id="vertical-tab"),
    ],
)
def test_smuggling_is_refused(framing: bytes) -> None:
    reading = Reading()
    with pytest.raises(BadMessage):
        reading.feed(
            b"POST / HTTP/1.1\r\nHost: a\r\n"
            + framing
            + b"\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\nHost: a\r\n\r\n"
        )
    assert not any(got.head.path == "/evil" for got in reading.read)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"g\r\n", id="size-no-hex"),
        pytest.param(b"-1\r\n", id="size-negative"),
        pytest.param(b"fffffffffffffffff\r\n", id="size-overflow"),
        pytest.param(b"1\nx\r\n", id="size-bare-lf"),
        pytest.param(b"1\r\nxy\r\n", id="too-long"),
        pytest.param(b"0x1\r\nx\r\n", id="prefix"),
        pytest.param(b"1 \r\nx\r\n", id="space"),
    ],
)
def test_broken_chunks_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        Reading().feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body)


@pytest.mark.parametrize(
    ("start", "more", "status"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"x" * 999, 431, id="value"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n", b"X: 1\r\n" * 99, 431, id="many"),
        pytest.param(b"GET /", b"x" * 999, 431, id="target"),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;",
            b"x" * 999,
            400,
            id="extension",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
            b"x" * 999,
            400,
            id="trailer",
        ),
    ],
)
def test_endless_heads_end(start: bytes, more: bytes, status: int) -> None:
    reading = Reading()
    reading.feed(start)
    fed = refused = 0
    try:
        while fed < 10 * 65536:
            reading.feed(more)
            fed += len(more)
    except BadMessage as problem:
        refused = problem.status
    assert refused == status
    assert 65536 - SLICE_BYTES <= fed <= 65536 + SLICE_BYTES


def test_nothing_is_read_after_the_last_request() -> None:
    reading = Reading()
    reading.feed(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
    assert [got.head.path for got in reading.read] == ["/a"]
    assert reading.reader.exhausted


# Answers


@dataclass
class Told:
    """An answer as it was read."""

    reader: AnswerReader = field(default_factory=AnswerReader)
    raw: bytes = b""
    body: bytes = b""

    def see(self, piece: bytes) -> None:
        self.body += piece

    def feed(self, data: bytes) -> None:
        """As a connection does: the head, then the body."""
        reader = self.reader
        if reader.head is None:
            data = reader.feed_head(data)
            reader.on_piece = self.see
        if data and reader.head is not None:
            self.raw += reader.feed_body(data)


@dataclass(frozen=True)
class Sent:
    """An answer."""

    head: bytes
    framed: bytes
    body: bytes
    framing: Framing


@st.composite
def answers(draw: st.DrawFn) -> Sent:
    early = draw(
        st.sampled_from(
            [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"]
        )
    )
    head = early + b"HTTP/1.1 200 OK\r\nX: y\r\n"
    body = draw(BODIES)
    match draw(st.sampled_from(list(Framing))):
        case Framing.NONE:
            return Sent(early + b"HTTP/1.1 204 No Content\r\n\r\n", b"", b"", Framing.NONE)
        case Framing.LENGTH:
            return Sent(head + b"Content-Length: %d\r\n\r\n" % len(body), body, body, Framing.LENGTH)
        case Framing.CHUNKED:
            framed = chunked(body, draw(SIZES), draw(st.sampled_from([b"", b"X-Trailer: v\r\n"])))
            return Sent(head + b"Transfer-Encoding: chunked\r\n\r\n", framed, body, Framing.CHUNKED)
        case _:
            return Sent(head + b"\r\n", body, body, Framing.CLOSE)


@given(st.lists(answers(), min_size=1, max_size=3), PLACES)
def test_answers_come_out_however_they_are_cut(sent: list[Sent], places: list[float]) -> None:
    """The same reader reads one answer after the other, as a kept connection does."""
    reader = AnswerReader()
    for answer in sent:
        reader.begin(to_head=False)
        told = Told(reader)
        for piece in cut(answer.head + answer.framed, places):
            assert not reader.complete or not piece
            told.feed(piece)
        assert reader.head is not None
        assert (reader.framing, told.raw, told.body) == (answer.framing, answer.framed, answer.body)
        assert reader.complete is (answer.framing is not Framing.CLOSE)
        assert reader.feed_eof()
        assert not reader.extra
        if answer.framing is Framing.CLOSE:
            reader = AnswerReader()


EXTRA = st.sampled_from([b"\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"x", b"0\r\n\r\n", b"\r\n\r\n"])


@given(answers().filter(lambda answer: answer.framing is not Framing.CLOSE), EXTRA, PLACES)
def test_what_follows_an_answer_is_seen_and_not_passed_on(
    answer: Sent, extra: bytes, places: list[float]
) -> None:
    told = Told()
    try:
        for piece in cut(answer.head + answer.framed + extra, places):
            told.feed(piece)
    except BadMessage:
        assert answer.framing is Framing.CHUNKED
    else:
        assert told.reader.complete
        assert told.reader.extra
    assert answer.framed.startswith(told.raw)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"SSH-2.0-OpenSSH\r\n", id="other-protocol"),
        pytest.param(b"HTTP/1.1 20 OK\r\n\r\n", id="status"),
        pytest.param(b"HTTP/1.1 200 OK\nX: y\n\n", id="bare-lf"),
        pytest.param(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", id="upgrade"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", id="both"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", id="coding"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", id="length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", id="chunk"),
        pytest.param(b"\0" * 100, id="zeros"),
    ],
)
def test_what_is_no_answer(raw: bytes) -> None:
    with pytest.raises(BadMessage):
        Told().feed(raw)


@pytest.mark.parametrize(
    ("start", "more"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 60000, id="value"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n" * 9999, id="many"),
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 999, id="1xx"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 60000, id="extension"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"x" * 60000, id="trailer"
        ),
    ],
)
def test_endless_heads_of_answers_end(start: bytes, more: bytes) -> None:
    told = Told()
    told.feed(start)
    fed = 0
    try:
        while fed < 10 * MAX_HEAD_BYTES:
            told.feed(more)
            fed += len(more)
    except BadMessage:
        pass
    assert fed <= MAX_HEAD_BYTES


def test_an_answer_to_head_has_no_body() -> None:
    reader = AnswerReader()
    for _ in range(2):
        reader.begin(to_head=True)
        assert reader.feed_head(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n") == b""
        assert reader.complete
        assert reader.keep_alive
