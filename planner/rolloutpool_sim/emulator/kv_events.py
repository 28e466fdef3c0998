"""Publishes KV events as vLLM 0.32 does (`vllm/distributed/kv_events.py`): ZeroMQ, msgpack, one batch a step.

A message has three frames: topic, number (8 bytes, big-endian, counted from 0) and payload. Whoever sends the
number of a batch to the replay address gets that one and all later ones that are kept, then an empty one, -1.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from rolloutpool_sim.emulator.settings import KvEventsSettings

_END = (-1).to_bytes(8, "big", signed=True)
_HASH_MASK = 2**64 - 1
_QUEUE = 100_000  # messages to a slow subscriber; vLLM's default

log = logging.getLogger(__name__)


class EventRecorder:
    """Collects events since the last batch. It is the `watcher` of an engine's block pool."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[dict[str, Any]] = []

    def take(self) -> list[dict[str, Any]]:
        """The events so far; they are not given again."""
        taken, self._events = self._events, []
        return taken

    def stored(
        self, hashes: Sequence[int], *, parent: int | None, tokens: Sequence[int], cache_salt: str
    ) -> None:
        """Blocks entered the prefix cache."""
        event: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [block & _HASH_MASK for block in hashes],
            "parent_block_hash": parent & _HASH_MASK if parent is not None else None,
            "token_ids": list(tokens),
            "block_size": self._block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
        if cache_salt and parent is None:
            event["extra_keys"] = [[cache_salt], *[None] * (len(hashes) - 1)]
        self._events.append(event)

    def evicted(self, prefix_hash: int) -> None:
        """A block left the prefix cache."""
        self._events.append(
            {"type": "BlockRemoved", "block_hashes": [prefix_hash & _HASH_MASK], "medium": "GPU"}
        )

    def cleared(self) -> None:
        """The prefix cache is empty."""
        self._events.append({"type": "AllBlocksCleared"})


class Publisher:
    """Sends what a recorder collects. Make it inside a running event loop."""

    def __init__(self, settings: KvEventsSettings, recorder: EventRecorder) -> None:
        self._settings = settings
        self._recorder = recorder
        self._context = zmq.asyncio.Context()
        # Sending to subscribers never blocks: what does not fit a slow one's queue is dropped.
        self._live = zmq.Context(self._context).socket(zmq.PUB)
        self._live.sndhwm = _QUEUE
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        self._next = 0
        self._answering: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen. Raises OSError (zmq.ZMQError) if an address cannot be listened on."""
        self._live.bind(self._settings.endpoint)
        if self._settings.replay_endpoint is not None:
            replay = self._context.socket(zmq.ROUTER)
            replay.sndhwm = _QUEUE
            replay.bind(self._settings.replay_endpoint)
            self._answering = asyncio.create_task(self._answer(replay))

    def publish(self) -> None:
        """Send the events of a step, if there are any."""
        events = self._recorder.take()
        if not events:
            return
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        seq, self._next = self._next, self._next + 1
        self._live.send_multipart([self._settings.topic.encode(), seq.to_bytes(8, "big"), payload])
        self._kept.append((seq, payload))

    async def close(self) -> None:
        """Stop listening."""
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
        self._live.close(linger=0)
        self._context.destroy(linger=0)

    async def _answer(self, replay: zmq.asyncio.Socket) -> None:
        """Repeat what is asked for, for ever."""
        topic = self._settings.topic.encode()
        while True:
            frames = await replay.recv_multipart()
            if len(frames) != 3:
                log.warning("a request for a replay has 3 frames, this one %d", len(frames))
                continue
            client, start = frames[0], int.from_bytes(frames[2], "big")
            for seq, payload in list(self._kept):
                if seq >= start:
                    await replay.send_multipart([client, b"", topic, seq.to_bytes(8, "big"), payload])
            await replay.send_multipart([client, b"", topic, _END, b""])
