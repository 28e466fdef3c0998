"""Follows the KV events of all engines of a pool, as they come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import zmq
import zmq.asyncio

from rolloutpool_router.core.kv_blocks import MAX_BLOCKS, MAX_ENGINE_BLOCKS, EngineBlocks
from rolloutpool_router.core.kv_sources import KvSource, kv_sources
from rolloutpool_router.core.kv_stream import KvCounts, KvStream
from rolloutpool_router.core.prefix import PrefixIndex
from rolloutpool_router.core.view import PoolView
from rolloutpool_router.kv_events.follower import Follower

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the view is looked at."""
SILENCE_SECONDS = 30.0
"""Time without events of an engine after which the router connects anew, and asks what it missed."""
REPLAYS_AT_ONCE = 2
"""Engines that repeat past events at once: a router that starts reads those of all its engines."""


@dataclass(eq=False)
class _Followed:
    source: KvSource
    blocks: EngineBlocks
    task: asyncio.Task[None]


class KvEvents:
    """Followers of the engines that publish KV events. Use it within one event loop."""

    def __init__(
        self,
        index: PrefixIndex,
        view: Callable[[], PoolView | None],
        *,
        look_seconds: float = LOOK_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """Follow nobody yet.

        Args:
            index: is kept true to the events.
            view: the view in force.
            look_seconds: how often the view is looked at.
            silence_seconds: time without events of an engine after which it is asked anew.
        """
        self.counts = KvCounts()
        self._index = index
        self._view = view
        self._look_seconds = look_seconds
        self._silence_seconds = silence_seconds
        self._followed: dict[str, _Followed] = {}
        self._replaying = asyncio.Semaphore(REPLAYS_AT_ONCE)

    @property
    def engines(self) -> int:
        """Engines that are followed."""
        return len(self._followed)

    @property
    def known_blocks(self) -> int:
        """Blocks that are known of all engines."""
        return sum(len(followed.blocks) for followed in self._followed.values())

    async def run(self) -> None:
        """Follow the engines of the view for ever; leaves no socket or task behind when it is cancelled."""
        context = zmq.asyncio.Context()
        seen: PoolView | None = None
        try:
            while True:
                view = self._view()
                if view is not seen:
                    await self._sync(context, kv_sources(view))
                    seen = view
                await asyncio.sleep(self._look_seconds)
        finally:
            await self._sync(context, {})
            context.destroy(linger=0)

    async def _sync(self, context: zmq.asyncio.Context, sources: dict[str, KvSource]) -> None:
        ended = [name for name, followed in self._followed.items() if sources.get(name) != followed.source]
        await self._stop(ended)
        for name, source in sources.items():
            if name not in self._followed:
                self._followed[name] = self._follow(context, name, source)
        most = min(MAX_ENGINE_BLOCKS, MAX_BLOCKS // max(1, len(self._followed)))
        for followed in self._followed.values():
            followed.blocks.max_blocks = most

    async def _stop(self, names: list[str]) -> None:
        ended = [self._followed.pop(name) for name in names]
        for followed in ended:
            followed.task.cancel()
        await asyncio.gather(*(followed.task for followed in ended), return_exceptions=True)
        for name in names:
            self._index.forget(name)

    def _follow(self, context: zmq.asyncio.Context, name: str, source: KvSource) -> _Followed:
        blocks = EngineBlocks(
            self._index, name, model=source.model, block_size=source.block_size, counts=self.counts.blocks
        )
        follower = Follower(
            context,
            source,
            KvStream(blocks, self.counts),
            counts=self.counts,
            replaying=self._replaying,
            wanted=lambda: self._is_listed(name),
            silence_seconds=self._silence_seconds,
        )
        return _Followed(source, blocks, asyncio.create_task(_keep_following(name, follower)))

    def _is_listed(self, name: str) -> bool:
        view = self._view()
        return view is not None and name in view.engines


async def _keep_following(name: str, follower: Follower) -> None:
    """Start anew after an error: routing goes on with what the router's own traffic tells."""
    while True:
        try:
            await follower.run()
        except (zmq.ZMQError, OSError) as error:
            log.warning("KV events of engine %s cannot be read: %s; trying again", name, error)
        except Exception:
            log.exception("KV events of engine %s cannot be read; trying again", name)
        await asyncio.sleep(LOOK_SECONDS)
