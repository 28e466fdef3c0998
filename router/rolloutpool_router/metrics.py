"""What requests count; every label has a closed set, so series stay few whatever clients send.

What can be read from the router's state is not counted here but read when metrics are asked for
(`state_metrics`). docs/metrics.md lists all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome
from rolloutpool_router.core.requests import Entered
from rolloutpool_router.decisions import ENTRY_REASONS, reason_of
from rolloutpool_router.metric_families import OTHER, Count, Counters, Family, Known, Timing, Timings
from rolloutpool_router.state_metrics import DataPlane, StateCollector

__all__ = ["NO_CLASS", "EngineFault", "Metrics", "StateCollector"]

NO_CLASS = OTHER
"""Label of requests whose class is not known."""
_WAIT_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)
_TTFT_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 120)
_REQUEST_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200)
_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_LAG_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class EngineFault(StrEnum):
    """How a generation failed at an engine."""

    UNREACHABLE = "unreachable"
    """No connection was made; the request went elsewhere."""
    BUSY = "busy"
    """It answered 503; the request went elsewhere."""
    ERROR = "error"
    """It answered another 5xx."""
    LOST = "lost"
    """It broke off, or answered what is no HTTP."""
    STALLED = "stalled"
    """Its stream stopped."""


def _among(values: Container[str]) -> Known:
    return lambda: values


@dataclass(frozen=True, slots=True)
class ClassSeries:
    """The series of one class that its requests move."""

    queue_wait: Timing
    ttft: Timing
    token_time: Timing
    request_time: Timing
    prompt_tokens: Count
    cached_tokens: Count
    completion_tokens: Count


class Metrics:
    """Counters and histograms that requests move, in a registry of their own."""

    def __init__(self, controller: AdmissionController) -> None:
        """Count nothing yet; labels are the classes and engines of this controller's pool."""
        self.registry = CollectorRegistry()
        self.plane = DataPlane()
        """Set its fields to where the numbers are."""

        def classes() -> Container[str]:
            return controller.classes

        def engines() -> Container[str]:
            return controller.fleet.engines

        self._classes = classes

        self.requests = Counters(
            "requests",
            "Requests by class and outcome.",
            {"class": classes, "outcome": _among({outcome.value for outcome in Outcome})},
        )
        self.entries = Counters(
            "entries",
            "Sessions that entered an engine, parked ones again, by reason.",
            {"class": classes, "reason": _among(ENTRY_REASONS)},
        )
        self.queue_wait = Timings(
            "queue_wait_seconds",
            "Time that requests waited to enter, in seconds.",
            {"class": classes},
            _WAIT_BUCKETS,
        )
        self.ttft = Timings(
            "time_to_first_byte_seconds",
            "Time from entering to the first byte of the answer's body, in seconds.",
            {"class": classes},
            _TTFT_BUCKETS,
        )
        self.token_time = Timings(
            "time_per_output_token_seconds",
            "Time from the first byte of a stream to its end, per token after the first, in seconds.",
            {"class": classes},
            _TOKEN_BUCKETS,
        )
        self.request_time = Timings(
            "request_seconds",
            "Time from a request's head to the end of its answer, waits included, in seconds.",
            {"class": classes},
            _REQUEST_BUCKETS,
        )
        self.prompt_tokens = Counters(
            "prompt_tokens",
            "Prompt tokens of answers, cached or not, as the engines say.",
            {"class": classes},
        )
        self.cached_tokens = Counters(
            "cached_prompt_tokens",
            "Those of them that the engines found in their prefix caches.",
            {"class": classes},
        )
        self.completion_tokens = Counters(
            "completion_tokens", "Tokens generated, as the engines say.", {"class": classes}
        )
        self.prefills = Counters(
            "prefills",
            "Prompts of disaggregated engines by where they were computed: remote, local, fallback.",
            {"where": _among({"remote", "local", "fallback"})},
        )
        self.forwards = Counters(
            "forwards",
            "Attempts to pass a request on to the router that it belongs to: passed_on, passed_over.",
            {"result": _among({"passed_on", "passed_over"})},
        )
        self.faults = Counters(
            "engine_faults",
            "Generations that failed at an engine, by how: unreachable, busy, error, lost, stalled.",
            {"engine": engines, "fault": _among({fault.value for fault in EngineFault})},
        )
        self.loop_lag = Timings(
            "event_loop_lag_seconds",
            "How late a timer of the event loop ran, in seconds: what every request waits for the process.",
            {},
            _LAG_BUCKETS,
        )
        self._of_class: dict[str, ClassSeries] = {}
        for family in [kept for kept in vars(self).values() if isinstance(kept, (Family, DataPlane))]:
            self.registry.register(family)
            if isinstance(family, Family):
                family.dropped = self._of_class.clear
        ProcessCollector(registry=self.registry)

    def of_class(self, class_name: str) -> ClassSeries:
        """What the requests of a class count; not to be kept from one request to the next."""
        found = self._of_class.get(class_name)
        return found if found is not None else self._new_class(class_name)

    def _new_class(self, class_name: str) -> ClassSeries:
        name = class_name if class_name in self._classes() else NO_CLASS
        made = ClassSeries(
            queue_wait=self.queue_wait.labels(name),
            ttft=self.ttft.labels(name),
            token_time=self.token_time.labels(name),
            request_time=self.request_time.labels(name),
            prompt_tokens=self.prompt_tokens.labels(name),
            cached_tokens=self.cached_tokens.labels(name),
            completion_tokens=self.completion_tokens.labels(name),
        )
        return self._of_class.setdefault(name, made)

    def ended(self, class_name: str, outcome: Outcome) -> None:
        """Count one request."""
        self.requests.labels(class_name, outcome._value_).value += 1

    def entered(self, entered: Entered) -> None:
        """Count a session that entered an engine."""
        self.entries.labels(entered.class_name, reason_of(entered)).value += 1

    def failed(self, engine: str, fault: EngineFault) -> None:
        """Count a generation that failed at an engine."""
        self.faults.labels(engine, fault.value).value += 1

    async def exposition(self) -> bytes:
        """The answer of GET /metrics, written in a thread: 256 engines would hold requests up for 50 ms."""
        now = CollectorRegistry()
        now.register(_Collected(list(self.registry.collect())))
        return await asyncio.to_thread(generate_latest, now)


@dataclass(frozen=True, eq=False)
class _Collected(Collector):
    """What was collected before, on the thread that owns the state."""

    metrics: list[Metric]

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        return self.metrics
