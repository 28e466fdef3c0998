"""Mixture, throttling and what is degraded."""

from typing import Any

import pytest

from rolloutpool_api.conditions import Condition, ConditionStatus, ConditionType
from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import AdmissionStatus, EngineAdmission, MixtureStatus
from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_operator.core.mixture import Trouble, informational, mixture_status
from rolloutpool_router.core.control import merge_snapshots
from rolloutpool_testkit.manifests import pool_manifest

NOW = 1_800_000_000.0


def spec() -> RolloutPoolSpec:
    workloads = [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5}]
    return parse_pool(pool_manifest(workloads=workloads)).spec


def snapshot(a: int = 0, b: int = 0, applied: int = 0) -> AdmissionSnapshot:
    classes = [{"name": name, "active": 0, "waiting": 0, "consumed": n} for name, n in (("a", a), ("b", b))]
    return AdmissionSnapshot.model_validate(
        {"router": "r", "takenAt": NOW, "classes": classes, "appliedRevision": applied}
    )


def admission(
    waiting: int = 0, revision: int = 5, computed_at: str = "2027-01-15T07:59:00Z"
) -> AdmissionStatus:
    found = {"name": "a", "cap": 4, "active": 4, "waiting": waiting, "oldestWaitSeconds": 9}
    return AdmissionStatus.model_validate(
        {"revision": revision, "policy": "MISA-T", "computedAt": computed_at, "classes": [found]}
    )


def told(**changes: Any) -> dict[ConditionType, Condition]:
    options: dict[str, Any] = {
        "admission": None,
        "mixture": None,
        "trouble": Trouble(),
        "snapshots": (),
        "before": (),
        "generation": 2,
        "now": NOW,
    }
    return {item.type: item for item in informational(spec(), **options | changes)}


def test_mixture() -> None:
    found = mixture_status(spec(), merge_snapshots(["a", "b"], [snapshot(60, 20), snapshot(10, 10)]))
    assert [item.percent for item in found.target] == [50.0, 50.0]
    assert [item.percent for item in found.consumed] == [70.0, 30.0]
    assert (found.drift_percentage_points, found.window) == (20.0, 100)


@pytest.mark.parametrize(
    ("weights", "holds", "reason", "words"),
    [
        pytest.param({}, True, "SameWeights", "all engines have the same weights", id="no version is known"),
        pytest.param(
            {"version": "7"}, True, "SameWeights", "all engines have weights '7'", id="all the same"
        ),
        pytest.param({"pausedSeconds": 59}, True, "SameWeights", "all engines", id="a short pause"),
        pytest.param(
            {"pausedSeconds": 61}, True, "LongPause", "paused the pool for over 60 s", id="a long one"
        ),
        pytest.param(
            {"version": "7", "staleEngines": ["e-1"]},
            False,
            "StaleWeights",
            "1 engine without the pool's weights (e-1)",
            id="one lags behind",
        ),
    ],
)
def test_weights(weights: dict[str, Any], holds: bool, reason: str, words: str) -> None:
    body = {"router": "r", "takenAt": NOW, "weights": weights}
    item = told(snapshots=(AdmissionSnapshot.model_validate(body),))[ConditionType.WEIGHTS_CONSISTENT]
    assert ((item.status is ConditionStatus.TRUE), item.reason) == (holds, reason)
    assert words in item.message


def test_without_weight_sync_nothing_is_said_of_weights() -> None:
    assert ConditionType.WEIGHTS_CONSISTENT not in told(snapshots=(snapshot(),))


def test_nothing_consumed_is_no_drift() -> None:
    found = mixture_status(spec(), merge_snapshots(["a", "b"], [snapshot()]))
    assert (found.drift_percentage_points, found.window) == (0.0, 0)


@pytest.mark.parametrize(
    ("drift", "window", "before", "holds"),
    [
        pytest.param(3.1, 500, False, True, id="beyond"),
        pytest.param(3.0, 500, False, False, id="at the tolerance"),
        pytest.param(40.0, 99, False, False, id="too few samples"),
        pytest.param(2.5, 500, True, True, id="not yet back"),
        pytest.param(2.4, 500, True, False, id="back"),
    ],
)
def test_drifting(drift: float, window: int, before: bool, holds: bool) -> None:
    status = ConditionStatus.TRUE if before else ConditionStatus.FALSE
    old = Condition(type=ConditionType.MIXTURE_DRIFTING, status=status, reason="X")
    mixture = MixtureStatus(drift_percentage_points=drift, window=window)
    item = told(mixture=mixture, before=(old,))[ConditionType.MIXTURE_DRIFTING]
    assert (item.status is ConditionStatus.TRUE) is holds
    assert f"drift {drift:.1f} percentage points over {window} samples, tolerance 3" in item.message


def test_throttled() -> None:
    item = told(admission=admission(waiting=7))[ConditionType.ADMISSION_THROTTLED]
    assert (item.status, item.reason) == (ConditionStatus.TRUE, "CapsReached")
    assert item.message == "a: 7 wait (longest 9 s), 4 of 4 resident"
    assert told(admission=admission())[ConditionType.ADMISSION_THROTTLED].status is ConditionStatus.FALSE


def test_throttled_by_pressure() -> None:
    pressed = EngineAdmission(name="e1", capacity_blocks=100, protected_blocks=81, pressure=19)
    status = admission(waiting=7).model_copy(update={"engines": [pressed]})

    item = told(admission=status)[ConditionType.ADMISSION_THROTTLED]

    assert item.message.endswith("; KV pressure on 1 of 1 engines, at most 19 % (e1)")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({}, "Healthy", id="healthy"),
        pytest.param({"trouble": Trouble(routers=("r1",))}, "RouterUnreachable", id="router"),
        pytest.param(
            {"trouble": Trouble(engines=("e1", "e2", "e3", "e4"))}, "EngineMetricsStale", id="engines"
        ),
        pytest.param(
            {"admission": admission(), "snapshots": (snapshot(applied=4),)}, "StaleCaps", id="stale caps"
        ),
        pytest.param(
            {"admission": admission(), "snapshots": (snapshot(applied=5),)}, "Healthy", id="caps in force"
        ),
        pytest.param(
            {"admission": admission(computed_at="2027-01-15T07:59:50Z"), "snapshots": (snapshot(applied=4),)},
            "Healthy",
            id="caps too fresh to be late",
        ),
    ],
)
def test_degraded(changes: dict[str, Any], reason: str) -> None:
    assert told(**changes)[ConditionType.DEGRADED].reason == reason


def test_many_names_are_cut() -> None:
    item = told(trouble=Trouble(engines=("e1", "e2", "e3", "e4")))[ConditionType.DEGRADED]
    assert "e1, e2, e3 and 1 more" in item.message


def test_a_doubt_says_nothing() -> None:
    assert ConditionType.DEGRADED not in told(trouble=Trouble(doubtful=True))
