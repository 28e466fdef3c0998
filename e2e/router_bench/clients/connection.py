"""A keep-alive connection that carries one request at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import cast

import httptools

from router_bench.engines import CHAT
from router_bench.processes import HOST


class Connection(asyncio.Protocol):
    """Tells `done` of the end of each answer, with its status; 0: the connection broke."""

    def __init__(self, done: Callable[[Connection, int], None]) -> None:
        self._done = done
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting = False
        self.began = 0.0
        """For the owner: from when the current request's time is counted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        """Send a whole request; the last answer must have ended."""
        assert self._transport is not None
        self._waiting = True
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """An answer has ended."""
        self._waiting = False
        self._done(self, self._parser.get_status_code())

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a request that got no answer."""
        if self._waiting:
            self._waiting = False
            self._done(self, 0)

    def close(self) -> None:
        """Break off."""
        self._waiting = False
        if self._transport is not None:
            self._transport.abort()


async def connect(port: int, count: int, done: Callable[[Connection, int], None]) -> list[Connection]:
    """Open connections to a loopback port."""
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(count):
        _, connection = await loop.create_connection(lambda: Connection(done), HOST, port)
        made.append(connection)
    return made


def chat(body: bytes, *, rollout_class: str, session: str = "") -> bytes:
    """A whole chat request."""
    named = f"X-Session-ID: {session}\r\n" if session else ""
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"X-Rollout-Class: {rollout_class}\r\n{named}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def prompt(serial: int, size: int, *, stream: bool = False, tokens: int = 64, history: int = 0) -> bytes:
    """A chat's body with a first prompt of `size` bytes and `history` earlier answers."""
    words = "the quick brown fox jumps over the lazy dog " * (size // 44 + 1)
    messages = [{"role": "user", "content": f"{serial * 7919:08d} {words}"[:size]}]
    for turn in range(history):
        messages.append({"role": "assistant", "content": f"The answer is 42, or so it seems in turn {turn}."})
        messages.append({"role": "user", "content": f"The tool says that it is 42, in turn {turn} too."})
    return json.dumps(
        {"model": "m", "max_tokens": tokens, "temperature": 1.0, "stream": stream, "messages": messages}
    ).encode()
