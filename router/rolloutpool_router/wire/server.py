"""The listener for clients, and what holds for all of its connections."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from itertools import islice

from rolloutpool_router.wire.connection import ClientConnection, Handler, Limits
from rolloutpool_router.wire.exchange import Exchange

__all__ = ["Exchange", "Handler", "Limits", "Server"]

log = logging.getLogger(__name__)

BACKLOG = 4096
MOST_AT_ONCE = 256
"""Connections whose limits in time are looked at before others get the event loop, under 1 ms."""


class Server:
    """Serves HTTP/1.1 with one handler.

    The handler is called for one request of a connection after the other, and cancelled when the client goes.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, handler: Handler, limits: Limits | None = None) -> None:
        self.handler = handler
        self.limits = limits or Limits()
        self.now = 0.0
        """The event loop's clock when it was last looked at, in seconds."""
        self.leaving = False
        """Answers ask their clients to connect elsewhere next time."""
        self._connections: OrderedDict[ClientConnection, None] = OrderedDict()
        """Those that were looked at longest ago first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def start(self, host: str, port: int) -> int:
        """Listen, on a free port where `port` is 0; the port.

        Raises:
            OSError: the address cannot be listened at.
        """
        self.loop = asyncio.get_running_loop()
        self._sweep()
        self._listener = await self.loop.create_server(
            lambda: ClientConnection(self), host, port, backlog=BACKLOG
        )
        return int(self._listener.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Take no new connections."""
        if self._listener is not None:
            self._listener.close()

    def leave(self) -> None:
        """Send clients elsewhere: idle connections close now, the others with their next answer."""
        self.leaving = True
        for connection in list(self._connections):
            connection.leave()

    async def close(self) -> None:
        """Stop listening, cut all connections off, and wait for their handlers."""
        self.stop_listening()
        for connection in list(self._connections):
            connection.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        while self._connections:  # noqa: ASYNC110 (their transports close in the event loop's next rounds)
            await asyncio.sleep(0)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    def _sweep(self) -> None:
        """Look at some connections, so often that each has its turn about every `sweep_seconds`."""
        self.now = self.loop.time()
        for connection in list(islice(self._connections, MOST_AT_ONCE)):
            self._connections.move_to_end(connection)
            connection.sweep(self.now)
        part = min(1.0, MOST_AT_ONCE / max(1, len(self._connections)))
        self._sweep_timer = self.loop.call_later(part * self.limits.sweep_seconds, self._sweep)

    # What connections call

    def add(self, connection: ClientConnection) -> int:
        """Count a connection; how many there are with it."""
        self._connections[connection] = None
        return len(self._connections)

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)

    def serving(self, task: asyncio.Task[None]) -> None:
        """Remember a connection's task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
