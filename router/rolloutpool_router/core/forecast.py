"""What the residents of an engine hold now and will hold next: the pot that sessions enter by.

The pot is an engine's protected KV blocks. For each horizon h the forecast adds up, over the residents and
without further entries, the mean and the variance of what a session of this age that holds b blocks now will
hold then: it is still there with probability s = S(a + h) / S(a) and has gained g, the blocks per second that
sessions of each age between gain while they are there, so

    mean = s (b + g)        variance = s (1 - s) (b + g)^2 + s var(g)

A newcomer fits if mean + z sqrt(variance) stays within the pot at every horizon, with z the normal quantile
of the wanted confidence (the chance constraint P(sum > C) <= epsilon). At h = 0 this is what is held now; the
others matter where many sessions of one age grow together, as at the start of a training step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import NamedTuple

from rolloutpool_router.core.lifetable import BUCKETS, MIDDLES, WIDTHS, Life, bucket_of

HORIZON_PARTS = (0.0, 0.1, 0.25, 0.45, 0.65, 0.85)
"""Horizons of the forecast, as parts of the longest mean residency of a class."""
LEAST_SURVIVAL = 1e-9
LEAST_PART = 0.1
"""Part of its largest forecast below which a newcomer does not count at a horizon."""

Numbers = tuple[float, ...]


def quantile(confidence: float) -> float:
    """Standard normal quantile (z) of a confidence between 0 and 1; at most that of 0.9999."""
    return NormalDist().inv_cdf(min(max(confidence, 0.5), 0.9999))


def horizons(lives: Mapping[str, Life]) -> Numbers:
    """Seconds ahead to look."""
    longest = max((life.residency_seconds for life in lives.values()), default=0.0)
    return tuple(part * longest for part in HORIZON_PARTS)


class Outlay(NamedTuple):
    """Blocks that something is expected to hold, by horizon."""

    mean: Numbers
    variance: Numbers


NOTHING = Outlay((0.0,) * len(HORIZON_PARTS), (0.0,) * len(HORIZON_PARTS))


Step = tuple[float, float, float, float, float]
"""What becomes of sessions of one age up to one horizon: the part s that is still there, the blocks that
those hold more than now, the part that is not there any more, the divisor s (1 where s is 0), and s times the
variance of the growth. A plain tuple: this is the innermost loop of every decision."""


class Outlook:
    """What becomes of a class's sessions of each age; worked out for an age when it is first asked for."""

    __slots__ = ("_ahead", "_latest", "_life", "_rows")

    def __init__(self, life: Life, ahead: Numbers) -> None:
        """Look these seconds ahead."""
        self._life = life
        self._ahead = ahead
        self._rows: list[tuple[Step, ...] | None] = [None] * BUCKETS
        self._latest = -1, 0.0, NOTHING
        """Bucket, blocks and answer of the latest question: whoever enters was asked about just before."""

    def of(self, *, age: float, blocks: float) -> Outlay:
        """Forecast for one session of this age (seconds) that holds `blocks` for itself now."""
        at = bucket_of(age)
        if self._latest[0] == at and self._latest[1] == blocks:
            return self._latest[2]
        row = self._rows[at]
        if row is None:
            row = self._rows[at] = tuple(_step(self._life, at, seconds) for seconds in self._ahead)
        means: list[float] = []
        variances: list[float] = []
        for survival, growth, ending, divisor, variance in row:
            held = blocks + growth
            mean = survival * held if held > 0.0 else 0.0
            means.append(mean)
            # s (1 - s) m^2 + s v with m = mean / s
            variances.append(ending * mean * mean / divisor + variance)
        outlay = Outlay(tuple(means), tuple(variances))
        self._latest = at, blocks, outlay
        return outlay


def _step(life: Life, at: int, seconds: float) -> Step:
    if seconds <= 0:
        return 1.0, 0.0, 0.0, 1.0, 0.0
    variance = max(0.0, life.variance_at(MIDDLES[at] + seconds) - life.variance[at])
    here = life.surviving(MIDDLES[at])
    survival = min(1.0, life.surviving(MIDDLES[at] + seconds) / here if here > LEAST_SURVIVAL else 0.5)
    if survival <= 0:
        return 0.0, 0.0, 1.0, 1.0, 0.0
    return survival, _gain(life, at, seconds), 1 - survival, survival, survival * variance


def _gain(life: Life, at: int, seconds: float) -> float:
    """Blocks that a session in the middle of a bucket gains in the next seconds, if it is still there."""
    gained, part = 0.0, min(seconds, WIDTHS[at] / 2)
    while seconds > 0 and at < BUCKETS:
        gained += life.growth[at] * part
        seconds, at = seconds - part, at + 1
        part = min(seconds, WIDTHS[at]) if at < BUCKETS else 0.0
    return gained


class Pot:
    """What the residents of one engine hold and will hold, kept as they come, grow and go."""

    def __init__(self) -> None:
        self._mean = [0.0] * len(HORIZON_PARTS)
        self._variance = [0.0] * len(HORIZON_PARTS)
        self._sessions = 0

    def replace(self, old: Outlay, new: Outlay) -> None:
        """A session is counted otherwise; `NOTHING` stands for one that was not or will not be there."""
        if old is NOTHING or new is NOTHING:
            self._sessions += (old is NOTHING) - (new is NOTHING)
        if not self._sessions:
            # What roundings left behind would stay for ever.
            self._mean, self._variance = list(NOTHING.mean), list(NOTHING.variance)
            return
        # No `strict=`, which takes longer than an addition.
        self._mean = [m + n - o for m, n, o in zip(self._mean, new.mean, old.mean)]  # noqa: B905
        self._variance = [v + n - o for v, n, o in zip(self._variance, new.variance, old.variance)]  # noqa: B905

    @property
    def held(self) -> float:
        """Blocks that the residents hold now beside shared prefixes."""
        return max(0.0, self._mean[0])

    def expected(self) -> float:
        """The most that the residents are expected to hold at any horizon, without a margin."""
        return max(0.0, *self._mean)

    def room(self, newcomer: Outlay, *, blocks: float, z: float) -> bool:
        """Whether a newcomer fits as well.

        Args:
            newcomer: its forecast.
            blocks: what residents and newcomer may fill beside shared prefixes.
            z: margin, in standard deviations.
        """
        if self._mean[0] + newcomer.mean[0] > blocks:
            return False
        # Where a newcomer is likely to be gone it makes nothing worse.
        matters = LEAST_PART * max(newcomer.mean)
        for mean, variance, more, spread in zip(  # noqa: B905
            self._mean, self._variance, newcomer.mean, newcomer.variance
        ):
            if more >= matters:
                total = variance + spread
                if mean + more + z * (math.sqrt(total) if total > 0.0 else 0.0) > blocks:
                    return False
        return True

    def left(self, *, blocks: float, z: float) -> tuple[float, int]:
        """Blocks left for newcomers at the horizon that has least of them, and that horizon.

        What a newcomer's own variance needs of it is not taken off; arguments as in `room`.
        """
        needed = [
            mean + z * math.sqrt(variance) if variance > 0.0 else mean
            for mean, variance in zip(self._mean, self._variance)  # noqa: B905
        ]
        most = max(needed)
        return blocks - most, needed.index(most)


def times(outlay: Outlay, sessions: int) -> Outlay:
    """Several alike at once."""
    if sessions == 1:
        return outlay
    return Outlay(
        tuple(sessions * mean for mean in outlay.mean), tuple(sessions * v for v in outlay.variance)
    )
