"""Gauges and counters of the router's state, read when metrics are asked for, so that no request pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.mixture import drift_percentage_points, shares
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.core.standing import Standing
from rolloutpool_router.core.view import Engine
from rolloutpool_router.metric_families import PREFIX

_COUNTERS = {
    "finished": "Sessions that ended after at least one complete answer.",
    "adopted": "Unknown sessions with history that were let in at once.",
    "rejected": "Requests answered with an overload status.",
    "parked": "Times that a session was parked.",
}


@dataclass(eq=False)
class DataPlane(Collector):
    """Where the numbers of the data plane are read; whoever has them sets these."""

    connections: Callable[[], int] = int
    requests: Callable[[], int] = int
    waiting: Callable[[], int] = int
    answers: Callable[[], int] = int
    buffered_bytes: Callable[[], int] = int
    paused: Callable[[], bool] = bool
    """Whether new requests are held for a weight sync; no gauge: the collector of weight sync has it."""

    def collect(self) -> Iterator[Metric]:
        """Gauges as they are now."""
        yield _gauge("open_connections", "Connections of clients.", self.connections())
        yield _gauge("open_requests", "Requests that have not ended, waiting ones too.", self.requests())
        yield _gauge("waiting_requests", "Requests that wait to enter or for an engine.", self.waiting())
        yield _gauge("open_answers", "Answers that began and have not ended.", self.answers())
        yield _gauge("buffered_request_bytes", "Bytes of request bodies held.", self.buffered_bytes())


class StateCollector(Collector):
    """Reads a controller; series are its classes and engines, so they come and go with the object."""

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
        """Nothing up front: the registry need not know the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters of the state as it is now."""
        yield from self._by_class()
        yield from self._class_counters()
        yield from self._by_engine()
        yield from self._of_pool()

    def _of_pool(self) -> Iterator[Metric]:
        controller, view = self._controller, self._controller.view
        consumed = shares(controller.consumed.counts)
        drift = drift_percentage_points(view.shares, consumed) if view is not None else 0.0
        yield _gauge(
            "mixture_drift_percentage_points",
            "Total variation of the consumed mixture from the shares.",
            drift,
        )
        yield _gauge("sessions", "Open sessions, resident or parked.", len(controller.table))
        yield _gauge("stalled_requests", "Requests that no engine is up for.", controller.stalled.requests)
        yield _gauge("prefix_index_keys", "Prompt prefixes known.", len(controller.fleet.prefixes))
        yield _gauge("applied_revision", "status.admission.revision in force.", view.revision if view else 0)
        yield _gauge("peers", "Other routers of the pool.", len(self._peers.others))
        yield _gauge("listed", "0: others are listed and this router is not.", float(self._peers.listed))
        yield _gauge(
            "deserted", "1: no listed router is there; this one goes on alone.", float(self._peers.deserted)
        )
        yield _gauge("status_age_seconds", "Time since the object was last seen.", self._status_age())
        ignored = CounterMetricFamily(
            f"{PREFIX}statuses_ignored", "Objects that were malformed or stale and changed nothing."
        )
        ignored.add_metric([], self._ignored())
        yield ignored

    def _by_class(self) -> Iterator[Metric]:
        now, controller = self._clock(), self._controller
        table, books, debts = controller.table, controller.ledger.classes, controller.debts()
        caps = total_caps(controller.fleet.engines.values())
        wanted = controller.view.shares if controller.view is not None else {}
        rows: dict[str, tuple[str, Callable[[str], float]]] = {
            "active_sessions": ("Resident sessions.", lambda name: table.by_class[name]),
            "parked_sessions": (
                "Sessions between two turns that gave their place back.",
                lambda name: table.parked_by_class[name],
            ),
            "running_requests": ("Requests in flight at engines.", lambda name: table.running_by_class[name]),
            "waiting_sessions": (
                "Sessions that wait to enter.",
                lambda name: len(controller.classes[name].queue),
            ),
            "oldest_wait_seconds": (
                "Longest current wait, in seconds.",
                lambda name: controller.classes[name].queue.oldest_wait(now),
            ),
            "cap_sessions": ("Sessions that may be resident.", lambda name: caps[name]),
            "consumed_samples": (
                "Samples in the mixture's window.",
                lambda name: controller.consumed.counts[name],
            ),
            "target_share": ("Share that the mixture wants.", lambda name: wanted.get(name, 0.0)),
            "debt_samples": (
                "Samples behind the share; negative: ahead.",
                lambda name: debts[name],
            ),
            "footprint_blocks": (
                "Estimated mean KV blocks of a resident session.",
                lambda name: books[name].cost.footprint_blocks if name in books else 0.0,
            ),
            "residency_seconds": (
                "Estimated mean time that a session stays resident, in seconds.",
                lambda name: books[name].cost.residency_seconds if name in books else 0.0,
            ),
        }
        for metric, (text, value) in rows.items():
            family = GaugeMetricFamily(PREFIX + metric, text, labels=["class"])
            for name in controller.classes:
                family.add_metric([name], value(name))
            yield family

    def _class_counters(self) -> Iterator[Metric]:
        for metric, text in _COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + metric, text, labels=["class"])
            for name, state in self._controller.classes.items():
                counter.add_metric([name], getattr(state.counters, metric))
            yield counter

    def _by_engine(self) -> Iterator[Metric]:
        now, controller = self._clock(), self._controller
        states = GaugeMetricFamily(
            f"{PREFIX}engine_state",
            f"1 for the state that the engine is in: {', '.join(Standing)}.",
            labels=["engine", "state"],
        )
        for name in controller.fleet.engines:
            standing = controller.fleet.state(name, now).standing
            for state in Standing:
                states.add_metric([name, state.value], float(state is standing))
        yield states
        ejections = CounterMetricFamily(
            f"{PREFIX}engine_ejections", "Times that an engine was ejected.", labels=["engine"]
        )
        for name in controller.fleet.engines:
            ejections.add_metric([name], controller.fleet.ejections[name])
        yield ejections
        rows: dict[str, tuple[str, Callable[[Engine], float]]] = {
            "engine_up": ("1: new sessions may go there.", lambda e: controller.fleet.is_up(e.name, now)),
            "engine_sessions": (
                "Resident sessions.",
                lambda e: sum(tally.sessions for tally in controller.table.tally(e.name).values()),
            ),
            "engine_capacity_blocks": ("KV blocks that it has.", lambda e: e.capacity_blocks),
            "engine_protected_blocks": (
                "KV blocks that this router's sessions may fill, under pressure.",
                lambda e: controller.occupancy.protected_blocks(e.name),
            ),
            "engine_held_blocks": (
                "KV blocks that this router's sessions are estimated to hold.",
                lambda e: books.held if (books := controller.ledger.engines.get(e.name)) is not None else 0.0,
            ),
            "engine_pressure_ratio": (
                "Part of the protected blocks that this router's own pressure loop withholds.",
                lambda e: 1 - controller.retention.factor(e.name),
            ),
        }
        for metric, (text, value) in rows.items():
            family = GaugeMetricFamily(PREFIX + metric, text, labels=["engine"])
            for engine in controller.fleet.engines.values():
                family.add_metric([engine.name], value(engine))
            yield family


def total_caps(engines: Iterable[Engine]) -> Counter[str]:
    """Sessions that may be resident, by class, over all engines."""
    totals: Counter[str] = Counter()
    for engine in engines:
        if engine.holds_sessions:
            totals.update(engine.caps)
    return totals


def _gauge(metric: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + metric, text, value=value)
