"""The operator in the cluster with real pods: caps, restarts, broken images, P/D, who reaches whom.

It is installed by the chart for one namespace, so it has rights there alone; the namespace enforces the
restricted pod security standard.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from cluster import Cluster, ClusterError
from demo import steps
from rolloutpool_testkit.operators import World, eventually

NAMESPACE = "operator-pods"
WAIT_SECONDS = 90.0
MODEL = "emulated-8b"
AGGREGATED = {"mode": "Manual", "replicas": [{"role": "aggregated", "replicas": 2}]}
DISAGGREGATED = {
    "mode": "Manual",
    "replicas": [{"role": "prefill", "replicas": 1}, {"role": "decode", "replicas": 1}],
}


class Pods(World):
    """A namespace with pools whose engines are emulators."""

    def engines(self, **more: Any) -> dict[str, Any]:
        """Spec of engines that are up in seconds."""
        fast = {"readinessPeriodSeconds": 1}
        scale = {"name": "EMULATOR_TIME_SCALE", "value": "20"}
        image = {"image": self.cluster.image("emulator"), "imagePullPolicy": "Never"}
        return (
            image | {"shmSize": "16Mi", "terminationGraceSeconds": 6, "probes": fast, "env": [scale]} | more
        )

    def apply_pool(self, name: str, planning: dict[str, Any], **engine: Any) -> None:
        """Apply a pool of emulators."""
        self.apply(name, planning=planning, engine=self.engines(**engine), model__name=MODEL)

    def ready(self, name: str) -> None:
        """Wait until a pool is Ready for its present spec."""

        def ready() -> bool:
            body = self.get("rolloutpools", name)
            found = self.condition(name, "Ready")
            assert body is not None
            return (
                found.get("status") == "True"
                and found["observedGeneration"] == body["metadata"]["generation"]
            )

        eventually(f"{name} is Ready", ready, WAIT_SECONDS)

    def admission(self, name: str) -> dict[str, Any]:
        """Admission of a pool's status; empty while there is none."""
        return dict(self.status(name).get("admission") or {})


@pytest.fixture(scope="module")
def world(cluster: Cluster) -> Iterator[Pods]:
    cluster.load_images()
    found = Pods(cluster, NAMESPACE)
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", NAMESPACE, label)
    steps.install_chart(cluster, f"watchNamespaces={{{NAMESPACE}}}", "crds.install=false")
    yield found
    found.close()
    cluster.helm("uninstall", "rolloutpool", "--namespace", steps.SYSTEM, "--wait")


@pytest.fixture(scope="module")
def pool(world: Pods) -> str:
    world.apply_pool("mixed", AGGREGATED)
    world.ready("mixed")
    return "mixed"


@pytest.fixture
def url(world: Pods, pool: str) -> Iterator[str]:
    with world.cluster.forward(NAMESPACE, f"{pool}-router", 80) as base:
        yield base


def complete(url: str, rollout_class: str, tokens: int = 16) -> httpx.Response:
    """One session of one request."""
    body = {"model": MODEL, "prompt": f"{rollout_class} says", "max_tokens": tokens, "ignore_eos": True}
    headers = {"X-Rollout-Class": rollout_class}
    return httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60, trust_env=False)


def test_caps_reach_the_router(world: Pods, pool: str, url: str) -> None:
    expected = [f"{pool}-aggregated-tp1-{number}" for number in range(2)]

    def for_both() -> bool:
        return [engine["name"] for engine in world.admission(pool).get("engines", [])] == expected

    eventually("caps of both engines", for_both, WAIT_SECONDS)
    admission = world.admission(pool)
    assert all(engine["capacityBlocks"] > 0 for engine in admission["engines"])
    assert all(item["cap"] >= 1 for engine in admission["engines"] for item in engine["classes"])

    def applied() -> bool:
        snapshot = httpx.get(f"{url}/admission/snapshot", trust_env=False).json()
        return bool(snapshot["appliedRevision"] == world.admission(pool)["revision"])

    eventually("the router enforces them", applied)
    assert "CapsChanged" in world.events(pool)


