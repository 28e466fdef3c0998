"""Counters and histograms whose label sets are closed, and which cost a request a fraction of a microsecond.

prometheus_client's own children take a lock per count and a microsecond or two; the router counts on one
thread, several times per request. What is exposed is prometheus_client's. Values of a label come from a known
set; any other value is counted under "", so no client can make series.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

PREFIX = "rolloutpool_router_"
"""What the name of every metric of the router begins with."""
OTHER = ""
"""Label value of what is not in the set."""

Known = Callable[[], Container[str]]
"""The values that a label may have now; asked only for values not seen before."""


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1.0) -> None:
        """Count `by` more."""
        self.value += by


class Timing:
    """One series of a histogram."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Count by upper bounds, ascending, in seconds."""
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Observations in each bucket alone; the last holds those above all bounds."""
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Observations up to each bound, as Prometheus wants them."""
        found, below = [], 0
        for bound, count in zip((*self._bounds, math.inf), self.counts, strict=True):
            below += count
            found.append(("+Inf" if bound == math.inf else str(float(bound)), float(below)))
        return found


S = TypeVar("S")
"""What a family holds one of for each combination of label values."""


class Family(Collector, Generic[S]):
    """The series of one metric, by label values."""

    def __init__(self, name: str, text: str, labels: Mapping[str, Known], make: Callable[[], S]) -> None:
        """Have no series yet.

        Args:
            name: without prefix and unit suffixes of Prometheus.
            text: what is counted, in one sentence.
            labels: the closed set of each label.
            make: a new series.
        """
        self.name = PREFIX + name
        self.text = text
        self._known = labels
        self._make = make
        self._series: dict[tuple[str, ...], S] = {}
        self.dropped: Callable[[], None] = lambda: None
        """Called after series were dropped: who keeps some must get them anew."""

    def labels(self, *values: str) -> S:
        """The series of these label values, in the order of the labels."""
        found = self._series.get(values)
        return found if found is not None else self._new(values)

    def _new(self, values: Sequence[str]) -> S:
        """A series seen for the first time; those with labels of the past go, so there are never many."""
        closed = self._closed(values)
        if closed not in self._series:
            kept = {key: series for key, series in self._series.items() if self._closed(key) == key}
            fewer = len(kept) < len(self._series)
            self._series = kept | {closed: self._make()}
            if fewer:
                self.dropped()
        return self._series[closed]

    def _closed(self, values: Sequence[str]) -> tuple[str, ...]:
        sets = self._known.values()
        return tuple(v if v in known() else OTHER for v, known in zip(values, sets, strict=True))

    def describe(self) -> list[Metric]:
        """Name and type, for the registry's check of duplicates."""
        return [self.family()]

    def family(self) -> Metric:
        """The family without series."""
        raise NotImplementedError

    def collect(self) -> Iterator[Metric]:
        """The family with its series."""
        raise NotImplementedError


class Counters(Family[Count]):
    """A counter."""

    def __init__(self, name: str, text: str, labels: Mapping[str, Known]) -> None:
        """See Family."""
        super().__init__(name, text, labels, Count)

    def family(self) -> CounterMetricFamily:
        """The counter without series."""
        return CounterMetricFamily(self.name, self.text, labels=list(self._known))

    def collect(self) -> Iterator[Metric]:
        """The counter with its series."""
        family = self.family()
        for values, count in self._series.items():
            family.add_metric(values, count.value)
        yield family


class Timings(Family[Timing]):
    """A histogram of seconds."""

    def __init__(self, name: str, text: str, labels: Mapping[str, Known], bounds: Sequence[float]) -> None:
        """See Family; `bounds` are the buckets' upper bounds in seconds."""
        super().__init__(name, text, labels, lambda: Timing(bounds))

    def family(self) -> HistogramMetricFamily:
        """The histogram without series."""
        return HistogramMetricFamily(self.name, self.text, labels=list(self._known))

    def collect(self) -> Iterator[Metric]:
        """The histogram with its series."""
        family = self.family()
        for values, timing in self._series.items():
            family.add_metric(values, timing.buckets(), timing.total)
        yield family
