"""Metrics of weight synchronisation; series per call of a closed table, none per engine or version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rolloutpool_router.weights.sync import WeightSync

_PREFIX = "rolloutpool_router_weights"


class WeightsCollector(Collector):
    """Reads the state when metrics are asked for."""

    def __init__(self, sync: WeightSync) -> None:
        self._sync = sync

    def describe(self) -> Iterable[Metric]:
        """Nothing up front: the state is read when asked for."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Gauges of the state as it is now, and calls so far."""
        state = self._sync.describe()
        gauges = {
            "paused": ("1: requests wait until the trainer resumes the pool.", float(state["paused"])),
            "paused_seconds": ("How long the pool has been paused.", state["pausedSeconds"]),
            "waiting_requests": ("Requests that wait for the end of a pause.", state["waitingRequests"]),
            "stale_engines": (
                "Engines that get no requests for their weights.",
                len(self._sync.stale()),
            ),
            "membership_epoch": (
                "Grows whenever an engine joins, leaves or restarts, and when a weight group is formed.",
                state["membershipEpoch"],
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)
        given_up = CounterMetricFamily(f"{_PREFIX}_pauses_given_up", "Pauses that lasted too long.")
        given_up.add_metric([], state["pausesGivenUp"])
        yield given_up
        calls = CounterMetricFamily(
            f"{_PREFIX}_calls",
            "Control calls by result: ok on every engine, or failed.",
            labels=["call", "result"],
        )
        for (path, ok), count in sorted(self._sync.calls.items()):
            calls.add_metric([path, "ok" if ok else "failed"], count)
        yield calls