def test_what_was_consumed_is_told(world: Pods, pool: str, url: str) -> None:
    classes = ["rlvr"] * 20 + ["rlhf"] * 12 + ["agentic"] * 8
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda name: complete(url, name), classes))
    assert {answer.status_code for answer in answers} == {200}
    eventually("a mixture", lambda: world.status(pool)["mixture"]["window"] >= 32, WAIT_SECONDS)
    assert world.status(pool)["summary"]["drift"] != "-"


def test_a_killed_operator_changes_nothing(world: Pods, pool: str, url: str) -> None:
    before = world.admission(pool)
    selector = "app.kubernetes.io/component=operator"
    world.cluster.kubectl(
        "delete", "pod", "-n", steps.SYSTEM, "-l", selector, "--grace-period=0", "--force", "--wait=false"
    )
    assert complete(url, "rlvr").status_code == 200, "the router goes on without it"
    deployment = "deployment/rolloutpool"
    world.cluster.kubectl("rollout", "status", deployment, "-n", steps.SYSTEM, "--timeout=60s", timeout=70)
    world.cluster.kubectl("annotate", "rolloutpool", pool, "-n", NAMESPACE, "touched=yes")
    after = world.admission(pool)
    caps = [[engine["classes"][0]["cap"] for engine in status["engines"]] for status in (before, after)]
    assert after["revision"] >= before["revision"]
    assert caps[0] == caps[1]
    world.ready(pool)


def test_a_broken_image_is_told_and_overtaken_by_the_next_spec(world: Pods, pool: str) -> None:
    world.apply_pool(pool, AGGREGATED, image="localhost/none-such:dev")

    def told() -> bool:
        return world.condition(pool, "DecodeReady").get("reason") == "ErrImageNeverPull"

    eventually("the reason", told, WAIT_SECONDS)
    assert "ErrImageNeverPull" in world.events(pool)
    world.apply_pool(pool, AGGREGATED)
    world.ready(pool)


def test_prefill_and_decode(world: Pods) -> None:
    world.apply_pool("split", DISAGGREGATED)
    world.ready("split")
    assert world.condition("split", "PrefillReady")["status"] == "True"
    revisions = {engine["revision"] for engine in world.status("split")["endpoints"]["admin"]}
    assert len(revisions) == 1
    eventually("caps", lambda: world.admission("split"), WAIT_SECONDS)
    assert [engine["name"] for engine in world.admission("split")["engines"]] == ["split-decode-tp1-0"]
    with world.cluster.forward(NAMESPACE, "split-router", 80) as base:
        answer = complete(base, "rlvr")
    assert answer.status_code == 200, answer.text
    world.delete("rolloutpool", "split")


CLIENT = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "terminationGracePeriodSeconds": 0,
}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture(scope="module")
def client(world: Pods) -> Iterator[str]:
    """A pod of the pool's namespace that belongs to no pool."""
    container = {
        "name": "client",
        "image": world.cluster.image("python"),
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "securityContext": CONTAINER_SECURITY,
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client", "namespace": NAMESPACE},
        "spec": CLIENT | {"containers": [container]},
    }
    world.cluster.kubectl("apply", "-f", "-", input=json.dumps(body))
    world.cluster.kubectl("wait", "--for=condition=Ready", "pod/client", "-n", NAMESPACE, "--timeout=60s")
    yield "client"
    world.delete("pod", "client")


def reaches(world: Pods, client: str, url: str) -> bool:
    code = f"import urllib.request; urllib.request.urlopen({url!r}, timeout=3)"
    try:
        world.cluster.kubectl("exec", client, "-n", NAMESPACE, "--", "python3", "-c", code)
    except ClusterError:
        return False
    return True


def test_engines_answer_their_router_and_no_stranger(world: Pods, pool: str, client: str) -> None:
    if not world.cluster.enforces_network_policy:
        pytest.skip("this cluster enforces no NetworkPolicy")
    engine = world.status(pool)["endpoints"]["admin"][0]["url"]
    assert reaches(world, client, f"http://{pool}-router/health")
    assert not reaches(world, client, f"{engine}/health")
