"""KV blocks that the resident sessions need, whether or not they still have them.

A session needs its own history, and with others the prompts that it shares: each shared prompt counts once
for each engine that has a resident session with it. While a turn is answered, it counts with half its output.
"""

from __future__ import annotations

from collections import Counter

from rolloutpool_sim.fleet.opened import OpenSample


class Residency:
    """Blocks needed on all engines, kept up to date as sessions come, grow and go."""

    def __init__(self) -> None:
        self._own = 0.0
        self._shared = 0.0
        self._holders: Counter[tuple[str, object]] = Counter()

    @property
    def blocks(self) -> float:
        """Blocks needed now, on all engines."""
        return self._own + self._shared

    def enter(self, opened: OpenSample, engine: str, now: float) -> None:
        """A session goes to an engine, from nowhere or from another."""
        if opened.resident and opened.engine == engine:
            return
        self.leave(opened, now)
        opened.count(now)
        opened.engine, opened.resident = engine, True
        self._own += opened.own_blocks
        for segment in opened.sample.group.prompt:
            held = (engine, segment.key)
            self._holders[held] += 1
            if self._holders[held] == 1:
                self._shared += segment.tokens / opened.block_size

    def leave(self, opened: OpenSample, now: float) -> None:
        """A session is resident no more."""
        if not opened.resident:
            return
        opened.count(now)
        opened.resident = False
        self._own -= opened.own_blocks
        for segment in opened.sample.group.prompt:
            held = (opened.engine, segment.key)
            self._holders[held] -= 1
            if not self._holders[held]:
                del self._holders[held]
                self._shared -= segment.tokens / opened.block_size

    def resize(self, opened: OpenSample, own_tokens: float, now: float) -> None:
        """A session needs as many tokens for itself from now on."""
        opened.count(now)
        blocks = own_tokens / opened.block_size
        if opened.resident:
            self._own += blocks - opened.own_blocks
        opened.own_blocks = blocks
