"""For tests: servers and clients on loopback that see and send bytes as they are."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from rolloutpool_router.wire.client import Origin, Upstream
from rolloutpool_router.wire.connection import Handler, Limits
from rolloutpool_router.wire.server import Exchange, Server

HOST = "127.0.0.1"
TIMEOUT_SECONDS = 20.0
"""Least patience of whatever waits in a test."""


@dataclass(frozen=True)
class RunningServer:
    """A server on loopback."""

    server: Server
    port: int

    @property
    def origin(self) -> Origin:
        """Where it listens."""
        return Origin(HOST, self.port, f"{HOST}:{self.port}")


@asynccontextmanager
async def running_server(handler: Handler, limits: Limits | None = None) -> AsyncIterator[RunningServer]:
    """Serve within the block, on a free port."""
    server = Server(handler, limits)
    port = await server.start(HOST, 0)
    try:
        yield RunningServer(server, port)
    finally:
        await server.close()


class RawClient:
    """A connection to a server, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Write bytes, and wait until the kernel has them."""
        self.writer.write(data)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        """Read up to and with `end`."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.reader.readuntil(end)

    async def exactly(self, size: int) -> bytes:
        """Read so many bytes."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """Read to the end of the connection."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.reader.read()

    async def answer(self) -> tuple[int, bytes]:
        """Read one answer with a Content-Length: status and body."""
        head = await self.until(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        lengths = [int(line[15:]) for line in lines if line.lower().startswith("content-length:")]
        return int(lines[0].split()[1]), await self.exactly(lengths[0])

    def reset(self) -> None:
        """Close with a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def raw_client(port: int, *, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
    """Connect within the block; `receive_buffer`: bytes that the kernel takes for it unread."""
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2**26 if receive_buffer is None else 1)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def talk(port: int, data: bytes) -> bytes:
    """Send bytes; all that is answered until the server closes."""
    async with raw_client(port) as client:
        await client.send(data)
        return await client.rest()


async def echo(exchange: Exchange) -> None:
    """A handler: answer with the method, the target and the body."""
    body = await exchange.read_body(2**30)
    said = b"%b %b %b" % (exchange.head.method.encode(), exchange.head.target.encode(), body)
    exchange.answer(200, [("X-Own", "ä")], said)


class Held:
    """A handler whose requests wait, and what became of them."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.started = 0
        self.cancelled = 0

    async def __call__(self, exchange: Exchange) -> None:
        """Answer with the target once `go` is set."""
        self.started += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        exchange.answer(200, [], exchange.head.target.encode())


@asynccontextmanager
async def whole_upstream() -> AsyncIterator[Upstream]:
    """A client; at the end of the block it carries no request any more."""
    upstream = Upstream()
    try:
        yield upstream
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while upstream.busy:  # noqa: ASYNC110 (what is waited for has no event)
                await asyncio.sleep(0.002)
    finally:
        await upstream.close()


Script = Callable[[RawClient], Awaitable[None]]


@dataclass
class RawEngine:
    """An engine that says to each of its connections what a script says."""

    script: Script
    accepted: int = 0
    """Connections so far."""
    open: set[asyncio.Task[None]] = field(default_factory=set)
    """Connections whose script runs."""
    port: int = 0

    @property
    def origin(self) -> Origin:
        """Where it listens."""
        return Origin(HOST, self.port, f"{HOST}:{self.port}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RawEngine]:
        """Serve within the block, on a free port; its end breaks all connections."""
        server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self.open):
                task.cancel()
            await asyncio.gather(*self.open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.accepted += 1
        self.open.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self.script(RawClient(reader, writer))
        except asyncio.CancelledError:
            pass
        finally:
            self.open.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def saying(*pieces: bytes, close: bool = False) -> Script:
    """A script: after the head of each request say these pieces, one by one."""

    async def script(client: RawClient) -> None:
        while True:
            await client.until(b"\r\n\r\n")
            for piece in pieces:
                await client.send(piece)
                await asyncio.sleep(0)
            if close:
                return

    return script
