"""Mixture, throttling and what is degraded."""

from typing import Any

import pytest

from rolloutpool_api.conditions import Condition, ConditionStatus, ConditionType
from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import AdmissionStatus, EngineAdmission, MixtureStatus
from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_operator.core.mixture import Trouble, informational, mixture_status
from rolloutpool_operator.core.throttling import throttled
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
            {"version": "7", "staleEngines": ["e-1"], "staleBecause": "has weights '6', the pool has '7'"},
            False,
            "StaleWeights",
            "1 engine without the pool's weights (e-1; e-1 has weights '6', the pool has '7'): no request",
            id="one lags behind",
        ),
        pytest.param(
            {
                "staleEngines": ["e-0", "e-1"],
                "staleBecause": "failed at /update_weights: status 500: boom",
                "unservedSince": NOW - 90,
                "pausedSeconds": 100,
            },
            False,
            "NoEngineHasCurrentWeights",
            "has the pool's weights since 2027-01-15T07:58:30Z (2 engines without them: e-0, e-1;"
            " e-0 failed at /update_weights: status 500: boom); requests wait in the router until"
            " the trainer has sent a whole weight update again: /start_weight_update, /update_weights,"
            " /finish_weight_update, and /resume",
            id="none has them",
        ),
        pytest.param(
            {"staleEngines": ["e-1"], "staleBecause": "x" * 500},
            False,
            "StaleWeights",
            "e-1 " + "x" * 119 + "…): no request goes there",
            id="an engine that says much",
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


def mixture_spec(enforcement: str = "Hard") -> RolloutPoolSpec:
    workloads = [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5}]
    mixture = {"enforcement": enforcement, "tolerancePercentagePoints": 4, "windowSamples": 500}
    return parse_pool(pool_manifest(workloads=workloads, mixture=mixture)).spec


def by_class(*rows: tuple[int, int, int]) -> AdmissionStatus:
    """Classes a, b, ... with so many waiting, debt, and samples for which they are held."""
    classes = [
        {"name": "ab"[i], "cap": 9, "active": 4, "waiting": waiting, "oldestWaitSeconds": 3}
        | {"debt": debt, "ahead": ahead}
        for i, (waiting, debt, ahead) in enumerate(rows)
    ]
    engines = [{"name": "e0", "capacityBlocks": 9, "protectedBlocks": 9}]
    return AdmissionStatus.model_validate(
        {"revision": 1, "policy": "MISA-T", "computedAt": "", "classes": classes, "engines": engines}
    )


def router(*, held: int = 0, paused: float = 0.0, healthy: bool = True) -> AdmissionSnapshot:
    return AdmissionSnapshot.model_validate(
        {
            "router": "r",
            "takenAt": NOW,
            "classes": [{"name": "a", "active": 0, "waiting": 0, "held": held}],
            "engines": [{"name": "e0", "healthy": healthy}],
            "weights": {"pausedSeconds": paused},
        }
    )


@pytest.mark.parametrize(
    ("classes", "snapshots", "reason", "words"),
    [
        pytest.param(
            by_class((5, -21, 21), (0, 21, 0)),
            (router(),),
            "HeldForMixture",
            "a: 5 wait (longest 3 s), 4 of 9 resident, held for the mixture: 21 samples (4.2 points) ahead of"
            " its share, 10 samples (2.0 points) allowed; behind: b by 21 samples (4.2 points)",
            id="a class that is ahead",
        ),
        pytest.param(
            by_class((5, -21, 21), (7, 21, 0)),
            (router(),),
            "HeldForMixture",
            "; b: 7 wait (longest 3 s), 4 of 9 resident; behind",
            id="one is ahead and another finds no room",
        ),
        pytest.param(
            by_class((5, -9, 0)), (router(),), "CapsReached", "a: 5 wait (longest 3 s)", id="ahead, not held"
        ),
        pytest.param(
            by_class((0, 0, 0)),
            (router(held=300, paused=30),),
            "HeldByPause",
            "the pool is paused for new weights: requests held: a 300",
            id="a pause",
        ),
        pytest.param(
            by_class((0, 0, 0)), (router(held=300, paused=3),), "NotThrottled", "", id="a short pause"
        ),
        pytest.param(
            by_class((2, 0, 0)),
            (router(held=3, healthy=False), router(held=1, healthy=False)),
            "NoEngineUp",
            "no engine may be sent requests: requests held: a 4; a: 2 wait",
            id="no engine",
        ),
        pytest.param(
            by_class((2, 0, 0)),
            (router(healthy=False),),
            "NoEngineUp",
            "no engine may be sent requests; a: 2 wait",
            id="no engine, and nobody was in",
        ),
        pytest.param(
            by_class((2, 0, 0)),
            (router(healthy=False), router()),
            "CapsReached",
            "a: 2 wait",
            id="one router reaches the engine",
        ),
    ],
)
def test_what_those_who_wait_wait_for(
    classes: AdmissionStatus, snapshots: tuple[AdmissionSnapshot, ...], reason: str, words: str
) -> None:
    found = throttled(mixture_spec(), classes, snapshots, 2)
    assert found.reason == reason
    assert words in found.message


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
