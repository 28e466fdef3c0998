"""What sessions of a class hold and how long they stay, by age: a life table of running and finished ones.

For each age bucket the table counts how many sessions ended in it, how long the others were seen in it, and
the blocks held meanwhile. A running session counts for as long as it has been seen, which is right-censoring
done right (Kaplan-Meier, by buckets): the part that ends in a bucket does not depend on how many sessions
began when, so growing outputs show before the first long session has ended, and a burst of new sessions
biases nothing. From it follow, with S(a) the part still there at age a,

    residency   T = integral of S
    footprint   k = integral of S(a) b(a) / T, with b(a) the mean blocks held at age a: the average over time

Old observations fade exponentially, so the table follows shifts; memory is fixed. A prior stands in as a few
imagined sessions and fades as real ones end.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

FIRST_SECONDS = 0.5
"""Width of the first age bucket, in seconds."""
RATIO = 1.25
"""Each bucket ends at this multiple of its predecessor's end."""
BUCKETS = 56
"""Age buckets; the last one, open above, begins at about 30 hours."""
EDGES = (0.0, *(FIRST_SECONDS * RATIO**i for i in range(BUCKETS - 1)))
"""Age at which each bucket begins, in seconds."""
ENDS = (*EDGES[1:], math.inf)
"""Age at which each bucket ends, in seconds."""
WIDTHS = (*(after - before for before, after in pairwise(EDGES)), EDGES[-1])
"""Seconds of each bucket; the last is taken to be as wide as it is old."""
MIDDLES = tuple(edge + width / 2 for edge, width in zip(EDGES, WIDTHS, strict=True))
"""Age in the middle of each bucket, in seconds."""
LEAST_SECONDS = 1e-3
"""Shortest mean residency that a prior may have, in seconds."""
LEAST_SPREAD = 1e-4
"""Least spread that a prior is taken to have."""
LEAST_SURVIVAL = 1e-12
"""Part of the prior's sessions that is taken to outlive any bucket but the last."""
PRIOR_SPREAD = 0.25
"""Squared coefficient of variation of the blocks that the prior's sessions hold at one age."""


def bucket_of(age: float) -> int:
    """The bucket of an age in seconds, 0 or more."""
    return bisect_right(EDGES, age) - 1


@dataclass(frozen=True)
class PriorLife:
    """What a session is expected to be before any was seen: a lognormal residency, and steady growth."""

    residency_seconds: float
    """Mean residency (T)."""
    start_blocks: float
    """Blocks held at the start."""
    footprint_blocks: float
    """Blocks held on average over the residency (k)."""
    spread: float = 1.0
    """Squared coefficient of variation of the residency."""

    @property
    def blocks_per_second(self) -> float:
        """Growth that makes k the average: long sessions are there longer, so E[age] = T (1 + spread) / 2."""
        mean_age = max(self.residency_seconds, LEAST_SECONDS) * (1 + self.spread) / 2
        return (self.footprint_blocks - self.start_blocks) / mean_age

    def survival(self) -> tuple[float, ...]:
        """Part that outlives the beginning of each bucket, and the end of the last."""
        deviation = math.sqrt(math.log1p(max(self.spread, LEAST_SPREAD)))
        middle = math.log(max(self.residency_seconds, LEAST_SECONDS)) - deviation * deviation / 2
        normal = NormalDist(middle, deviation)
        return (1.0, *(max(1 - normal.cdf(math.log(edge)), LEAST_SURVIVAL) for edge in EDGES[1:]), 0.0)


@dataclass(frozen=True)
class Life:
    """A class as its table tells it now."""

    residency_seconds: float
    """Mean residency (T), in seconds."""
    footprint_blocks: float
    """Time-averaged blocks of a resident session (k)."""
    deviation_blocks: float
    """Standard deviation of the blocks held at a random time of a session's life."""
    staying: tuple[float, ...]
    """Part of the sessions that have neither ended nor been parked at the beginning of each bucket."""
    blocks: tuple[float, ...]
    """Mean blocks held in each bucket."""
    variance: tuple[float, ...]
    """Variance of the blocks held in each bucket."""
    growth: tuple[float, ...]
    """Blocks that a session gains per second in each bucket, while it is there."""
    in_turn: float = 1.0
    """Part of the block-seconds that were held during turns, not in tool gaps."""

    def surviving(self, age: float) -> float:
        """Part of the sessions still in place at an age in seconds, exponential within a bucket."""
        at = bucket_of(age)
        here = self.staying[at]
        after = self.staying[at + 1] if at + 1 < BUCKETS else here / math.e
        if here <= 0 or after <= 0:
            return here
        part = min(1.0, (age - EDGES[at]) / WIDTHS[at])
        return float(here * (after / here) ** part)

    def variance_at(self, age: float) -> float:
        """Variance of the blocks held at an age in seconds, linear between middles of buckets."""
        after = min(max(bisect_right(MIDDLES, age), 1), BUCKETS - 1)
        begin, end = MIDDLES[after - 1], MIDDLES[after]
        part = min(max((age - begin) / (end - begin), 0.0), 1.0)
        return self.variance[after - 1] + part * (self.variance[after] - self.variance[after - 1])


