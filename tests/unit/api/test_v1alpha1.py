"""Reading a RolloutPool: defaults, and errors that name the field and the number."""

from typing import Any

import pytest

from rolloutpool_api.v1alpha1 import InvalidPool, RolloutPool, parse_pool
from rolloutpool_testkit.manifests import pool_manifest


def test_defaults() -> None:
    spec = parse_pool(pool_manifest()).spec
    assert (spec.admission.policy, spec.admission.safety, spec.planning.mode) == ("MISA-T", 0.95, "Auto")
    assert spec.mixture.tolerance_percentage_points == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"gpus__budget": 0}, "spec.gpus.budget", id="no budget"),
        pytest.param({"gpus__bugdet": 4}, "spec.gpus.bugdet", id="misspelt field"),
        pytest.param(
            {"planning__mode": "Sometimes"}, "'Auto', 'Aggregated'", id="unknown mode lists the modes"
        ),
        pytest.param({"model": None}, "spec.model: Field required", id="no model"),
    ],
)
def test_invalid(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidPool, match=message.replace("(", r"\(")):
        parse_pool(pool_manifest(**changes))


@pytest.mark.parametrize(
    ("workload", "seconds"),
    [
        pytest.param({}, 0.0, id="one turn ends with its answer"),
        pytest.param({"priors": {"turns": 5}}, 120.0, id="several turns wait at least two minutes"),
        pytest.param({"priors": {"turns": 5, "toolGapSeconds": 30}}, 600.0, id="long tool gaps wait longer"),
        pytest.param({"priors": {"turns": 5}, "sessionIdleSeconds": 7}, 7.0, id="given"),
    ],
)
def test_idle_seconds(workload: dict[str, Any], seconds: float) -> None:
    pool = parse_pool(pool_manifest(workloads=[{"name": "a", "share": 1, **workload}]))
    assert pool.spec.workloads[0].idle_seconds() == seconds


def test_a_newer_operators_status_is_read() -> None:
    pool = parse_pool({**pool_manifest(), "status": {"phase": "Ready", "fieldOfTomorrow": 1}})
    assert pool.status.phase == "Ready"


def test_wire_form_reads_back() -> None:
    pool = parse_pool(pool_manifest(gpus__product="H100", slo={"ttftMilliseconds": 500}))
    assert RolloutPool.model_validate(pool.to_wire()) == pool
