"""The consumed mixture: the classes of the last finished sessions, and how far they are from the target."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping


class ConsumedRing:
    """The classes of the last consumed samples."""

    def __init__(self, window: int) -> None:
        """Remember the last `window` samples."""
        self._samples: deque[str] = deque()
        self._window = window
        self.counts: Counter[str] = Counter()
        """Samples in the window, by class."""

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, class_name: str) -> None:
        """Count one consumed sample; the oldest beyond the window is forgotten."""
        self._samples.append(class_name)
        self.counts[class_name] += 1
        self._trim()

    def resize(self, window: int) -> None:
        """Remember the last `window` samples from now on."""
        self._window = window
        self._trim()

    def _trim(self) -> None:
        while len(self._samples) > self._window:
            oldest = self._samples.popleft()
            self.counts[oldest] -= 1
            if self.counts[oldest] == 0:
                del self.counts[oldest]


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Part of each class in the samples; empty while there is none."""
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def drift_percentage_points(target: Mapping[str, float], consumed: Mapping[str, float]) -> float:
    """Total variation distance of the two mixtures, in percentage points; 0 while nothing was consumed."""
    if not consumed:
        return 0.0
    names = target.keys() | consumed.keys()
    return 50.0 * sum(abs(target.get(name, 0.0) - consumed.get(name, 0.0)) for name in names)


def debts(target: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
    """Samples that each class of the target is behind it (positive) or ahead of it (negative)."""
    total = sum(counts.get(name, 0) for name in target)
    return {name: share * total - counts.get(name, 0) for name, share in target.items()}
