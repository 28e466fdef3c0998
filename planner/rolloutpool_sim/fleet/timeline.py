"""The course of a run over time, for plots: one point for each interval."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from rolloutpool_sim.fleet.drift import Drift
from rolloutpool_sim.fleet.gate import SessionGate
from rolloutpool_sim.fleet.measures import FleetTotals
from rolloutpool_sim.fleet.result import Series

MOST_POINTS = 400
"""Points of a series at most."""


class Timeline:
    """Collects a point when an interval is over."""

    def __init__(self, shares: Mapping[str, float], seconds: float) -> None:
        """Know the target mixture and the length of the run."""
        self._names = list(shares)
        self._drift = Drift(shares)
        self._interval = max(1, math.ceil(seconds / MOST_POINTS))
        self._looks = 0
        self._used = 0.0
        self._resident = 0.0
        self._completed: Counter[str] = Counter()
        self._totals = FleetTotals()
        self._times: list[float] = []
        self._by_class: dict[str, dict[str, list[int]]] = {
            kind: {name: [] for name in shares} for kind in ("completed", "active", "waiting", "caps")
        }
        self._parts: list[tuple[float, float]] = []
        self._drifts: list[float] = []
        self._rates: list[float | None] = []
        self._preemptions: list[int] = []

    def completed(self, class_name: str) -> None:
        """A sample has completed."""
        self._completed[class_name] += 1
        self._drift.add(class_name)

    def look(self, *, used: float, resident: float) -> bool:
        """One more second; whether the interval is over and `point` is due."""
        self._looks += 1
        self._used += used
        self._resident += resident
        return self._looks >= self._interval

    def point(self, now: float, gate: SessionGate, totals: FleetTotals) -> None:
        """End the interval.

        Args:
            now: seconds.
            gate: tells who is resident and who waits.
            totals: the engines' counters.
        """
        self._times.append(now)
        self._note("completed", self._completed, 0)
        self._note("active", gate.active(), 0)
        self._note("waiting", gate.waiting(), 0)
        self._note("caps", gate.caps(), -1)
        self._parts.append((self._used / self._looks, self._resident / self._looks))
        self._drifts.append(self._drift.now or 0.0)
        since = totals - self._totals
        self._rates.append(since.hit_rate)
        self._preemptions.append(since.preemptions)
        self._totals, self._completed = totals, Counter()
        self._looks, self._used, self._resident = 0, 0.0, 0.0

    def series(self) -> Series:
        """All points."""
        columns = {
            kind: {name: tuple(values) for name, values in by_class.items()}
            for kind, by_class in self._by_class.items()
        }
        return Series(
            time=tuple(self._times),
            completed=columns["completed"],
            active=columns["active"],
            waiting=columns["waiting"],
            caps=columns["caps"],
            used=tuple(used for used, _ in self._parts),
            resident=tuple(resident for _, resident in self._parts),
            drift=tuple(self._drifts),
            hit_rate=tuple(self._rates),
            preemptions=tuple(self._preemptions),
        )

    def _note(self, kind: str, values: Mapping[str, int], missing: int) -> None:
        for name in self._names:
            self._by_class[kind][name].append(values.get(name, missing))
