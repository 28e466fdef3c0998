"""Labels are closed sets, whatever clients send; docs/metrics.md lists every metric."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rolloutpool_router.core.admission import EntryReason
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.core.requests import Arrival, Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.metric_families import Timing
from rolloutpool_router.metrics import EngineFault, Metrics, StateCollector
from rolloutpool_router.metrics_docs import document, registered
from rolloutpool_router.telemetry import Telemetry
from rolloutpool_router.testing import pool_object
from rolloutpool_testkit.admission import CAPS, apply, controller_of

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
CLASSES = {"rlvr", "rlhf", "agentic", ""}
HOSTILE = ["x" * 10_000, 'a"} 1\nfake_metric{b="', "<script>", "\\", "../../etc", "\u202e", "RLVR", "e1"]


def controller(*engines: str) -> AdmissionController:
    """One that has read a pool with these engines."""
    return controller_of(engines={name: f"http://{name}" for name in engines})


def exposed(metrics: Metrics) -> str:
    """What Prometheus reads."""
    return asyncio.run(metrics.exposition()).decode()


def label_values(metrics: Metrics) -> dict[str, set[str]]:
    """All values of each label, as Prometheus reads the exposition."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposed(metrics)):
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label != "le":
                    found.setdefault(label, set()).add(value)
    return found


@given(st.lists(st.one_of(st.sampled_from([*HOSTILE, "rlvr", "e0"]), st.text(max_size=40)), max_size=20))
def test_no_name_that_a_client_chose_becomes_a_label(names: list[str]) -> None:
    known = controller("e0")
    metrics = Metrics(known)
    metrics.registry.register(StateCollector(known, Peers("r"), lambda: 0.0, lambda: 0, lambda: 0.0))
    telemetry = Telemetry(metrics, lambda: 0.0)
    for name in names:
        watch = telemetry.begin("POST", name, {"x-rollout-class": name})
        watch.took(Arrival(name, name), name, streaming=True)
        watch.decided(Entered(name, name, name, 1.0, reason=EntryReason.ROOM))
        watch.failed(name, EngineFault.LOST)
        watch.first_byte()
        watch.usage, watch.outcome = Usage(10, 5, 3), Outcome.SERVED
        watch.ended()
    values = label_values(metrics)
    assert values["class"] <= CLASSES
    assert values["engine"] <= {"e0", ""}
    assert values.get("outcome", set()) <= {outcome.value for outcome in Outcome}


def test_every_request_is_counted_though_its_class_is_unknown() -> None:
    metrics = Metrics(controller("e0"))
    for name in HOSTILE:
        metrics.ended(name, Outcome.SERVED)
    metrics.ended("rlvr", Outcome.SERVED)
    text = exposed(metrics)
    assert f'rolloutpool_router_requests_total{{class="",outcome="served"}} {len(HOSTILE)}.0' in text
    assert 'rolloutpool_router_requests_total{class="rlvr",outcome="served"} 1.0' in text


def test_series_of_what_left_the_pool_go() -> None:
    known = controller("e0", "e1")
    metrics = Metrics(known)
    for engine in ("e0", "e1"):
        metrics.failed(engine, EngineFault.LOST)
    apply(known, pool_object({"e2": "http://e2"}, caps=CAPS, revision=2))
    metrics.failed("e2", EngineFault.LOST)
    assert label_values(metrics)["engine"] == {"e2"}


def test_a_class_that_comes_back_counts_again() -> None:
    known = controller("e0")
    metrics = Metrics(known)
    for revision, workload in enumerate(("rlvr", "other", "rlvr"), start=2):
        one = [{"name": workload, "share": 1.0}]
        pool = pool_object({"e0": "http://e0"}, caps={workload: 1}, revision=revision, workloads=one)
        pool["metadata"]["generation"] = revision
        apply(known, pool)
        metrics.of_class(workload).queue_wait.observe(1.0)
        assert label_values(metrics)["class"] == {workload}
    assert 'rolloutpool_router_queue_wait_seconds_count{class="rlvr"} 1.0' in exposed(metrics)


async def test_the_exposition_is_the_same_from_a_thread() -> None:
    known = controller("e0")
    metrics = Metrics(known)
    metrics.registry.register(StateCollector(known, Peers("r"), lambda: 0.0, lambda: 0, lambda: 0.0))
    metrics.ended("rlvr", Outcome.SERVED)

    def own(text: bytes) -> list[str]:
        return [line for line in text.decode().splitlines() if "process_" not in line]

    assert own(await metrics.exposition()) == own(generate_latest(metrics.registry))


@given(st.lists(st.floats(0, 100), max_size=50))
def test_a_histogram_counts_as_prometheus_wants(seconds: list[float]) -> None:
    bounds = (0.1, 1.0, 10.0)
    timing = Timing(bounds)
    for value in seconds:
        timing.observe(value)
    expected = [float(sum(value <= bound for value in seconds)) for bound in (*bounds, float("inf"))]
    assert [count for _, count in timing.buckets()] == expected
    assert [bound for bound, _ in timing.buckets()] == ["0.1", "1.0", "10.0", "+Inf"]


@pytest.mark.parametrize(
    ("usage", "outcome", "counted"),
    [
        pytest.param(Usage(100, 5, 60), Outcome.SERVED, (100, 60, 5), id="told"),
        pytest.param(Usage(100, 5), Outcome.SERVED, (100, 0, 5), id="cache not told"),
        pytest.param(Usage(100, 5, 60, estimated=True), Outcome.SERVED, (0, 0, 0), id="estimated"),
        pytest.param(Usage(100, 5, 60), Outcome.ENGINE_LOST, (0, 0, 0), id="broken off"),
        pytest.param(None, Outcome.SERVED, (0, 0, 0), id="none"),
    ],
)
def test_tokens_are_those_of_whole_answers(
    usage: Usage | None, outcome: Outcome, counted: tuple[int, int, int]
) -> None:
    metrics = Metrics(controller("e0"))
    watch = Telemetry(metrics, lambda: 0.0).begin("POST", "/v1/completions", {})
    watch.took(Arrival("s", "rlvr"), "id", streaming=False)
    watch.first_byte()
    watch.usage, watch.outcome = usage, outcome
    watch.ended()
    families = (metrics.prompt_tokens, metrics.cached_tokens, metrics.completion_tokens)
    assert tuple(family.labels("rlvr").value for family in families) == counted


def test_an_engine_is_in_one_state() -> None:
    known = controller("e0", "e1")
    metrics = Metrics(known)
    metrics.registry.register(StateCollector(known, Peers("r"), lambda: 0.0, lambda: 0, lambda: 0.0))
    known.fleet.failed("e1", 0.0)
    states = {
        (sample.labels["engine"], sample.labels["state"]): sample.value
        for family in text_string_to_metric_families(exposed(metrics))
        for sample in family.samples
        if sample.name == "rolloutpool_router_engine_state"
    }
    assert {key for key, value in states.items() if value} == {("e0", "up"), ("e1", "unreachable")}
    assert Counter(engine for engine, _ in states) == {"e0": 6, "e1": 6}


def test_the_file_of_metrics_says_what_there_is() -> None:
    written = document(asyncio.run(registered()))
    assert DOCS.read_text(encoding="utf-8") == written, "run: make generate"
