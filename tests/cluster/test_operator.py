"""The operator's process against a real API server: children, restores, bad pools, quiet, restarts.

The operator runs on this machine. No pod needs to run, so a bare control plane will do.
"""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster
from rolloutpool_testkit.operators import CHILDREN, MANUAL, Operator, World, eventually, quiet

NAMESPACE = "operator-on-host"


@pytest.fixture(scope="module")
def world(control_plane: Cluster) -> Iterator[World]:
    # Room for any plan, also where there is no other node; no pod runs there.
    control_plane.add_node("giant", gpus=8192)
    found = World(control_plane, NAMESPACE)
    yield found
    found.close()
    control_plane.remove_node("giant")


@pytest.fixture(scope="module")
def operator(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    found = Operator(world.cluster.kubeconfig, tmp_path_factory.mktemp("operator"), NAMESPACE)
    yield found
    assert found.process.poll() is None, found.log
    assert found.stop() == 0, found.log
    assert "Traceback" not in found.log


@pytest.fixture(scope="module")
def pool(world: World, operator: Operator) -> str:
    """A pool whose children are there."""
    world.comes_up("steady")
    return "steady"


def test_children_belong_to_the_pool(world: World, pool: str) -> None:
    body = world.get("rolloutpools", pool)
    assert body is not None
    for child in world.children(pool).values():
        owner = child["metadata"]["ownerReferences"][0]
        assert (owner["uid"], owner["controller"]) == (body["metadata"]["uid"], True)
    assert "finalizers" not in body["metadata"]
    assert set(body["metadata"].get("annotations", {})) <= {
        "kubectl.kubernetes.io/last-applied-configuration"
    }


def test_status_says_what_was_planned(world: World, pool: str) -> None:
    eventually("a status", lambda: world.condition(pool, "PlanReady").get("status") == "True")
    status = world.status(pool)
    assert status["observedGeneration"] == 1
    assert status["plan"]["groups"][0]["replicas"] == 2
    assert status["endpoints"]["router"] == f"http://{pool}-router.{NAMESPACE}.svc:80"
    names = [engine["name"] for engine in status["endpoints"]["admin"]]
    assert names == [f"{pool}-aggregated-tp1-0", f"{pool}-aggregated-tp1-1"]
    assert world.condition(pool, "Ready")["status"] == "False"
    assert {"Planned", "Scaled"} <= world.events(pool)


@pytest.mark.parametrize(("kind", "name"), sorted(CHILDREN), ids=lambda value: value.replace("{}-", ""))
def test_a_deleted_child_comes_back(world: World, pool: str, kind: str, name: str) -> None:
    key = (kind, name.format(pool))
    before = world.children(pool)[key]["metadata"]["uid"]
    world.delete(kind, key[1])

    def back() -> bool:
        found = world.children(pool).get(key)
        return found is not None and found["metadata"]["uid"] != before

    eventually(f"{kind} {key[1]} comes back", back)


def test_an_edited_child_is_put_right(world: World, pool: str) -> None:
    name = f"{pool}-aggregated-tp1"
    world.cluster.kubectl("scale", "statefulset", name, "-n", NAMESPACE, "--replicas=5")
    eventually("2 replicas", lambda: world.children(pool)["StatefulSet", name]["spec"]["replicas"] == 2)
    world.cluster.kubectl("label", "service", f"{pool}-router", "-n", NAMESPACE, "rolloutpool.dev/pool-")
    eventually("the label", lambda: ("Service", f"{pool}-router") in world.children(pool))


def test_nothing_happens_where_nothing_changes(world: World, pool: str, operator: Operator) -> None:
    quiet(operator)
    writes, versions = operator.metric("status_writes_total"), world.versions(pool)
    time.sleep(3)
    assert operator.metric("status_writes_total") == writes
    assert world.versions(pool) == versions


@pytest.mark.parametrize("damage", [{"status": None}, {"status": {"endpoints": {"admin": []}}}])
def test_a_status_that_somebody_else_wrote_is_put_right(
    world: World, pool: str, operator: Operator, damage: dict[str, Any]
) -> None:
    """One reconcile does it (two after a conflict), and the operator's own write calls for no other."""
    before, good = quiet(operator), world.status(pool)
    world.cluster.kubectl(
        *("patch", "rolloutpool", pool, "-n", NAMESPACE, "--subresource=status", "--type=merge"),
        *("-p", json.dumps(damage)),
    )
    eventually("the endpoints are back", lambda: world.status(pool).get("endpoints") == good["endpoints"])
    assert world.status(pool)["plan"]["hash"] == good["plan"]["hash"]
    assert before < quiet(operator) <= before + 2


def test_bad_pools_say_so_and_others_go_on(world: World, operator: Operator) -> None:
    profile = {"profile": {"configMapRef": {"name": "none-such"}}}
    world.apply("no-profile", planning=profile)
    world.apply("too-small", gpus__budget=1, model__maxModelLen=16_000_000)
    world.comes_up("good")
    eventually(
        "no profile", lambda: world.condition("no-profile", "PlanReady").get("reason") == "ProfileMissing"
    )
    assert "ConfigMap none-such" in world.condition("no-profile", "PlanReady")["message"]
    eventually("infeasible", lambda: world.condition("too-small", "PlanReady").get("reason") == "Infeasible")
    assert "PlanInfeasible" in world.events("too-small")
    for name in ("no-profile", "too-small", "good"):
        world.delete("rolloutpool", name)
    eventually("garbage is collected", lambda: not world.children("good"))
    eventually("one pool is left", lambda: operator.metric("pools") <= 1)


def test_a_change_of_the_spec_is_carried_out(world: World, operator: Operator) -> None:
    world.comes_up("changing")
    three = {
        "mode": "Manual",
        "replicas": [{"role": "prefill", "replicas": 1}, {"role": "decode", "replicas": 2}],
    }
    world.apply("changing", planning=three)
    wanted = {"changing-prefill-tp1", "changing-decode-tp1"}
    eventually(
        "other sets",
        lambda: {name for kind, name in world.children("changing") if kind == "StatefulSet"} == wanted,
    )
    world.apply("changing", planning=three, paused=True, router__service={"port": 81})
    eventually("paused", lambda: world.condition("changing", "PlanApplied").get("reason") == "Paused")
    assert world.children("changing")["Service", "changing-router"]["spec"]["ports"][0]["port"] == 80
    world.apply("changing", planning=three, router__service={"port": 81})
    eventually(
        "the port",
        lambda: world.children("changing")["Service", "changing-router"]["spec"]["ports"][0]["port"] == 81,
    )
    world.delete("rolloutpool", "changing")


def test_what_belongs_to_others_is_left_alone(world: World, operator: Operator) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "taken-router", "namespace": NAMESPACE},
        "spec": {"ports": [{"port": 1}]},
    }
    world.cluster.kubectl("apply", "-f", "-", input=json.dumps(body))
    world.apply("taken", planning=MANUAL)
    applied = eventually("a refusal", lambda: world.condition("taken", "PlanApplied"))
    assert applied["reason"] == "ApplyFailed"
    assert "Service taken-router exists and does not belong to this pool" in applied["message"]
    world.delete("service", "taken-router")
    eventually(
        "its own", lambda: world.condition("taken", "PlanApplied").get("reason") not in (None, "ApplyFailed")
    )
    world.delete("rolloutpool", "taken")


