"""How far the completed samples are from the target mixture, over a sliding window."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from rolloutpool_router.core.mixture import drift_percentage_points, shares

WINDOW = 1000
"""Completed samples of a window."""


class Drift:
    """The last completed samples, and the worst window so far."""

    def __init__(self, target: Mapping[str, float], window: int = WINDOW) -> None:
        """Start with no sample; `target` is the share by class, `window` in samples."""
        self._target = target
        self._window = window
        self._last: deque[str] = deque()
        self._counts: Counter[str] = Counter()
        self._worst: float | None = None
        self.total: Counter[str] = Counter()
        """Completed samples since the beginning, by class."""

    @property
    def now(self) -> float | None:
        """Drift of the last window (all, if fewer), in percentage points; None before the first sample."""
        return drift_percentage_points(self._target, shares(self._counts)) if self._last else None

    @property
    def worst(self) -> float | None:
        """Largest drift of any window of consecutive samples (all, if fewer), in percentage points."""
        return self.now if self._worst is None else self._worst

    @property
    def overall(self) -> float | None:
        """Drift of all samples together, in percentage points."""
        return drift_percentage_points(self._target, shares(self.total)) if self.total else None

    def add(self, class_name: str) -> None:
        """One more sample has completed."""
        self.total[class_name] += 1
        self._last.append(class_name)
        self._counts[class_name] += 1
        if len(self._last) > self._window:
            self._counts[self._last.popleft()] -= 1
        if len(self._last) == self._window:
            window, counts = self._window, self._counts
            distance = sum(abs(share * window - counts[name]) for name, share in self._target.items())
            self._worst = max(self._worst or 0.0, 50.0 * distance / window)
