"""Several routers in the cluster: they are listed, share the caps, and go on when one of them is killed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from cluster import Cluster
from demo import steps
from rolloutpool_testkit.operators import World, eventually

NAMESPACE = "several-routers"
WAIT_SECONDS = 90.0
MODEL = "emulated-8b"
POOL = "shared"


class Routers(World):
    """A namespace with one pool of an emulated engine and several routers."""

    def apply_pool(self, replicas: int) -> None:
        engine = {
            "image": self.cluster.image("emulator"),
            "imagePullPolicy": "Never",
            "shmSize": "16Mi",
            "terminationGraceSeconds": 6,
            "probes": {"readinessPeriodSeconds": 1},
            "env": [{"name": "EMULATOR_TIME_SCALE", "value": "20"}],
        }
        planning = {"mode": "Manual", "replicas": [{"role": "aggregated", "replicas": 1}]}
        self.apply(POOL, planning=planning, engine=engine, model__name=MODEL, router={"replicas": replicas})

    def pods(self) -> set[str]:
        found = self.items("pods", "-l", "rolloutpool.dev/component=router")
        return {pod["metadata"]["name"] for pod in found if not pod["metadata"].get("deletionTimestamp")}

    def listed(self) -> set[str]:
        routers = (self.status(POOL).get("admission") or {}).get("routers", [])
        return {router["name"] for router in routers}

    def settled(self, replicas: int) -> bool:
        """Whether so many routers are listed, and all that there is is given to them."""
        admission: dict[str, Any] = self.status(POOL).get("admission") or {}
        if len(admission.get("routers", [])) != replicas or self.listed() != self.pods():
            return False
        engine = admission["engines"][0]
        rows = [[int(number) for number in line.split()] for line in engine["grants"]]
        caps = [item["cap"] for item in engine["classes"]]
        return [sum(parts) for parts in zip(*rows, strict=True)] == [engine["protectedBlocks"], *caps]


@pytest.fixture(scope="module")
def world(cluster: Cluster) -> Iterator[Routers]:
    cluster.load_images()
    found = Routers(cluster, NAMESPACE)
    steps.install_chart(cluster, f"watchNamespaces={{{NAMESPACE}}}", "crds.install=false")
    found.apply_pool(3)
    eventually("three routers share the caps", lambda: found.settled(3), WAIT_SECONDS)
    yield found
    found.close()
    cluster.helm("uninstall", "rolloutpool", "--namespace", steps.SYSTEM, "--wait")


def turn(url: str, session: str, turns: int) -> str:
    """One turn of a session; the router that served it."""
    messages = [{"role": "user", "content": session}]
    for _ in range(turns):
        messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, "ignore_eos": True}
    headers = {"X-Session-ID": session, "X-Rollout-Class": "agentic"}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.headers["X-RolloutPool-Router"]


def test_several_routers_may_not_be_evicted_together(world: Routers) -> None:
    assert ("PodDisruptionBudget", f"{POOL}-router") in world.children(POOL)


def test_sessions_go_on_when_a_router_is_killed(world: Routers) -> None:
    sessions = [f"session-{number}" for number in range(40)]
    with (
        world.cluster.forward(NAMESPACE, f"{POOL}-router", 80) as url,
        ThreadPoolExecutor(8) as threads,
    ):
        first = dict(zip(sessions, threads.map(lambda name: turn(url, name, 0), sessions), strict=True))
        again = dict(zip(sessions, threads.map(lambda name: turn(url, name, 1), sessions), strict=True))
    assert first == again
    assert set(first.values()) == world.pods()

    victim = sorted(world.pods())[0]
    world.cluster.kubectl(
        "delete", "pod", victim, "-n", NAMESPACE, "--grace-period=0", "--force", "--wait=false"
    )
    with world.cluster.forward(NAMESPACE, f"{POOL}-router", 80) as url, ThreadPoolExecutor(8) as threads:
        after = dict(zip(sessions, threads.map(lambda name: turn(url, name, 2), sessions), strict=True))
    assert victim not in after.values()
    eventually("another router takes its place", lambda: world.settled(3), WAIT_SECONDS)
    assert victim not in world.listed()


def test_one_router_is_as_it_was(world: Routers) -> None:
    world.apply_pool(1)

    def alone() -> bool:
        admission = world.status(POOL)["admission"]
        return len(admission["routers"]) == 1 and not admission["engines"][0]["grants"]

    eventually("one router has everything", alone, WAIT_SECONDS)
    assert ("PodDisruptionBudget", f"{POOL}-router") not in world.children(POOL)
    with world.cluster.forward(NAMESPACE, f"{POOL}-router", 80) as url:
        assert turn(url, "another", 0) in world.pods()
