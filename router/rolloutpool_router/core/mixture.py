"""The mixture: what was consumed of late, how far that is from the target, and which class is owed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Mapping


class ConsumedRing:
    """The classes of the last consumed samples."""

    def __init__(self, window: int) -> None:
        """Remember the last `window` samples."""
        self._samples: deque[str] = deque()
        self.window = window
        """Most samples remembered."""
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
        self.window = window
        self._trim()

    def _trim(self) -> None:
        while len(self._samples) > self.window:
            self._forget(self._samples.popleft())

    def _forget(self, class_name: str) -> None:
        self.counts[class_name] -= 1
        if self.counts[class_name] == 0:
            del self.counts[class_name]


CONSUMED_FADE = 0.5
"""Part of the mixture's window over which what was consumed of late fades."""


class Balance:
    """Samples that each class is behind its share, as a running balance.

    Each sample is owed in part to every class that is present then, in proportion to the shares, and is paid
    to its own. So the balances sum to 0, a constant one means samples exactly in the mixture, and a class
    that sends nothing runs up no debt meanwhile.
    """

    def __init__(self) -> None:
        self.samples: dict[str, float] = {}
        """Samples behind (positive) or ahead (negative), by class; 0 for others."""

    def keep(self, names: Container[str]) -> None:
        """Forget all other classes."""
        self.samples = {name: debt for name, debt in self.samples.items() if name in names}

    def settle(
        self, class_name: str, shares: Mapping[str, float], *, samples: float, limit: float, keep: float = 1.0
    ) -> None:
        """Samples of a class came (positive) or came to nothing (negative).

        Args:
            class_name: the class.
            shares: of the classes present, this one among them; they need not sum to 1.
            samples: how many.
            limit: largest balance that is remembered, in samples.
            keep: what remains of the balance so far.
        """
        behind, whole = self.samples, sum(shares.values())
        if keep != 1.0:
            for name in behind:
                behind[name] *= keep
        for name, share in shares.items():
            debt = behind.get(name, 0.0) + samples * (share / whole - (name == class_name))
            behind[name] = limit if debt > limit else -limit if debt < -limit else debt


class MixtureDebt:
    """How far each class is behind the mixture: in what entered, and in what was consumed of late.

    What enters in the mixture is consumed in it, later by each class's residency, so entries are balanced
    exactly; to steer by consumption alone would overshoot by all that is in progress. Recent consumption
    corrects for chance: a class of which many sessions happened to end together stands back for a while.
    """

    def __init__(self) -> None:
        self._entered = Balance()
        self._consumed = Balance()

    def keep(self, names: Container[str]) -> None:
        """Forget all other classes: one that comes back owes nothing."""
        self._entered.keep(names)
        self._consumed.keep(names)

    def entered(self, class_name: str, shares: Mapping[str, float], *, window: int) -> None:
        """A sample entered; `window` is the mixture's, in samples, `shares` those of the classes present."""
        self._entered.settle(class_name, shares, samples=1, limit=window)

    def failed(self, class_name: str, shares: Mapping[str, float], *, window: int) -> None:
        """A sample that had entered came to nothing: it is owed again."""
        self._entered.settle(class_name, shares, samples=-1, limit=window)

    def consumed(
        self, class_name: str, shares: Mapping[str, float], *, window: int, tolerated: float
    ) -> None:
        """A sample was consumed; `tolerated` is the drift that is fine, in samples."""
        keep = 1 - 1 / (CONSUMED_FADE * window)
        self._consumed.settle(class_name, shares, samples=1, limit=max(1.0, tolerated), keep=keep)

    def behind(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Samples that each class present is behind (positive) or ahead (negative); they sum to 0."""
        entered, consumed = self._entered.samples, self._consumed.samples
        raw = {name: entered.get(name, 0.0) + consumed.get(name, 0.0) for name in shares}
        whole, owed = sum(shares.values()), sum(raw.values())
        return {name: debt - shares[name] / whole * owed for name, debt in raw.items()}


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Part of each class in the samples; empty while there is none."""
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def drift_percentage_points(target: Mapping[str, float], consumed: Mapping[str, float]) -> float:
    """Total variation distance of the two mixtures, in percentage points; 0 while nothing was consumed."""
    if not consumed:
        return 0.0
    names = {**target, **consumed}  # in their order, not a set's: the last digit is the same in every run
    return 50.0 * sum(abs(target.get(name, 0.0) - consumed.get(name, 0.0)) for name in names)
