"""What the data plane says of a request: counted, traced, logged, and kept among the latest decisions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from rolloutpool_router import logs
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.requests import Arrival, Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.decisions import Decisions
from rolloutpool_router.metrics import NO_CLASS, ClassSeries, EngineFault, Metrics
from rolloutpool_router.wire.heads import encode

if TYPE_CHECKING:
    from rolloutpool_router.spans import Trace, Tracer


TRACEPARENT = b"traceparent"


class Leg(StrEnum):
    """Where a request is sent."""

    PREFILL = "prefill"
    ENGINE = "engine"
    ROUTER = "router"


class Telemetry:
    """Where the requests of one router are watched."""

    def __init__(
        self, metrics: Metrics, clock: Callable[[], float] = time.monotonic, tracer: Tracer | None = None
    ) -> None:
        """Watch nothing yet; without a tracer there are no traces."""
        self.metrics = metrics
        self.decisions = Decisions()
        self.tracer = tracer
        self.clock = clock
        self.answers = 0
        """Answers that began and have not ended."""
        metrics.plane.answers = lambda: self.answers

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> Watch:
        """A request came; the header names are lower-case, the path has neither query nor session."""
        trace = self.tracer.begin(method, path, headers) if self.tracer is not None else None
        return Watch(self, self.clock(), headers, trace)


class Watch:
    """One request. Whoever serves it says what happens; `ended` once, at last, counts and logs it."""

    __slots__ = (
        "_arrival",
        "_began",
        "_entered",
        "_entered_at",
        "_first_byte_at",
        "_headers",
        "_request_id",
        "_streaming",
        "_telemetry",
        "_trace",
        "class_name",
        "outcome",
        "usage",
    )

    def __init__(
        self, telemetry: Telemetry, began: float, headers: Mapping[str, str], trace: Trace | None
    ) -> None:
        self._telemetry = telemetry
        self._headers = headers
        self._trace = trace
        self._began = self._entered_at = began
        self._first_byte_at: float | None = None
        self._arrival: Arrival | None = None
        self._entered: Entered | None = None
        self._request_id = ""
        self._streaming = False
        self.class_name = NO_CLASS
        self.outcome = Outcome.CLIENT_GONE
        """What became of it; where a handler is cancelled, this is left as it is."""
        self.usage: Usage | None = None
        """Tokens of the answer."""

    def took(self, arrival: Arrival, request_id: str, *, streaming: bool) -> None:
        """Session and class are known; the request waits to enter. `streaming`: it asks for a stream."""
        self._arrival, self._request_id, self._streaming = arrival, request_id, streaming
        self.class_name = arrival.class_name
        if self._trace is not None:
            self._trace.took(arrival, request_id)

    def decided(self, answer: Entered | Refusal) -> None:
        """What the gate said, when the request came or when an engine had not taken it."""
        telemetry, first = self._telemetry, self._entered is None
        now = telemetry.clock()
        if isinstance(answer, Entered):
            if first:
                self._entered_at, self.class_name = now, answer.class_name
                telemetry.metrics.of_class(answer.class_name).queue_wait.observe(answer.waited_seconds)
            self._entered = answer
            if answer.reason is not None or answer.adopted:
                telemetry.metrics.entered(answer)
                telemetry.decisions.note(now, answer.session, answer.class_name, answer)
        elif self._arrival is not None:
            telemetry.decisions.note(now, self._arrival.session, self.class_name, answer)
        if self._trace is not None and first:
            self._trace.decided(answer)

    def sent(self, leg: Leg, engine: str) -> tuple[bytes, bytes] | None:
        """The request goes to an engine or another router now: the header traceparent to go with it."""
        if self._trace is not None:
            return TRACEPARENT, self._trace.sent(leg.value, engine)
        own = self._headers.get("traceparent")
        return None if own is None else (TRACEPARENT, encode(own))

    def failed(self, engine: str, fault: EngineFault) -> None:
        """The leg that was sent last failed."""
        self._telemetry.metrics.failed(engine, fault)
        if self._trace is not None:
            self._trace.failed(fault.value)

    def first_byte(self) -> None:
        """The body of a good answer begins."""
        telemetry = self._telemetry
        now = self._first_byte_at = telemetry.clock()
        telemetry.answers += 1
        telemetry.metrics.of_class(self.class_name).ttft.observe(now - self._entered_at)
        if self._trace is not None:
            self._trace.first_byte()

    def ended(self) -> None:
        """The request is over, whatever became of it."""
        telemetry, outcome = self._telemetry, self.outcome
        now, metrics = telemetry.clock(), telemetry.metrics
        series = metrics.of_class(self.class_name)
        metrics.ended(self.class_name, outcome)
        series.request_time.observe(now - self._began)
        if self._first_byte_at is not None:
            telemetry.answers -= 1
            if self.usage is not None and outcome is Outcome.SERVED and not self.usage.estimated:
                self._count_tokens(series, self.usage, now - self._first_byte_at)
        if self._trace is not None:
            self._trace.ended(outcome, self.usage)
        if logs.ACCESS.isEnabledFor(logging.DEBUG):
            self._log(now - self._began)

    def _count_tokens(self, series: ClassSeries, usage: Usage, seconds: float) -> None:
        """Count the tokens of a whole answer that took so long from its first byte to its last."""
        series.prompt_tokens.value += usage.prompt_tokens
        series.cached_tokens.value += usage.cached_tokens or 0
        series.completion_tokens.value += usage.completion_tokens
        if self._streaming and usage.completion_tokens > 1:
            series.token_time.observe(seconds / (usage.completion_tokens - 1))

    def _log(self, seconds: float) -> None:
        logs.request_ended(
            request_id=self._request_id,
            session=self._arrival.session if self._arrival is not None else "",
            class_name=self.class_name,
            engine=self._entered.engine if self._entered is not None else "",
            outcome=self.outcome.value,
            seconds=seconds,
        )
