"""What EndpointSlices say of engines' pods, however odd they are."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutpool_router.core.endpoints import Pod, pods_of

UP = Pod(serving=True, terminating=False)


def endpoint(name: str = "e0", **conditions: Any) -> dict[str, Any]:
    """An entry of a slice, as the controller of a headless Service writes it."""
    target = {"kind": "Pod", "name": name, "namespace": "rl"}
    return {"addresses": ["10.0.0.1"], "hostname": name, "conditions": conditions, "targetRef": target}


def piece(*endpoints: Any) -> dict[str, Any]:
    return {"metadata": {"name": "slice"}, "endpoints": list(endpoints)}


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param([], {}, id="none"),
        pytest.param([piece(endpoint(ready=True, serving=True, terminating=False))], {"e0": UP}, id="up"),
        pytest.param(
            [piece(endpoint(ready=True, serving=False, terminating=False))],
            {"e0": Pod(serving=False, terminating=False)},
            id="a headless Service calls all ready: what counts is serving",
        ),
        pytest.param(
            [piece(endpoint(ready=False))], {"e0": Pod(serving=False, terminating=False)}, id="old-api"
        ),
        pytest.param(
            [piece(endpoint(ready=False, serving=True, terminating=True))],
            {"e0": Pod(serving=True, terminating=True)},
            id="going",
        ),
        pytest.param([piece({"addresses": ["::1"], "hostname": "e0"})], {"e0": UP}, id="nothing-told"),
        pytest.param(
            [piece(endpoint(serving=False)), piece(endpoint(serving=True))], {"e0": UP}, id="two-families"
        ),
        pytest.param(
            [piece(endpoint(serving=True, terminating=True), endpoint(serving=False, terminating=False))],
            {"e0": Pod(serving=False, terminating=False)},
            id="a successor counts, not the old pod",
        ),
        pytest.param(
            [piece(endpoint(serving=False, terminating=False), endpoint(serving=True, terminating=True))],
            {"e0": Pod(serving=False, terminating=False)},
            id="whatever the order",
        ),
        pytest.param(
            [piece(endpoint("e0"), endpoint("e1")), piece(endpoint("e2"))],
            {"e0": UP, "e1": UP, "e2": UP},
            id="several",
        ),
        pytest.param(
            [{}, {"endpoints": None}, {"endpoints": 3}, piece(7, {}, {"targetRef": {"name": 1}})],
            {},
            id="garbage",
        ),
        pytest.param(
            [piece({"targetRef": {"name": "e0"}, "conditions": [1]})], {"e0": UP}, id="garbled-conditions"
        ),
    ],
)
def test_pods(slices: list[Any], expected: dict[str, Pod]) -> None:
    assert pods_of(slices) == expected
