"""The router's own pressure loop: what engines kept of the sessions that are resident there.

A resident session's next turn should find its whole history cached. What it does not find was evicted, so
this needs no reference and no other confirmation. The loop only tightens what the operator's status allows.
"""

from __future__ import annotations

from collections.abc import Container

from rolloutpool_api.serving import PressureSpec
from rolloutpool_router.core.pressure import INTERVAL_SECONDS, Interval, Pressure, step

RESET_PART = 0.05
"""Part of the expected tokens below which the engines' caches are taken to have been emptied on purpose."""


class Retention:
    """Tokens expected in and found in each engine's cache, and the pressure that follows."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}
        self._pressures: dict[str, Pressure] = {}
        self._stepped = float("-inf")

    def count(self, engine: str, *, expected: float, found: float) -> None:
        """A turn expected this many cached tokens and found so many."""
        before = self._counts.get(engine, (0.0, 0.0))
        self._counts[engine] = (before[0] + expected, before[1] + min(found, expected))

    def is_due(self, now: float) -> bool:
        """Whether the last interval is over."""
        return now - self._stepped >= INTERVAL_SECONDS

    def step(self, now: float, spec: PressureSpec, full: Container[str]) -> None:
        """Look back over the last interval, if it is over; `full` engines hold all that they may."""
        if not self.is_due(now):
            return
        self._stepped = now
        if self._is_reset():
            self._counts.clear()
        for engine in self._counts.keys() | self._pressures.keys():
            expected, found = self._counts.get(engine, (0.0, 0.0))
            seen = Interval(
                queried_tokens=round(expected), hit_tokens=round(found), proof=True, full=engine in full
            )
            self._pressures[engine] = step(self._pressures.get(engine, Pressure()), seen, spec)
        self._counts.clear()

    def _is_reset(self) -> bool:
        """Whether hardly anything was found anywhere: caches were emptied, as after new weights."""
        expected = sum(expected for expected, _ in self._counts.values())
        return expected > 0 and sum(found for _, found in self._counts.values()) < RESET_PART * expected

    def factor(self, engine: str) -> float:
        """Part of its protected blocks that sessions may fill."""
        pressure = self._pressures.get(engine)
        return pressure.factor if pressure is not None else 1.0

    def keep(self, engines: Container[str]) -> None:
        """Forget engines that are gone."""
        self._counts = {name: counts for name, counts in self._counts.items() if name in engines}
        self._pressures = {name: state for name, state in self._pressures.items() if name in engines}
