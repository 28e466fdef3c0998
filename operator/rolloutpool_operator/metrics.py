"""The operator's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """Counters of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter(
            "rolloutpool_operator_watch_events",
            "Watch events, by kind and by whether they called for a reconcile",
            ("kind", "relevant"),
            registry=self.registry,
        )
        self.reconciles = Counter(
            "rolloutpool_operator_reconciles",
            "Reconciles, by outcome",
            ("outcome",),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "rolloutpool_operator_reconcile_seconds",
            "Time that a reconcile takes, planning included",
            registry=self.registry,
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )
        self.status_writes = Counter(
            "rolloutpool_operator_status_writes",
            "Statuses written",
            registry=self.registry,
        )
        self.pools = Gauge("rolloutpool_operator_pools", "Pools known", registry=self.registry)
        self.alive = Gauge(
            "rolloutpool_operator_watches_deliver",
            "1: watches deliver what was written and read; 0: one is overdue",
            registry=self.registry,
        )
