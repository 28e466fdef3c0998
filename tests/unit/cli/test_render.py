"""A pool as text: what `rolloutpool local status` and `rolloutpool status` print."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rolloutpool_api.v1alpha1 import RolloutPool, parse_pool
from rolloutpool_cli.durations import format_age, parse_duration
from rolloutpool_cli.render import Event, describe, ready, ready_message
from rolloutpool_cli.tables import columns, fields
from rolloutpool_testkit.manifests import pool_manifest

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 2,
        "lastTransitionTime": "2026-01-01T11:59:15Z",
    }


def pool(**status: Any) -> RolloutPool:
    body = pool_manifest("mixed", slo={"ttftMilliseconds": 2000, "itlMilliseconds": 50})
    body["metadata"]["generation"] = 2
    return parse_pool({**body, "status": {"observedGeneration": 2, **status}})


def running() -> RolloutPool:
    return pool(
        phase="Ready",
        conditions=[
            condition("Ready", "True", "Ready"),
            condition("PlanReady", "True", "Planned", "1 x prefill TP1, 2 x decode TP1"),
        ],
        plan={
            "hash": "abc123",
            "solver": "CBC",
            "solverStatus": "Optimal",
            "objective": "MaximizeThroughput: 4.2 samples/s",
            "gpusUsed": 3,
            "gpuBudget": 4,
            "bindingConstraint": "gpu budget",
            "groups": [
                {
                    "role": "decode",
                    "tensorParallel": 2,
                    "pipelineParallel": 2,
                    "replicas": 2,
                    "gpusPerReplica": 4,
                    "itlP95Milliseconds": 31,
                }
            ],
            "alternatives": [{"summary": "3 x aggregated TP1", "rejected": "3.9 samples/s"}],
            "computedAt": "2026-01-01T11:00:00Z",
        },
        roles=[{"name": "decode", "replicas": 2, "readyReplicas": 1, "updatedReplicas": 2, "revision": "r1"}],
        admission={
            "revision": 7,
            "policy": "MISA-T",
            "computedAt": "2026-01-01T11:59:58Z",
            "engines": [
                {
                    "name": "mixed-decode-tp2-0",
                    "capacityBlocks": 1000,
                    "protectedBlocks": 950,
                    "classes": [{"name": "rlvr", "cap": 40, "active": 12}],
                }
            ],
            "classes": [
                {
                    "name": "rlvr",
                    "cap": 40,
                    "active": 12,
                    "waiting": 3,
                    "held": 310,
                    "oldestWaitSeconds": 4,
                    "footprintBlocks": 14,
                    "residencySeconds": 6,
                    "blockSecondShare": 37,
                    "debt": -5,
                    "source": "Blend",
                }
            ],
        },
        mixture={
            "consumed": [{"name": "rlvr", "percent": 51.234}],
            "driftPercentagePoints": 1.26,
            "window": 480,
        },
        endpoints={
            "router": "http://mixed-router.default.svc:80",
            "admin": [
                {"name": "mixed-decode-tp2-0", "role": "decode", "url": "http://e0:8000", "ready": True},
                {"name": "mixed-decode-tp2-1", "role": "decode", "url": "http://e1:8000"},
            ],
        },
        summary={"decode": "1/2", "drift": "1.3pp"},
    )


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("Name:        mixed", id="name"),
        pytest.param("Mixture:     rlvr 50%, rlhf 30%, agentic 20%", id="target"),
        pytest.param("SLO:         TTFT p95 2000 ms, ITL p95 50 ms", id="slo"),
        pytest.param("URL:         http://mixed-router.default.svc:80", id="url"),
        pytest.param("  Ready      True    Ready    45s", id="ready"),
        pytest.param(
            "  PlanReady  True    Planned  45s  1 x prefill TP1, 2 x decode TP1", id="condition-with-message"
        ),
        pytest.param("  GPUs:        3 of 4", id="gpus"),
        pytest.param("  Limited by:  gpu budget", id="binding-constraint"),
        pytest.param("  decode TP2 PP2  2         8     -         31 ms    -", id="group"),
        pytest.param("  Not chosen: 3 x aggregated TP1: 3.9 samples/s", id="alternative"),
        pytest.param("  decode  1/2    2        r1", id="role"),
        pytest.param("  Drift:     1.3 pp over the last 480 samples (tolerated: 3 pp)", id="drift"),
        pytest.param(
            "  rlvr   50.0%   51.2%     40   12      0       3        4s      310   -5    14 blocks  6s"
            "         37%     Blend",
            id="class",
        ),
        pytest.param(
            "  mixed-decode-tp2-0  decode  Yes    950/1000  rlvr 12/40  http://e0:8000", id="engine"
        ),
        pytest.param(
            "  mixed-decode-tp2-1  decode  No     -         -           http://e1:8000", id="engine-down"
        ),
        pytest.param("  Warning  EngineExited  30s (x3)  it ended", id="event"),
    ],
)
def test_describe_shows(line: str) -> None:
    event = Event(
        type="Warning", reason="EngineExited", message="it ended", count=3, last_seen="2026-01-01T11:59:30Z"
    )
    lines = describe(running(), events=[event], now=NOW).splitlines()
    assert line in [found.rstrip() for found in lines], "\n".join(lines)


def test_describe_a_pool_that_nobody_looked_at_yet() -> None:
    body = pool_manifest("mixed")
    body["metadata"]["generation"] = 1
    text = describe(parse_pool(body), now=NOW)
    assert "Generation:  1 (status speaks of 0)" in text
    for title in ("Conditions", "Plan", "Roles", "Admission", "Classes", "Engines", "Events"):
        assert f"{title}:  <none>" in text


def test_ready_speaks_of_the_newest_spec() -> None:
    assert ready(running())
    newer = running().model_copy(update={"metadata": running().metadata.model_copy(update={"generation": 3})})
    assert not ready(newer)
    assert not ready(pool())


def test_what_a_pool_waits_for() -> None:
    starting = pool(conditions=[condition("Ready", "False", "Starting", "1 of 2 engines serve")])
    assert ready_message(starting) == "Starting: 1 of 2 engines serve"
    assert ready_message(pool()) == "Pending"


def test_columns_are_aligned_and_fields_without_value_left_out() -> None:
    assert columns(("A", "Bee"), [("long", "x")], underline=True) == ["A     Bee", "-     ---", "long  x"]
    assert fields([("Name", "x"), ("None", ""), ("Longer", "y")]) == ["Name:    x", "Longer:  y"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("60s", 60, id="seconds"),
        pytest.param("5m", 300, id="minutes"),
        pytest.param("1.5h", 5400, id="hours"),
        pytest.param("250ms", 0.25, id="milliseconds"),
        pytest.param("90", 90, id="no-unit"),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 days", "s"])
def test_what_is_no_duration_is_told_what_one_looks_like(text: str) -> None:
    with pytest.raises(ValueError, match="60s or 5m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "age"), [(-3, "0s"), (45.9, "45s"), (119, "119s"), (150, "2m"), (7300, "2h"), (200_000, "2d")]
)
def test_ages(seconds: float, age: str) -> None:
    assert format_age(seconds) == age
