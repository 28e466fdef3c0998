"""What is measured while a run goes on, and the result made of it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rolloutpool_sim.engine import FinishedRequest
from rolloutpool_sim.fleet.drift import Drift
from rolloutpool_sim.fleet.opened import OpenSample
from rolloutpool_sim.fleet.result import ClassResult


@dataclass(frozen=True)
class FleetTotals:
    """Counters of all engines together, those that were lost included."""

    queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    hits: int = 0
    """Those found."""
    preemptions: int = 0
    recomputed: int = 0
    """Tokens computed again after preemptions."""
    loaded: int = 0
    """Prompt tokens loaded from the second KV tier."""

    def __sub__(self, earlier: FleetTotals) -> FleetTotals:
        return FleetTotals(
            self.queries - earlier.queries,
            self.hits - earlier.hits,
            self.preemptions - earlier.preemptions,
            self.recomputed - earlier.recomputed,
            self.loaded - earlier.loaded,
        )

    def __add__(self, other: FleetTotals) -> FleetTotals:
        return self - (FleetTotals() - other)

    @property
    def hit_rate(self) -> float | None:
        """Part of the queried tokens that was found."""
        return self.hits / self.queries if self.queries else None


@dataclass(slots=True)
class ClassMeasures:
    """One class after the warm-up."""

    waits: array[float] = field(default_factory=lambda: array("d"))
    ttfts: array[float] = field(default_factory=lambda: array("d"))
    completed: int = 0
    turns: int = 0
    output_tokens: int = 0
    block_seconds: float = 0.0
    resident_seconds: float = 0.0
    oldest_wait: float = 0.0

    def result(self, *, submitted: int, seconds: float) -> ClassResult:
        """As a result.

        Args:
            submitted: samples submitted, warm-up included.
            seconds: time measured.
        """
        waits, ttfts = sorted(self.waits), sorted(self.ttfts)
        return ClassResult(
            submitted=submitted,
            completed=self.completed,
            per_minute=60 * self.completed / seconds,
            turns=self.turns,
            output_tokens=self.output_tokens,
            queue_wait_p50=_quantile(waits, 0.5),
            queue_wait_p95=_quantile(waits, 0.95),
            queue_wait_max=_quantile(waits, 1.0),
            oldest_wait_max=self.oldest_wait,
            ttft_p50=_quantile(ttfts, 0.5),
            ttft_p95=_quantile(ttfts, 0.95),
            footprint_blocks=self.block_seconds / self.resident_seconds if self.resident_seconds else None,
            residency_seconds=self.resident_seconds / self.completed if self.completed else None,
        )


class Measures:
    """Everything that is counted after the warm-up, or in it: each has measures of its own."""

    def __init__(self, shares: Mapping[str, float], *, began: float, totals: FleetTotals) -> None:
        """Start counting.

        Args:
            shares: the target mixture.
            began: now, in seconds.
            totals: the engines' counters so far.
        """
        self._before = totals
        self.began = began
        self.classes = {name: ClassMeasures() for name in shares}
        self.drift = Drift(shares)
        self.evicted_history_tokens = 0
        self.failed_turns = 0
        self._looks = 0
        self._used = 0.0
        self._resident = 0.0

    def entered(self, opened: OpenSample, waited: float, *, first: bool) -> None:
        """A session entered after a wait, for the first time or again."""
        measures = self.classes[opened.sample.group.class_name]
        measures.oldest_wait = max(measures.oldest_wait, waited)
        if first:
            measures.waits.append(waited)

    def waits_still(self, class_name: str, waited: float) -> None:
        """A session waits and will not be seen entering."""
        measures = self.classes[class_name]
        measures.oldest_wait = max(measures.oldest_wait, waited)

    def answered(self, opened: OpenSample, finished: FinishedRequest) -> None:
        """A turn was answered; called before the session takes note of it."""
        measures = self.classes[opened.sample.group.class_name]
        measures.turns += 1
        measures.output_tokens += finished.output_tokens
        measures.ttfts.append(finished.queue_seconds + finished.prefill_seconds)
        missing = opened.known_tokens - finished.cached_tokens - finished.remote_tokens
        if missing > 0:
            self.evicted_history_tokens += missing

    def completed(self, opened: OpenSample) -> None:
        """A sample has completed."""
        name = opened.sample.group.class_name
        measures = self.classes[name]
        measures.completed += 1
        measures.block_seconds += opened.block_seconds
        measures.resident_seconds += opened.resident_seconds
        self.drift.add(name)

    def look(self, *, used: float, resident: float) -> None:
        """One more second: parts of the KV blocks that requests held and that resident sessions need."""
        self._looks += 1
        self._used += used
        self._resident += resident

    @property
    def used_fraction(self) -> float:
        """Mean of the looks."""
        return self._used / self._looks if self._looks else 0.0

    @property
    def resident_fraction(self) -> float:
        """Mean of the looks."""
        return self._resident / self._looks if self._looks else 0.0

    def since(self, totals: FleetTotals) -> FleetTotals:
        """The engines' counters since the warm-up."""
        return totals - self._before


def _quantile(ordered: Sequence[float], part: float) -> float | None:
    return ordered[round(part * (len(ordered) - 1))] if ordered else None
