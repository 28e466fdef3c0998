"""What came of the engines' KV events, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rolloutpool_router.kv_events.pool import KvEvents
from rolloutpool_router.metric_families import PREFIX


class KvCollector(Collector):
    """Reads the counts when metrics are asked for."""

    def __init__(self, kv_events: KvEvents) -> None:
        self._kv_events = kv_events

    def describe(self) -> Iterable[Metric]:
        """Nothing up front: the counts are read when asked for."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All counts as they are now."""
        counts = self._kv_events.counts
        totals = {
            "batches": ("Batches of KV events that engines published.", counts.batches),
            "events": ("KV events in them.", counts.events),
            "malformed": ("KV messages and events that were none, passed over.", counts.malformed),
            "gaps": ("Times that batches of an engine were missing.", counts.gaps),
            "replays": ("Times that an engine repeated past batches.", counts.replays),
            "resets": ("Times that all that was known of an engine's cache was given up.", counts.resets),
        }
        for name, (text, value) in totals.items():
            yield CounterMetricFamily(f"{PREFIX}kv_events_{name}", text, value=value)
        blocks = CounterMetricFamily(
            f"{PREFIX}kv_events_blocks",
            "KV blocks that events spoke of; unmapped ones are part of no known prefix of token ids.",
            labels=["change"],
        )
        blocks.add_metric(["stored"], counts.blocks.stored)
        blocks.add_metric(["removed"], counts.blocks.removed)
        blocks.add_metric(["unmapped"], counts.blocks.unmapped)
        yield blocks
        yield GaugeMetricFamily(
            f"{PREFIX}kv_events_engines", "Engines whose KV events are followed.", self._kv_events.engines
        )
        yield GaugeMetricFamily(
            f"{PREFIX}kv_events_known_blocks",
            "KV blocks that are known of all engines.",
            self._kv_events.known_blocks,
        )