def test_the_longest_name(world: World, operator: Operator) -> None:
    name = "p" * 31
    group = {"role": "aggregated", "replicas": 1, "tensorParallel": 64, "pipelineParallel": 64}
    world.apply(name, planning={"mode": "Manual", "replicas": [group]}, gpus__budget=4096)
    pods = eventually(
        "its pod",
        lambda: world.items("pods", "-l", f"rolloutpool.dev/pool={name},rolloutpool.dev/component=engine"),
    )
    assert pods[0]["metadata"]["name"] == f"{name}-aggregated-tp64-pp64-0"
    world.delete("rolloutpool", name)


def reconciled(operator: Operator) -> bool:
    return operator.metric("reconciles_total") >= 1


def test_killed_and_started_again(world: World, tmp_path: Path, pool: str, operator: Operator) -> None:
    """A second operator comes and is killed at once; a third finds nothing to write."""
    quiet(operator)
    versions, status = world.versions(pool), world.status(pool)
    for _ in range(2):
        other = Operator(world.cluster.kubeconfig, tmp_path, NAMESPACE, identity="other")
        eventually("it reconciled", partial(reconciled, other))
        other.kill()
    quiet(operator)
    assert world.versions(pool) == versions
    assert world.status(pool)["plan"] == status["plan"]
