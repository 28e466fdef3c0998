"""Engines that answer every generation with a stream of events at a fixed pace.

    python -m router_bench.stream_engine INTERVAL_MILLISECONDS PORT...

An event carries its number in its stream and the time at which it was written (CLOCK_MONOTONIC, in us), so
that a client on the same machine knows how late it came. Streams have as many events as `max_tokens`
says. They are spread evenly over the interval; all that are due in a millisecond are written in a batch.
"""

import asyncio
import json
import sys
import time
from typing import cast

import httptools
import uvloop

from router_bench.processes import HOST

_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_EVENT = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    '"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"n":%06d,"t":%015d}\n\n'
)
_EVENT_BYTES = len(_EVENT % (0, 0))
_CHUNK = f"{_EVENT_BYTES:x}\r\n{_EVENT}\r\n"
_DONE = b"data: [DONE]\n\n"
_END = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_DONE), _DONE)
TICK_SECONDS = 0.001


class Wheel:
    """Streams by the millisecond of the interval in which their events are due."""

    def __init__(self, interval: int) -> None:
        self._slots: list[dict[Stream, None]] = [{} for _ in range(interval)]
        self._next_slot = 0

    def add(self, stream: "Stream") -> None:
        """Serve a stream from its next slot on."""
        # A stride that is coprime with the interval, so that streams that come together spread out.
        self._next_slot = (self._next_slot + 37) % len(self._slots)
        stream.slot = self._next_slot
        self._slots[stream.slot][stream] = None

    def remove(self, stream: "Stream") -> None:
        """It is over."""
        self._slots[stream.slot].pop(stream, None)

    async def turn(self) -> None:
        """Write what is due, for ever; what was missed is made up for."""
        loop = asyncio.get_running_loop()
        start, ticks = loop.time(), 0
        while True:
            # Also when late: sockets must get their turn between two batches.
            await asyncio.sleep(max(0.0, start + ticks * TICK_SECONDS - loop.time()))
            for stream in list(self._slots[ticks % len(self._slots)]):
                stream.emit()
            ticks += 1


class Stream(asyncio.Protocol):
    """A connection; one request at a time."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._url = b""
        self._sent = self._wanted = 0
        self.slot = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The stream is over."""
        self._wheel.remove(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            # sglang-router tries gRPC (HTTP/2) first.
            self._transport.write(
                b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        """A request's target."""
        self._url += url

    def on_body(self, data: bytes) -> None:
        """A piece of its body."""
        self._body += data

    def on_message_complete(self) -> None:
        """Answer: probes at once, generations as streams."""
        url, body, self._url, self._body = self._url, self._body, b"", b""
        if not url.startswith((b"/v1/chat", b"/v1/completions")):
            known = url.startswith((b"/health", b"/v1/models", b"/metrics"))
            text = b'{"object":"list","data":[{"id":"m"}]}' if url.startswith(b"/v1/models") else b""
            status = b"200 OK" if known else b"404 Not Found"
            self._transport.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(text), text))
            return
        asked = json.loads(body)
        if not asked.get("stream"):
            text = b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}'
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            self._transport.write(head % (len(text), text))
            return
        # sglang-router writes bodies anew, with the newer name.
        self._sent, self._wanted = 0, asked.get("max_tokens") or asked["max_completion_tokens"]
        self._transport.write(_HEAD)
        self._wheel.add(self)

    def emit(self) -> None:
        """Write the next event, after the last one the end."""
        if self._transport.is_closing():
            self._wheel.remove(self)
            return
        chunk = (_CHUNK % (self._sent, time.monotonic_ns() // 1000)).encode()
        self._sent += 1
        if self._sent < self._wanted:
            self._transport.write(chunk)
        else:
            self._transport.write(chunk + _END)
            self._wheel.remove(self)


async def _serve(interval: int, ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    wheel = Wheel(interval)
    for port in ports:
        await loop.create_server(lambda: Stream(wheel), HOST, port, backlog=8192)
    await wheel.turn()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
