"""A queue of keys to be worked on: each key by one worker at a time, however often it is added.

A key that is added while it is worked on is worked on once more afterwards. A failed key comes back after a
delay that doubles with every failure in a row; every key comes back after the resync period anyway, so that
nothing is missed for longer than that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

logger = logging.getLogger(__name__)


@dataclass
class _Entry:
    queued: bool = False
    running: bool = False
    again: bool = False
    forgotten: bool = False
    failures: int = 0
    timer: asyncio.TimerHandle | None = None

    def disarm(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None


class WorkQueue(Generic[K]):
    """See the module's docstring. All methods are for the event loop's thread."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = 4,
        base_delay: float = 0.5,
        max_delay: float = 60.0,
        resync: float = 60.0,
        limit: int = 10_000,
        expected: tuple[type[Exception], ...] = (),
    ) -> None:
        """Make a queue.

        Args:
            work: what is done for a key; returns in how many seconds it wants to be done again, or None.
            workers: keys worked on at once.
            base_delay: delay after the first failure, in seconds.
            max_delay: longest delay after a failure, in seconds.
            resync: seconds after which a key is worked on again though nothing called for it.
            limit: most keys; more are refused with an error in the log.
            expected: failures that are logged without a traceback.
        """
        self._work = work
        self._workers = workers
        self._base_delay = base_delay
        self._max_delay = max_delay
        self._resync = resync
        self._limit = limit
        self._expected = expected
        self._entries: dict[K, _Entry] = {}
        self._ready: asyncio.Queue[K] = asyncio.Queue()

    @property
    def keys(self) -> tuple[K, ...]:
        """Keys that are known."""
        return tuple(self._entries)

    def add(self, key: K) -> None:
        """Have a key worked on soon."""
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= self._limit:
                logger.error("queue is full with %d keys: %s is left out", self._limit, key)
                return
            entry = self._entries[key] = _Entry()
        entry.forgotten = False
        entry.disarm()
        if entry.running:
            entry.again = True
        elif not entry.queued:
            entry.queued = True
            self._ready.put_nowait(key)

    def forget(self, key: K) -> None:
        """Drop a key: it is not worked on again until it is added.

        Called by the work itself it is about what that saw: a key added since then stays.
        """
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.disarm()
        if entry.running:
            entry.forgotten = not entry.again
        else:
            del self._entries[key]

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._worker(), name=f"worker {number}")

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            entry = self._entries.get(key)
            if entry is None or not entry.queued:
                continue
            entry.queued, entry.running = False, True
            delay = await self._attempt(key, entry)
            entry.running = False
            self._settle(key, entry, delay)

    async def _attempt(self, key: K, entry: _Entry) -> float:
        """Do the work; returns after how many seconds the key comes back."""
        try:
            wanted = await self._work(key)
        except Exception as error:
            entry.failures += 1
            delay = min(self._max_delay, self._base_delay * 2.0 ** min(entry.failures - 1, 30))
            words = "%s failed (%d in a row), next attempt in %.1f s: %s"
            trace = not isinstance(error, self._expected)
            logger.warning(words, key, entry.failures, delay, error, exc_info=trace)
            return delay
        entry.failures = 0
        return self._resync if wanted is None else min(wanted, self._resync)

    def _settle(self, key: K, entry: _Entry, delay: float) -> None:
        if entry.forgotten:
            del self._entries[key]
        elif entry.again and entry.failures == 0:
            entry.again = False
            self.add(key)
        else:
            # A key that fails waits out its delay, whatever was added meanwhile.
            entry.again = False
            entry.timer = asyncio.get_running_loop().call_later(delay, self.add, key)
