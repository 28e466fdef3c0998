"""Follows the KV events of one engine: a subscription, and repetitions of what was missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import zmq
import zmq.asyncio

from rolloutpool_router.core.kv_events import END, Malformed, read_seq, write_seq
from rolloutpool_router.core.kv_sources import KvSource
from rolloutpool_router.core.kv_stream import KvCounts, KvStream

log = logging.getLogger(__name__)

EVENTS_PER_TURN = 64
"""Events that are applied before others get the event loop, 0.3 ms or so."""
QUEUED_BATCHES = 10_000
"""Batches that wait to be read; a router that is further behind loses some, and has a gap to repair."""
REPLAY_BATCHES = 10_000
"""Most batches of one repetition, vLLM's own buffer; a longer one is given up."""
REPLAY_SECONDS = 5.0
"""Longest wait for the next batch of a repetition."""
MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest message: a million token ids. A larger one is not taken."""
RECONNECT_MILLISECONDS, LONGEST_RECONNECT_MILLISECONDS = 100, 5_000
HEARTBEAT_MILLISECONDS, HEARTBEAT_TIMEOUT_MILLISECONDS = 10_000, 30_000
"""A node that vanished is noticed, and its engine's new address looked up."""


class Follower:
    """One engine's events, applied as long as `run` runs."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        source: KvSource,
        stream: KvStream,
        *,
        counts: KvCounts,
        replaying: asyncio.Semaphore,
        wanted: Callable[[], bool],
        silence_seconds: float,
    ) -> None:
        """Open nothing yet.

        Args:
            context: makes the sockets.
            source: where the engine publishes.
            stream: takes the batches.
            counts: of all engines.
            replaying: bounds how many engines repeat at once, since that is a burst of work.
            wanted: whether the engine is still part of the pool.
            silence_seconds: time without a message after which the connection is made anew.
        """
        self._context = context
        self._source = source
        self._stream = stream
        self._counts = counts
        self._replaying = replaying
        self._wanted = wanted
        self._silence_seconds = silence_seconds
        self._applied = 0

    async def run(self) -> None:
        """Follow the engine for ever; it may come, go and come back.

        Raises:
            zmq.ZMQError: the address is none.
        """
        while True:
            async with self._socket(zmq.SUB, self._source.events) as live:
                await self._replay()
                while (frames := await self._next(live)) is not None:
                    await self._live(frames)

    async def _next(self, live: zmq.asyncio.Socket) -> list[bytes] | None:
        """The next live message; None after a silence.

        ZeroMQ gives a connection up for good, without a word, after a message that is too large or no
        ZeroMQ at all: so nothing that was heard for a while is reason to connect anew and to ask.
        """
        try:
            async with asyncio.timeout(self._silence_seconds):
                return await live.recv_multipart()
        except TimeoutError:
            return None

    async def _live(self, frames: list[bytes]) -> None:
        message = self._read(frames)
        if message is None:
            return
        events = self._stream.live(*message)
        if events is None:
            self._counts.gaps += 1
            await self._replay()
            events = self._stream.after_gap(*message)
        await self._apply(events)

    async def _replay(self) -> None:
        """Let the engine repeat what was missed, as far as it still has it."""
        async with self._socket(zmq.DEALER, self._source.replay) as asked:
            await asked.send_multipart([b"", write_seq(self._stream.repeat_from)])
            # An engine that does not answer keeps no other from its turn.
            message = await self._repeated(asked)
            if message is None:
                return
            self._counts.replays += 1
            async with self._replaying:
                for _ in range(REPLAY_BATCHES):
                    if message is None:
                        return
                    await self._apply(self._stream.repeated(*message))
                    message = await self._repeated(asked)

    async def _repeated(self, asked: zmq.asyncio.Socket) -> tuple[int, bytes] | None:
        """The next batch of a repetition; None after the last."""
        try:
            async with asyncio.timeout(REPLAY_SECONDS):
                message = self._read(await asked.recv_multipart())
        except TimeoutError:
            log.debug("%s repeats no KV events", self._source.replay)
            return None
        return message if message is not None and message[0] != END else None

    def _read(self, frames: list[bytes]) -> tuple[int, bytes] | None:
        """Number and payload, the last two frames; what is before them depends on vLLM's version."""
        try:
            if len(frames) < 2:
                raise Malformed("a message has a number and a payload")
            return read_seq(frames[-2]), frames[-1]
        except Malformed:
            self._counts.malformed += 1
            return None

    async def _apply(self, events: list[msgspec.Raw]) -> None:
        for event in events:
            # The pool may have changed while others had the loop.
            if not self._wanted():
                return
            self._stream.apply(event)
            self._applied += 1
            if self._applied % EVENTS_PER_TURN == 0:
                await asyncio.sleep(0)

    @asynccontextmanager
    async def _socket(self, kind: int, address: str) -> AsyncIterator[zmq.asyncio.Socket]:
        socket = self._context.socket(kind)
        try:
            socket.linger = 0
            socket.rcvhwm = QUEUED_BATCHES
            socket.maxmsgsize = MESSAGE_BYTES
            socket.reconnect_ivl = RECONNECT_MILLISECONDS
            socket.reconnect_ivl_max = LONGEST_RECONNECT_MILLISECONDS
            socket.heartbeat_ivl = HEARTBEAT_MILLISECONDS
            socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MILLISECONDS
            socket.ipv6 = True
            if kind == zmq.SUB:
                socket.subscribe(b"")
            socket.connect(address)
            yield socket
        finally:
            socket.close(linger=0)
