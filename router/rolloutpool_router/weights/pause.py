"""The pause gate: requests wait in the router while the trainer changes the weights."""

from __future__ import annotations

import asyncio
from collections import Counter


class PauseGate:
    """Open, unless the pool is paused."""

    def __init__(self) -> None:
        """Be open; for ever, where nobody closes it."""
        self.is_open = True
        self.held: Counter[str] = Counter()
        """Requests that wait for it to open, by class."""
        self.epoch = 0
        """How often it closed: tells of a pause that came and went."""
        self._shut = False
        self._changed = asyncio.Event()
        self._changed.set()

    @property
    def waiting(self) -> int:
        """Requests that wait for it to open."""
        return self.held.total()

    async def wait_open(self, class_name: str) -> bool:
        """Let a request of this class wait until the gate is open; False if the router shuts down first."""
        self.held[class_name] += 1
        try:
            while not self.is_open and not self._shut:
                await self._changed.wait()
        finally:
            self.held[class_name] -= 1
            if not self.held[class_name]:
                del self.held[class_name]
        return self.is_open

    def has_stayed_open(self, epoch: int) -> bool:
        """Whether it is open and did not close since that epoch."""
        return self.is_open and self.epoch == epoch

    def close(self) -> None:
        """Hold requests from now on."""
        self.epoch += self.is_open
        self.is_open = False
        if not self._shut:
            self._changed.clear()

    def open(self) -> None:
        """Let all requests go on."""
        self.is_open = True
        self._changed.set()

    def shut(self) -> None:
        """The router shuts down: whoever waits, now or later, is told so."""
        self._shut = True
        self._changed.set()
