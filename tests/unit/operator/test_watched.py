"""Which events call for a reconcile."""

import copy
from typing import Any

import pytest

from rolloutpool_operator.core.observed import PoolKey
from rolloutpool_operator.core.watched import Changes, owner


def pool(**status: Any) -> dict[str, Any]:
    meta = {"name": "pool", "namespace": "rl", "uid": "u", "generation": 1, "resourceVersion": "1"}
    return {"metadata": meta, "spec": {}, "status": status}


def changed(body: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    found = copy.deepcopy(body)
    target = found
    for part in path[:-1]:
        target = target.setdefault(part, {})
    target[path[-1]] = value
    return found


POD = {
    "metadata": {"name": "p", "namespace": "rl", "uid": "u", "labels": {"rolloutpool.dev/pool": "pool"}},
    "spec": {"nodeName": "n"},
    "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
}
SET = {"metadata": POD["metadata"], "status": {"readyReplicas": 1}}
NODE = {"metadata": {"name": "n", "uid": "u"}, "spec": {}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
SERVICE = {"metadata": {"name": "s", "uid": "u", "resourceVersion": "1"}}


@pytest.mark.parametrize(
    ("kind", "body", "path", "value", "expected"),
    [
        pytest.param("RolloutPool", pool(), ["status", "phase"], "Ready", False, id="own status"),
        pytest.param("RolloutPool", pool(), ["metadata", "resourceVersion"], "2", False, id="pool version"),
        pytest.param(
            "RolloutPool", pool(), ["metadata", "annotations"], {"a": "b"}, False, id="pool annotation"
        ),
        pytest.param("RolloutPool", pool(), ["metadata", "generation"], 2, True, id="spec"),
        pytest.param("RolloutPool", pool(), ["metadata", "deletionTimestamp"], "t", True, id="deletion"),
        pytest.param("Pod", POD, ["status", "conditions"], [], True, id="readiness"),
        pytest.param("Pod", POD, ["status", "podIP"], "10.0.0.2", True, id="address"),
        pytest.param("Pod", POD, ["status", "startTime"], "t", False, id="pod detail"),
        pytest.param("Pod", POD, ["metadata", "resourceVersion"], "2", False, id="pod version"),
        pytest.param("StatefulSet", SET, ["status", "readyReplicas"], 2, True, id="replicas"),
        pytest.param("StatefulSet", SET, ["status", "observedGeneration"], 2, False, id="set detail"),
        pytest.param("StatefulSet", SET, ["metadata", "generation"], 2, True, id="set edited"),
        pytest.param("Node", NODE, ["status", "allocatable"], {"nvidia.com/gpu": "4"}, True, id="GPUs"),
        pytest.param("Node", NODE, ["spec", "unschedulable"], True, True, id="cordon"),
        pytest.param("Node", NODE, ["status", "images"], [], False, id="node detail"),
        pytest.param("Service", SERVICE, ["metadata", "resourceVersion"], "2", True, id="service"),
    ],
)
def test_matters(kind: str, body: dict[str, Any], path: list[str], value: Any, expected: bool) -> None:
    changes = Changes()
    assert changes.matters(kind, body, gone=False)
    assert not changes.matters(kind, body, gone=False)
    assert changes.matters(kind, changed(body, path, value), gone=False) is expected


def test_a_deletion_always_matters_and_is_forgotten() -> None:
    changes = Changes()
    changes.matters("Pod", POD, gone=False)
    assert changes.matters("Pod", POD, gone=True)
    assert len(changes) == 0


def test_bounded() -> None:
    changes = Changes(limit=3)
    for number in range(10):
        changes.matters("Service", changed(SERVICE, ["metadata", "uid"], str(number)), gone=False)
    assert len(changes) == 3


def test_owner() -> None:
    assert owner("RolloutPool", pool()) == PoolKey("rl", "pool")
    assert owner("Pod", POD) == PoolKey("rl", "pool")
    assert owner("Service", SERVICE) is None
    assert owner("Node", changed(NODE, ["metadata", "labels"], {"rolloutpool.dev/pool": "x"})) is None
