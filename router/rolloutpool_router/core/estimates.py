"""Estimates of a class's footprint k and residency T from the sessions seen, with priors while few were."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rolloutpool_router.core.demand import SessionCost
from rolloutpool_router.core.lifetable import Life, LifeTable, PriorLife

MAX_OBSERVATIONS = 1024
"""Most finished sessions of a class that are kept; the oldest go first."""
OBSERVED_WEIGHTS = 4
"""From this many times the prior's weight in finished sessions on, the estimate counts as observed."""


class Source(StrEnum):
    """Where an estimate comes from."""

    PRIORS = "Priors"
    """No session has ended yet."""
    BLEND = "Blend"
    """The priors still weigh."""
    OBSERVED = "Observed"


class Finished(NamedTuple):
    """One finished session."""

    residency_seconds: float
    footprint_blocks: float
    """Blocks held for itself, averaged over its residency."""
    peak_blocks: float
    """Most blocks held, shared ones included."""


@dataclass(frozen=True)
class Expectation:
    """The priors of a class."""

    life: PriorLife
    peak_blocks: float
    weight: float
    """How many observed sessions they count for."""


@dataclass(frozen=True)
class Method:
    """How to estimate: the switches of spec.admission that concern it."""

    time_averaged: bool
    """A session counts with its time-averaged private footprint; else with its peak."""
    censoring: bool
    """Running sessions count too; else finished ones alone."""
    window_seconds: float


class ClassEstimator:
    """What is known of one class's sessions. Memory is bounded; `end` costs O(1)."""

    def __init__(self) -> None:
        self.table = LifeTable()
        self._finished: deque[tuple[float, Finished]] = deque(maxlen=MAX_OBSERVATIONS)

    def end(self, session: Finished, *, now: float) -> None:
        """A session ended after a success."""
        self.table.end(age=session.residency_seconds)
        self._finished.append((now, session))

    def life(self, expected: Expectation, method: Method, now: float) -> Life:
        """The class's life table now."""
        self.table.fade(now=now, window_seconds=method.window_seconds)
        return self.table.life(expected.life, expected.weight)

    def cost(self, life: Life, expected: Expectation, method: Method, now: float) -> SessionCost:
        """Footprint and residency as the switches want them; `life` is the class's life now."""
        while self._finished and self._finished[0][0] <= now - method.window_seconds:
            self._finished.popleft()
        seen = [session for _, session in self._finished]
        footprint, residency = life.footprint_blocks, life.residency_seconds
        if not method.censoring:
            residency = _blended(
                expected.life.residency_seconds, [s.residency_seconds for s in seen], expected
            )
            footprint = _blended(expected.life.footprint_blocks, [s.footprint_blocks for s in seen], expected)
        if not method.time_averaged:
            footprint = _blended(expected.peak_blocks, [s.peak_blocks for s in seen], expected)
        return SessionCost(footprint, residency)

    def source(self, expected: Expectation) -> Source:
        """Whether the priors still weigh."""
        if not self.table.finished:
            return Source.PRIORS
        enough = self.table.finished >= OBSERVED_WEIGHTS * expected.weight
        return Source.OBSERVED if enough else Source.BLEND


def _blended(prior: float, seen: list[float], expected: Expectation) -> float:
    return (expected.weight * prior + sum(seen)) / (expected.weight + len(seen))