class LifeTable:
    """Ends, exposure and blocks by age, with fading memory; `see` costs O(buckets passed)."""

    def __init__(self) -> None:
        self._ended = [0.0] * BUCKETS
        self._last_seconds = [0.0] * BUCKETS
        """Seconds that those who ended in a bucket had spent in it."""
        self._exposure = [0.0] * BUCKETS
        """Seconds that all sessions were seen in a bucket."""
        self._block_seconds = [0.0] * BUCKETS
        self._square_seconds = [0.0] * BUCKETS
        self._parked = [0.0] * BUCKETS
        """Sessions that were parked in a bucket: they give their place back, and go on later."""
        self._gained = [0.0] * BUCKETS
        """Blocks that sessions gained in a bucket."""
        self._turn_block_seconds = 0.0
        """Those of the block-seconds that were held during turns."""
        self._faded_at: float | None = None
        self.finished = 0
        """Sessions that ended since the table began, not faded."""

    def gain(self, *, age: float, blocks: float) -> None:
        """A session of this age, in seconds, gained blocks at once, as a turn began."""
        self._gained[bucket_of(age)] += blocks

    def see(
        self, *, since: float, age: float, blocks: float, gained: float = 0.0, in_turn: bool = True
    ) -> None:
        """A session held `blocks` KV blocks on average between two ages, in seconds, and gained some."""
        whole = age - since
        if whole <= 0:
            return
        if in_turn:
            self._turn_block_seconds += blocks * whole
        at = bucket_of(since)
        while since < age:
            until = age if age <= ENDS[at] else ENDS[at]
            seconds = until - since
            held = seconds * blocks
            self._exposure[at] += seconds
            self._block_seconds[at] += held
            self._square_seconds[at] += held * blocks
            self._gained[at] += gained * (seconds / whole)
            since, at = until, at + 1

    def end(self, *, age: float) -> None:
        """A session that was seen up to this age, in seconds, has ended."""
        at = bucket_of(age)
        self._ended[at] += 1
        self._last_seconds[at] += age - EDGES[at]
        self.finished += 1

    def park(self, *, age: float) -> None:
        """A session of this age, in seconds, gave its place back; it comes again."""
        self._parked[bucket_of(age)] += 1

    def fade(self, *, now: float, window_seconds: float) -> None:
        """Let what was seen before weigh less: its mean age is half the window, as in a sliding window."""
        if self._faded_at is not None and now > self._faded_at:
            keep = math.exp((self._faded_at - now) * 2 / window_seconds)
            for column in (
                self._ended,
                self._last_seconds,
                self._exposure,
                self._block_seconds,
                self._square_seconds,
                self._gained,
                self._parked,
            ):
                column[:] = [value * keep for value in column]
            self._turn_block_seconds *= keep
        self._faded_at = now

    def life(self, prior: PriorLife, prior_weight: float) -> Life:
        """The class now.

        Args:
            prior: what is expected.
            prior_weight: for how many sessions it counts before any has ended; less with each that has.
        """
        weight = prior_weight / (1 + self.finished / prior_weight)
        outliving, growth = prior.survival(), prior.blocks_per_second
        survival, staying, blocks, variance = 1.0, [1.0], [], []
        time = block_time = square_time = 0.0
        for at in range(BUCKETS):
            passing = outliving[at + 1] / outliving[at]
            imagined = max(weight * outliving[at], 1e-9)
            ending, parting, spent = self._passage(at, imagined, passing)
            exposure = imagined * WIDTHS[at] * (1 + passing) / 2
            expected = max(1.0, prior.start_blocks + growth * MIDDLES[at])
            total = self._exposure[at] + exposure
            mean = (self._block_seconds[at] + expected * exposure) / total
            square = (self._square_seconds[at] + (1 + PRIOR_SPREAD) * expected**2 * exposure) / total
            spent *= survival
            time, block_time = time + spent, block_time + spent * mean
            square_time += spent * square
            survival *= 1 - ending
            staying.append(staying[at] * (1 - ending) * (1 - parting))
            blocks.append(mean)
            variance.append(max(0.0, square - mean * mean))
        footprint = block_time / time
        return Life(
            residency_seconds=time,
            footprint_blocks=footprint,
            deviation_blocks=math.sqrt(max(0.0, square_time / time - footprint * footprint)),
            staying=tuple(staying[:BUCKETS]),
            blocks=tuple(blocks),
            variance=tuple(variance),
            growth=self._growth(growth, weight, outliving),
            in_turn=self._turn_block_seconds / held if (held := sum(self._block_seconds)) > 0 else 1.0,
        )

    def _growth(self, expected: float, weight: float, outliving: Sequence[float]) -> tuple[float, ...]:
        """Blocks gained per second by bucket; where nobody was seen, the prior's at the pace of others."""
        lifetime = weight * sum(part * width for part, width in zip(outliving, WIDTHS, strict=False))
        seen = sum(self._exposure)
        pace = (sum(self._gained) + expected * lifetime) / (seen + lifetime)
        return tuple(
            (gained + pace * imagined) / (exposure + imagined)
            for gained, exposure, imagined in zip(
                self._gained,
                self._exposure,
                (max(weight * part * width, 1e-9) for part, width in zip(outliving, WIDTHS, strict=False)),
                strict=True,
            )
        )

    def _passage(self, at: int, imagined: float, passing: float) -> tuple[float, float, float]:
        """Of those who reach a bucket: the parts that end and are parked in it, and the mean seconds there.

        Args:
            at: the bucket.
            imagined: sessions of the prior that reach it.
            passing: part of those that outlives it.
        """
        width = WIDTHS[at]
        outlived = max(0.0, self._exposure[at] - self._last_seconds[at]) / width
        reached = self._ended[at] + outlived + imagined
        ending = (self._ended[at] + imagined * (1 - passing)) / reached
        prior_seconds = imagined * width * (1 + passing) / 2
        seconds = (self._last_seconds[at] + outlived * width + prior_seconds) / reached
        return ending, min(1.0, self._parked[at] / reached), seconds
