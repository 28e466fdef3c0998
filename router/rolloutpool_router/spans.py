"""The spans of requests, by OpenTelemetry's SDK; `tracing` says whether there are any.

The caller's W3C traceparent is the parent; a request's span has one child after the other: `queue`, then
`prefill` and `engine`, or `router` where another router serves it. Each leg carries on the traceparent of its
own span, which vLLM continues. Spans leave in batches from a thread of the SDK; with the collector away they
are dropped, and nothing waits for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.trace import Tracer as SpanMaker
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from rolloutpool_router.core.outcomes import ERRORS, Outcome, Refusal
from rolloutpool_router.core.requests import Arrival, Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.decisions import decision_of, reason_of

MOST_CHARACTERS = 128
"""Longest text that a client may put into a span."""
CLOSE_SECONDS = 2.0
"""How long the last spans may take to leave at the end."""
_FAILURES = frozenset({Outcome.ROUTER_LOST, *(o for o, error in ERRORS.items() if error.status >= 500)})


def exporting_tracer(router: str, *, named: bool) -> Tracer:
    """A tracer whose spans go where the OTEL_ variables say, in batches and from a thread of its own.

    Args:
        router: this router's name, `service.instance.id` of the spans.
        named: the environment names the service.
    """
    own = {"service.instance.id": router} | ({} if named else {"service.name": "rolloutpool-router"})
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider)


class Tracer:
    """Makes the traces of requests."""

    def __init__(self, provider: TracerProvider) -> None:
        """Make spans of this provider's."""
        self._provider = provider
        self._tracer = provider.get_tracer("rolloutpool_router")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> Trace:
        """A request came.

        Args:
            method: of the request.
            path: without session and query, which may hold secrets.
            headers: with lower-case names; their traceparent names the parent.
        """
        attributes: dict[str, AttributeValue] = {
            "http.request.method": method,
            "url.path": _text(path),
        }
        parent = self._propagator.extract(headers)
        span = self._tracer.start_span("generation", parent, kind=SpanKind.SERVER, attributes=attributes)
        return Trace(self._tracer, span)

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is left; waits for the collector no longer than this."""
        ending = threading.Thread(target=self._provider.shutdown, name="traces-end", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, seconds)


class Trace:
    """The spans of one request."""

    __slots__ = ("_child", "_context", "_span", "_tracer")

    def __init__(self, tracer: SpanMaker, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span)
        self._child: Span | None = None

    def took(self, arrival: Arrival, request_id: str) -> None:
        """Session and class are known; the request waits to enter."""
        self._span.set_attributes(
            {
                "rolloutpool.class": arrival.class_name,
                "rolloutpool.session": _text(arrival.session),
                "rolloutpool.request_id": _text(request_id),
            }
        )
        self._next("queue")

    def decided(self, answer: Entered | Refusal) -> None:
        """The gate has answered."""
        about: dict[str, AttributeValue] = {
            "rolloutpool.decision": decision_of(answer).value,
            "rolloutpool.reason": reason_of(answer),
        }
        if isinstance(answer, Entered):
            about["rolloutpool.wait_seconds"] = answer.waited_seconds
            about["rolloutpool.engine"] = answer.engine
        self._span.set_attributes(about)
        self._end_child()

    def sent(self, leg: str, engine: str) -> bytes:
        """A leg of the request is sent now: the traceparent that it is to carry."""
        child = self._next(leg)
        child.set_attribute("rolloutpool.engine", engine)
        context = child.get_span_context()
        ids = f"{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}"
        return f"00-{ids}-{context.trace_flags:02x}".encode()

    def failed(self, fault: str) -> None:
        """The leg that was sent last failed."""
        if self._child is not None:
            _mark_failed(self._child, fault)

    def first_byte(self) -> None:
        """The answer's body begins."""
        if self._child is not None:
            self._child.add_event("first byte")

    def ended(self, outcome: Outcome, usage: Usage | None) -> None:
        """The request is over."""
        self._end_child()
        self._span.set_attribute("rolloutpool.outcome", outcome.value)
        if outcome in _FAILURES:
            _mark_failed(self._span, outcome.value)
        if usage is not None:
            self._span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": usage.completion_tokens,
                    "rolloutpool.cached_tokens": usage.cached_tokens or 0,
                }
            )
        self._span.end()

    def _next(self, name: str) -> Span:
        self._end_child()
        kind = SpanKind.INTERNAL if name == "queue" else SpanKind.CLIENT
        self._child = self._tracer.start_span(name, self._context, kind=kind)
        return self._child

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def _text(sent: str) -> str:
    """What a client sent, fit for protobuf, which would refuse the whole batch for half a character."""
    return sent[:MOST_CHARACTERS].encode(errors="replace").decode()


def _mark_failed(span: Span, why: str) -> None:
    span.set_status(Status(StatusCode.ERROR, why))
