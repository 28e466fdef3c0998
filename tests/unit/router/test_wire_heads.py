"""Heads of HTTP messages: what is refused, passed on and written."""

import pytest

from rolloutpool_router.wire.heads import (
    OF_THE_REQUEST,
    BadMessage,
    Framing,
    Headers,
    ResponseHead,
    encode,
    encode_head,
    end_to_end,
    origin_form,
    request_head,
    response_framing,
    status_line,
)


@pytest.mark.parametrize(
    ("target", "found"),
    [
        pytest.param("/", "/", id="root"),
        pytest.param("/v1/x?a=b&c", "/v1/x?a=b&c", id="query"),
        pytest.param("/a?", "/a?", id="empty-query"),
        pytest.param("/a%2Fb//c", "/a%2Fb//c", id="not-decoded"),
        pytest.param("/a#frag", "/a", id="fragment"),
        pytest.param("http://host:1/a?b", "/a?b", id="absolute"),
        pytest.param("HTTPS://host/a", "/a", id="absolute-https"),
        pytest.param("http://host", "/", id="absolute-bare"),
        pytest.param("http://host?a=/b", "/?a=/b", id="absolute-query-only"),
        pytest.param("//a//b", "//a//b", id="two-slashes"),
    ],
)
def test_origin_form(target: str, found: str) -> None:
    assert origin_form(target) == found


@pytest.mark.parametrize("target", ["*", "host:80", "ftp://host/", "a/b", ""])
def test_other_targets_are_refused(target: str) -> None:
    with pytest.raises(BadMessage):
        origin_form(target)


HOST = (b"Host", b"a")


@pytest.mark.parametrize(
    ("method", "headers", "version", "status"),
    [
        pytest.param(b"GET", [], "1.1", 400, id="no-host"),
        pytest.param(b"GET", [HOST, (b"HOST", b"b")], "1.1", 400, id="two-hosts"),
        pytest.param(b"GET", [HOST], "2.0", 505, id="http-2"),
        pytest.param(b"GET", [], "0.9", 505, id="http-0.9"),
        pytest.param(b"CONNECT", [HOST], "1.1", 501, id="connect"),
        pytest.param(b"POST", [HOST, (b"Transfer-Encoding", b"gzip, chunked")], "1.1", 501, id="coding"),
        pytest.param(b"POST", [HOST, (b"Transfer-Encoding", b"identity")], "1.1", 501, id="identity"),
        pytest.param(b"POST", [(b"Transfer-Encoding", b"chunked")], "1.0", 400, id="chunked-in-1.0"),
    ],
)
def test_refused_heads(method: bytes, headers: list[tuple[bytes, bytes]], version: str, status: int) -> None:
    with pytest.raises(BadMessage) as refused:
        request_head(method, b"/", headers, version)
    assert refused.value.status == status


def test_an_old_client_needs_no_host() -> None:
    head = request_head(b"GET", b"/a?b", [], "1.0")
    assert (head.method, head.target, head.path, head.query, head.http_1_0) == (
        "GET",
        "/a?b",
        "/a",
        "b",
        True,
    )


@pytest.mark.parametrize(
    ("names", "repeated"),
    [
        pytest.param([b"X-A", b"X-B"], [], id="none"),
        pytest.param([b"X-A", b"X-B", b"x-a", b"x-b", b"x-a"], ["x-a", "x-b"], id="in-any-case"),
    ],
)
def test_headers_that_come_more_than_once(names: list[bytes], repeated: list[str]) -> None:
    assert Headers((name, b"same") for name in names).repeated == repeated


def test_headers_by_name() -> None:
    headers = Headers([(b"X-A", b"1"), (b"x-b", b"2"), (b"x-a", "ä".encode()), (b"X-C", b"\xff")])
    assert headers.get("x-A") == "1"
    assert headers.get("X-D") is None
    assert headers.lower == {"x-a": "1, ä", "x-b": "2", "x-c": "\udcff"}
    assert encode(headers.lower["x-c"]) == b"\xff"


def test_hop_by_hop_headers_and_those_named_in_connection_stay_behind() -> None:
    headers = Headers(
        [
            (b"Connection", b"keep-alive, X-Mine"),
            (b"Keep-Alive", b"timeout=5"),
            (b"X-MINE", b"1"),
            (b"TE", b"trailers"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Upgrade", b"h2c"),
            (b"connection", b"x-also"),
            (b"X-Also", b"2"),
            (b"Content-Encoding", b"gzip"),
            (b"Expect", b"100-continue"),
            (b"X-Twice", b"a"),
            (b"x-twice", b"b"),
        ]
    )
    kept = [(b"Content-Encoding", b"gzip"), (b"X-Twice", b"a"), (b"x-twice", b"b")]
    assert end_to_end(headers, OF_THE_REQUEST) == kept


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param((b"X", b"a\r\nY: b"), id="crlf"),
        pytest.param((b"X", b"a\nY: b"), id="lf"),
        pytest.param((b"X", b"a\rb"), id="cr"),
        pytest.param((b"X", b"a\0b"), id="nul"),
        pytest.param((b"X\r\nY", b"b"), id="name"),
    ],
)
def test_a_header_cannot_begin_another(pair: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="line break"):
        encode_head(b"GET / HTTP/1.1", [(b"Host", b"a"), pair])


def test_head_on_the_wire() -> None:
    assert encode_head(status_line(200), [(b"A", b"b")]) == b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"
    assert status_line(599) == b"HTTP/1.1 599 "
    assert status_line(404, "Gone fishing") == b"HTTP/1.1 404 Gone fishing"


@pytest.mark.parametrize(
    ("status", "headers", "to_head", "framing"),
    [
        pytest.param(200, [(b"content-length", b"5")], False, (Framing.LENGTH, 5), id="length"),
        pytest.param(200, [(b"Transfer-Encoding", b"Chunked")], False, (Framing.CHUNKED, None), id="chunked"),
        pytest.param(200, [], False, (Framing.CLOSE, None), id="close"),
        pytest.param(200, [(b"Content-Length", b"5")], True, (Framing.NONE, 0), id="head"),
        pytest.param(204, [], False, (Framing.NONE, 0), id="204"),
        pytest.param(304, [(b"Content-Length", b"5")], False, (Framing.NONE, 0), id="304"),
    ],
)
def test_framing_of_an_answer(
    status: int, headers: list[tuple[bytes, bytes]], to_head: bool, framing: tuple[Framing, int | None]
) -> None:
    assert response_framing(ResponseHead(status, "", Headers(headers)), to_head=to_head) == framing


def test_an_unknown_transfer_coding_is_no_answer() -> None:
    head = ResponseHead(200, "OK", Headers([(b"Transfer-Encoding", b"gzip, chunked")]))
    with pytest.raises(BadMessage):
        response_framing(head, to_head=False)
