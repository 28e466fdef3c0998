"""What is said of a request is counted once, traced in order, and remembered where it decides something."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rolloutpool_router.core.admission import EntryReason
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.requests import Arrival, Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.decisions import Decision, decision_of, reason_of
from rolloutpool_router.generation import REASON_HEADERS
from rolloutpool_router.metrics import EngineFault, Metrics
from rolloutpool_router.spans import Tracer
from rolloutpool_router.telemetry import Leg, Telemetry
from rolloutpool_router.tracing import tracer_from_environment
from rolloutpool_testkit.admission import controller_of

ARRIVAL = Arrival("s1", "rlvr")
NEW = Entered("s1", "rlvr", "e0", reason=EntryReason.ROOM)
RESIDENT = Entered("s1", "rlvr", "e0")
TRACEPARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@dataclass
class World:
    """A telemetry with a clock to turn, and the spans that it made."""

    now: float = 0.0
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def __post_init__(self) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.metrics = Metrics(controller_of())
        self.telemetry = Telemetry(self.metrics, lambda: self.now, Tracer(provider))

    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()


@pytest.mark.parametrize(
    ("answer", "decision", "reason"),
    [
        pytest.param(NEW, Decision.ENTERED, "room", id="at once"),
        pytest.param(
            Entered("s", "rlvr", "e0", 2.0, reason=EntryReason.DEBT), Decision.WAITED, "debt", id="waited"
        ),
        pytest.param(Entered("s", "rlvr", "e0", adopted=True), Decision.ADOPTED, "adopted", id="adopted"),
        pytest.param(RESIDENT, Decision.RESIDENT, "resident", id="resident"),
        pytest.param(
            Entered("s", "rlvr", "e0", 2.0), Decision.WAITED, "no_engine_was_up", id="resident that stalled"
        ),
        pytest.param(Refusal(Outcome.QUEUE_FULL, "full"), Decision.REFUSED, "queue_full", id="refused"),
    ],
)
def test_every_decision_has_a_reason(answer: Entered | Refusal, decision: Decision, reason: str) -> None:
    assert (decision_of(answer), reason_of(answer)) == (decision, reason)


@pytest.mark.parametrize("reason", [*EntryReason, None])
@pytest.mark.parametrize("adopted", [False, True])
@pytest.mark.parametrize("waited", [0.0, 1.0])
def test_every_reason_has_its_header(reason: EntryReason | None, *, adopted: bool, waited: float) -> None:
    entered = Entered("s", "rlvr", "e0", waited, adopted=adopted, reason=reason)
    assert REASON_HEADERS[reason_of(entered)] == (b"X-RolloutPool-Reason", reason_of(entered).encode())


def test_times_are_counted_from_where_they_begin() -> None:
    world = World()
    watch = world.telemetry.begin("POST", "/v1/chat/completions", {})
    watch.took(ARRIVAL, "r1", streaming=True)
    world.now = 5.0
    watch.decided(Entered("s1", "rlvr", "e0", 5.0, reason=EntryReason.ROOM))
    world.now = 5.5
    watch.decided(Entered("s1", "rlvr", "e1"))
    world.now = 7.0
    watch.first_byte()
    assert world.metrics.plane.answers() == 1
    world.now = 8.0
    watch.usage, watch.outcome = Usage(10, 11), Outcome.SERVED
    watch.ended()
    series = world.metrics.of_class("rlvr")
    assert series.queue_wait.total == 5.0
    assert series.ttft.total == 2.0
    assert series.token_time.total == pytest.approx(0.1)
    assert series.request_time.total == 8.0
    assert world.metrics.plane.answers() == 0
    assert [sum(timing.counts) for timing in (series.queue_wait, series.ttft, series.request_time)] == [1] * 3


def test_only_decisions_that_change_something_are_remembered() -> None:
    world = World()
    for answer in (NEW, RESIDENT, Refusal(Outcome.NO_ENGINE, "none")):
        watch = world.telemetry.begin("POST", "/", {})
        watch.took(ARRIVAL, "r1", streaming=False)
        watch.decided(answer)
        watch.ended()
    assert [noted.answer for noted in world.telemetry.decisions.entered()] == [NEW]
    assert [noted.session for noted in world.telemetry.decisions.refused()] == ["s1"]


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def test_a_request_that_goes_to_two_engines_has_a_span_for_each() -> None:
    world = World()
    watch = world.telemetry.begin("POST", "/v1/completions", TRACEPARENT)
    watch.took(ARRIVAL, "r1", streaming=False)
    watch.decided(NEW)
    first = watch.sent(Leg.ENGINE, "e0")
    watch.failed("e0", EngineFault.UNREACHABLE)
    watch.decided(Entered("s1", "rlvr", "e1"))
    second = watch.sent(Leg.ENGINE, "e1")
    watch.outcome = Outcome.SERVED
    watch.ended()
    queue, leg, again, root = world.spans()
    assert [span.name for span in world.spans()] == ["queue", "engine", "engine", "generation"]
    assert [dict(span.attributes or {})["rolloutpool.engine"] for span in (leg, again)] == ["e0", "e1"]
    assert (leg.status.is_ok, again.status.is_ok) == (False, True)
    assert dict(root.attributes or {})["rolloutpool.decision"] == "entered"
    assert first != second
    trace = TRACEPARENT["traceparent"].split("-")[1]
    assert second == (b"traceparent", f"00-{trace}-{id_of(again):016x}-01".encode())
    assert queue.parent is not None
    assert queue.parent.span_id == id_of(root)


def test_a_request_whose_client_left_while_it_waited_leaves_no_span_open() -> None:
    world = World()
    watch = world.telemetry.begin("POST", "/v1/completions", {"traceparent": "garbage"})
    watch.took(Arrival("\udcff" * 500, "rlvr"), "\udcff", streaming=False)
    watch.ended()
    queue, root = world.spans()
    assert (queue.name, root.name) == ("queue", "generation")
    about = dict(root.attributes or {})
    assert about["rolloutpool.outcome"] == "client_gone"
    assert about["rolloutpool.session"] == "?" * 128


def test_a_request_that_nothing_is_known_of_is_counted() -> None:
    world = World()
    watch = world.telemetry.begin("POST", "/v1/completions", {})
    watch.outcome = Outcome.INVALID_BODY
    watch.ended()
    assert world.metrics.requests.labels("", "invalid_body").value == 1


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="nothing said"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, id="empty"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, id="off"),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, id="no traces"
        ),
    ],
)
def test_there_are_traces_only_where_they_are_asked_for(environ: dict[str, str]) -> None:
    assert tracer_from_environment("r", environ) is None


def test_another_protocol_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rolloutpool_router.spans", None)
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with caplog.at_level(logging.WARNING):
        assert tracer_from_environment("r", environ) is None
    assert "OTLP over HTTP" in caplog.text
    assert "install rolloutpool[tracing]" in caplog.text
