"""The router's own metrics; labels are classes of the spec, outcomes and engines, so series stay few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.mixture import drift_percentage_points, shares
from rolloutpool_router.core.outcomes import Outcome
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.core.queues import ClassQueue

NO_CLASS = ""
"""Label of requests whose class is not known."""
_WAIT_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)
_TTFT_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 120)
_COUNTERS = {
    "finished": "Sessions that ended after at least one complete answer.",
    "adopted": "Unknown sessions with history that were let in at once.",
    "rejected": "Requests answered with an overload status.",
    "parked": "Times that a session was parked.",
}


class Metrics:
    """Counters and histograms that requests move, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "rolloutpool_router_requests",
            "Requests by class and outcome.",
            ["class", "outcome"],
            registry=self.registry,
        )
        self.queue_wait = Histogram(
            "rolloutpool_router_queue_wait_seconds",
            "Time that requests waited to enter, in seconds.",
            ["class"],
            buckets=_WAIT_BUCKETS,
            registry=self.registry,
        )
        self.ttft = Histogram(
            "rolloutpool_router_time_to_first_byte_seconds",
            "Time from entering to the first byte of the answer's body, in seconds.",
            ["class"],
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self.prefills = Counter(
            "rolloutpool_router_prefills",
            "Prompts of disaggregated engines by where they were computed: remote, local, fallback.",
            ["where"],
            registry=self.registry,
        )

        self.forwards = Counter(
            "rolloutpool_router_forwards",
            "Attempts to pass a request on to the router that it belongs to: passed_on, passed_over.",
            ["result"],
            registry=self.registry,
        )

    def ended(self, class_name: str, outcome: Outcome) -> None:
        """Count one request."""
        self.requests.labels(class_name, outcome.value).inc()

    def text(self) -> bytes:
        """The exposition of GET /metrics."""
        return generate_latest(self.registry)


class StateCollector(Collector):
    """Reads the controller when metrics are asked for, so that no request pays for a gauge."""

    def __init__(
        self,
        controller: AdmissionController,
        peers: Peers,
        clock: Callable[[], float],
        ignored: Callable[[], int],
        status_age: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._peers = peers
        self._clock = clock
        self._ignored = ignored
        self._status_age = status_age

    def describe(self) -> Iterable[Metric]:
        """Nothing up front: the series depend on the object."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters of the state as it is now."""
        yield from self._by_class()
        yield from self._by_engine()
        view = self._controller.view
        consumed = shares(self._controller.consumed.counts)
        drift = drift_percentage_points(view.shares, consumed) if view is not None else 0.0
        yield _gauge("mixture_drift_percentage_points", "Consumed mixture against the shares.", drift)
        yield _gauge("sessions", "Resident sessions.", len(self._controller.table))
        yield _gauge(
            "stalled_requests", "Requests that no engine is up for.", self._controller.stalled.requests
        )
        yield _gauge("prefix_index_keys", "Prompt prefixes known.", len(self._controller.fleet.prefixes))
        yield _gauge("applied_revision", "status.admission.revision in force.", view.revision if view else 0)
        yield _gauge("peers", "Other routers of the pool.", len(self._peers.others))
        yield _gauge("listed", "0: others are listed and this router is not.", float(self._peers.listed))
        yield _gauge("status_age_seconds", "Time since the object was last seen.", self._status_age())
        ignored = CounterMetricFamily(
            "rolloutpool_router_statuses_ignored", "Objects that were malformed or stale and changed nothing."
        )
        ignored.add_metric([], self._ignored())
        yield ignored

    def _by_class(self) -> Iterator[Metric]:
        now = self._clock()
        rows: dict[str, tuple[str, Callable[[str], float]]] = {
            "active_sessions": ("Resident sessions.", lambda name: self._controller.table.by_class[name]),
            "parked_sessions": (
                "Sessions between two turns that gave their place back.",
                lambda name: self._controller.table.parked_by_class[name],
            ),
            "waiting_sessions": ("Sessions that wait to enter.", lambda name: len(self._queue(name))),
            "oldest_wait_seconds": ("Longest current wait.", lambda name: self._queue(name).oldest_wait(now)),
            "cap_sessions": ("Sessions that may be resident.", self._cap),
            "consumed_samples": (
                "Samples in the window.",
                lambda name: self._controller.consumed.counts[name],
            ),
        }
        for metric, (text, value) in rows.items():
            family = GaugeMetricFamily(f"rolloutpool_router_{metric}", text, labels=["class"])
            for name in self._controller.classes:
                family.add_metric([name], value(name))
            yield family
        for metric, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"rolloutpool_router_{metric}", text, labels=["class"])
            for name, state in self._controller.classes.items():
                counter.add_metric([name], getattr(state.counters, metric))
            yield counter

    def _by_engine(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("rolloutpool_router_engine_up", "1: routed to.", labels=["engine"])
        for engine in self._controller.fleet.engines:
            up.add_metric([engine], float(self._controller.fleet.is_up(engine, self._clock())))
        yield up

    def _queue(self, name: str) -> ClassQueue:
        return self._controller.classes[name].queue

    def _cap(self, name: str) -> float:
        engines = self._controller.fleet.engines.values()
        return sum(engine.caps.get(name, 0) for engine in engines if engine.holds_sessions)


def _gauge(metric: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"rolloutpool_router_{metric}", text, value=value)
