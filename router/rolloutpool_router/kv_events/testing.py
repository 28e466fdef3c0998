"""For tests: a publisher of KV events whose batches can get lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from rolloutpool_router.core.kv_events import END, write_seq

HOST = "127.0.0.1"
_JOINED = b"\1"


class FakePublisher:
    """Publishes what a test says, on loopback. Make it with `running`."""

    def __init__(self, live: zmq.asyncio.Socket, replay: zmq.asyncio.Socket, *, names_topic: bool) -> None:
        self._live = live
        self._replay = replay
        self._names_topic = names_topic
        self.kept: list[tuple[int, bytes]] = []
        """What is repeated."""
        self.next = 0
        self.asked: list[int] = []
        """Numbers from which routers asked for a repetition."""

    @property
    def address(self) -> str:
        """Where it publishes."""
        return _address(self._live)

    @property
    def replay_address(self) -> str:
        """Where it repeats."""
        return _address(self._replay)

    @classmethod
    @asynccontextmanager
    async def running(
        cls, *, port: int = 0, replay_port: int = 0, names_topic: bool = True
    ) -> AsyncIterator[FakePublisher]:
        """Publish within the block. `names_topic`: whether repeated batches have a frame with the topic."""
        with zmq.asyncio.Context() as context:
            live, replay = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
            for socket, wanted in ((live, port), (replay, replay_port)):
                socket.linger = 0
                socket.bind(f"tcp://{HOST}:{wanted or '*'}")
            publisher = cls(live, replay, names_topic=names_topic)
            answering = asyncio.create_task(publisher._answer())
            try:
                yield publisher
            finally:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
                live.close(linger=0)
                replay.close(linger=0)

    async def subscribed(self) -> None:
        """Wait until a router has subscribed."""
        while not (await self._live.recv()).startswith(_JOINED):
            continue

    async def publish(self, *events: Any, lost: bool = False, kept: bool = True) -> None:
        """Send a batch; one that is `lost` does not arrive, one that is not `kept` is not repeated."""
        await self.send(msgspec.msgpack.encode([float(self.next), list(events), 0]), lost=lost, kept=kept)

    async def send(self, payload: bytes, *, lost: bool = False, kept: bool = True) -> None:
        """Send any payload as a batch."""
        seq, self.next = self.next, self.next + 1
        if kept:
            self.kept.append((seq, payload))
        if not lost:
            await self.send_frames([b"kv-events", write_seq(seq), payload])

    async def send_frames(self, frames: Sequence[bytes]) -> None:
        """Send any message."""
        await self._live.send_multipart(list(frames))

    async def _answer(self) -> None:
        topic = [b"kv-events"] if self._names_topic else []
        while True:
            client, _, start = await self._replay.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            for seq, payload in list(self.kept):
                if seq >= first:
                    await self._replay.send_multipart([client, b"", *topic, write_seq(seq), payload])
            await self._replay.send_multipart([client, b"", *topic, write_seq(END), b""])


def _address(socket: zmq.asyncio.Socket) -> str:
    found = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(found, bytes)
    return found.rstrip(b"\0").decode()
