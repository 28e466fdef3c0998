"""The CRD on a real API server: every rule refuses and says what to change; defaults and columns."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import Cluster
from rolloutpool_api import crdgen
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_testkit.manifests import Manifest, pool_manifest
from rolloutpool_testkit.operators import install_crd
from rolloutpool_testkit.refusals import REFUSED_ON_CREATE, REFUSED_ON_UPDATE, WORKLOAD

REFUSED_BY_SCHEMA = [
    pytest.param({"gpus__budget": 0}, "spec.gpus.budget", id="budget of zero"),
    pytest.param({"workloads": []}, "spec.workloads", id="no workloads"),
    pytest.param({"workloads": [{"name": "A_b", "share": 1}]}, "spec.workloads[0].name", id="class name"),
    pytest.param({"planning__mode": "Sometimes"}, '"Auto", "Aggregated"', id="mode lists the modes"),
    pytest.param({"router__replicas": 9}, "spec.router.replicas", id="more routers than supported"),
    pytest.param({"gpus__bugdet": 2}, 'unknown field "spec.gpus.bugdet"', id="misspelt field"),
    pytest.param({"workloads": [WORKLOAD, WORKLOAD]}, "Duplicate value", id="class twice"),
]


def apply(control_plane: Cluster, manifest: Manifest) -> str:
    return control_plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(manifest))


@pytest.fixture(scope="module", autouse=True)
def installed(control_plane: Cluster) -> Iterator[None]:
    """The CRD, and one pool that updates are tried on."""
    install_crd(control_plane)
    apply(control_plane, pool_manifest("immutable"))
    yield
    control_plane.kubectl("delete", "rolloutpool", "--all", "-n", "default")


def messages(schema: Any) -> Iterator[str]:
    """The message of every rule in a schema."""
    for key, value in schema.items():
        if key == "x-kubernetes-validations":
            yield from (rule["message"] for rule in value)
        elif isinstance(value, dict):
            yield from messages(value)


def test_every_rule_has_a_case() -> None:
    covered = {case.values[0] for case in (*REFUSED_ON_CREATE, *REFUSED_ON_UPDATE)}
    assert covered == set(messages(crdgen.crd()["spec"]["versions"][0]))


@pytest.mark.parametrize(("message", "manifest"), [*REFUSED_ON_CREATE, *REFUSED_ON_UPDATE])
def test_refused(control_plane: Cluster, message: str, manifest: Manifest) -> None:
    with pytest.raises(RuntimeError) as caught:
        apply(control_plane, manifest)
    assert message in str(caught.value)


@pytest.mark.parametrize(("changes", "text"), REFUSED_BY_SCHEMA)
def test_refused_by_schema(control_plane: Cluster, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        control_plane.kubectl(
            "create", "--validate=strict", "-f", "-", input=json.dumps(pool_manifest("bad", **changes))
        )
    assert text in str(caught.value)


def test_defaults_are_filled_in(control_plane: Cluster) -> None:
    stored = json.loads(control_plane.kubectl("get", "rp", "immutable", "-o", "json"))["spec"]
    expected = RolloutPoolSpec.model_validate(pool_manifest("immutable")["spec"])
    assert RolloutPoolSpec.model_validate(stored) == expected
    assert stored["admission"] == expected.admission.to_wire()


def test_status_is_a_subresource_and_columns_show_it(control_plane: Cluster) -> None:
    status = {
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "EnginesStarting",
                "message": "1 of 2",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
        "summary": {"prefill": "1/1", "decode": "1/2", "gpus": "3/4", "drift": "0.7pp"},
    }
    patch = json.dumps({"status": status})
    control_plane.kubectl("patch", "rp", "immutable", "--subresource=status", "--type=merge", "-p", patch)
    header, row = control_plane.kubectl("get", "rolloutpool", "immutable").splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "PREFILL", "DECODE", "GPUS", "DRIFT", "AGE"]
    assert row.split()[:7] == ["immutable", "False", "EnginesStarting", "1/1", "1/2", "3/4", "0.7pp"]
    assert "immutable" in control_plane.kubectl("get", "all")


def test_explain_names_units(control_plane: Cluster) -> None:
    assert "in milliseconds" in control_plane.kubectl("explain", "rolloutpool.spec.slo.ttftMilliseconds")


def test_the_fullest_status_fits(control_plane: Cluster) -> None:
    """256 engines and 16 classes are stored, and stay under 200 KB."""
    classes = [{"name": f"class-{i}", "cap": 1000, "active": 1000, "blocks": 100000} for i in range(16)]
    engine = {"capacityBlocks": 100000, "protectedBlocks": 95000, "pressure": 0, "classes": classes[:3]}
    engines = [{"name": f"pool-decode-tp8-{i}", **copy.deepcopy(engine)} for i in range(256)]
    status = {
        "admission": {
            "revision": 1,
            "policy": "MISA-T",
            "computedAt": "2026-01-01T00:00:00Z",
            "engines": engines,
        }
    }
    control_plane.kubectl(
        "patch",
        "rp",
        "immutable",
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps({"status": status}),
    )
    stored = control_plane.kubectl("get", "rp", "immutable", "-o", "json")
    assert len(json.loads(stored)["status"]["admission"]["engines"]) == 256
    assert len(json.dumps(json.loads(stored))) < 200_000
