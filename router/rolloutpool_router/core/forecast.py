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
from dataclasses import dataclass
from statistics import NormalDist

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


@dataclass(frozen=True, slots=True)
class Outlay:
    """Blocks that something is expected to hold, by horizon."""

    mean: Numbers
    variance: Numbers


NOTHING = Outlay((0.0,) * len(HORIZON_PARTS), (0.0,) * len(HORIZON_PARTS))


@dataclass(frozen=True)
class Outlook:
    """What becomes of a class's sessions."""

    rows: tuple[tuple[tuple[float, float, float], ...], ...]
    """By age bucket and horizon: the part that is still there, the blocks that those hold more than now, and
    the variance of that growth."""

    def of(self, *, age: float, blocks: float) -> Outlay:
        """Forecast for one session of this age (seconds) that holds `blocks` for itself now."""
        row = self.rows[bucket_of(age)]
        means = tuple([survival * max(0.0, blocks + growth) for survival, growth, _ in row])
        # s (1 - s) m^2 + s v with m = mean / s
        variances = tuple(
            [
                (1 - survival) * mean * mean / survival + survival * variance if survival > 0 else 0.0
                for mean, (survival, _, variance) in zip(means, row, strict=True)
            ]
        )
        return Outlay(means, variances)


def outlook(life: Life, ahead: Numbers) -> Outlook:
    """The outlook of a class at these horizons, in seconds."""
    return Outlook(tuple(tuple(_step(life, at, seconds) for seconds in ahead) for at in range(BUCKETS)))


def _step(life: Life, at: int, seconds: float) -> tuple[float, float, float]:
    if seconds <= 0:
        return 1.0, 0.0, 0.0
    variance = life.variance_at(MIDDLES[at] + seconds)
    here = life.surviving(MIDDLES[at])
    survival = life.surviving(MIDDLES[at] + seconds) / here if here > LEAST_SURVIVAL else 0.5
    return min(1.0, survival), _gain(life, at, seconds), max(0.0, variance - life.variance[at])


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
        self._sessions += (old is NOTHING) - (new is NOTHING)
        if not self._sessions:
            # What roundings left behind would stay for ever.
            self._mean, self._variance = list(NOTHING.mean), list(NOTHING.variance)
            return
        self._mean = [m + n - o for m, n, o in zip(self._mean, new.mean, old.mean, strict=True)]
        self._variance = [
            v + n - o for v, n, o in zip(self._variance, new.variance, old.variance, strict=True)
        ]

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
        return all(
            more < matters or mean + more + z * math.sqrt(max(0.0, variance + spread)) <= blocks
            for mean, variance, more, spread in zip(
                self._mean, self._variance, newcomer.mean, newcomer.variance, strict=True
            )
        )


def times(outlay: Outlay, sessions: int) -> Outlay:
    """Several alike at once."""
    if sessions == 1:
        return outlay
    return Outlay(
        tuple(sessions * mean for mean in outlay.mean), tuple(sessions * v for v in outlay.variance)
    )
