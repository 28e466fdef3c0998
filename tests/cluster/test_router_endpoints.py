"""The router's watch of EndpointSlices at a real API server, with the rights that the operator gives it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig

from cluster import Cluster
from rolloutpool_api import labels
from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_operator.core.desired import build_children
from rolloutpool_operator.core.manifests.context import Install, context_of
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.view import Ignored, accept
from rolloutpool_router.testing import pool_object, until
from rolloutpool_router.watch_endpoints import watch_endpoints
from rolloutpool_testkit.operators import World

NAMESPACE = "router-endpoints"
NODE = "engines-without-kubelet"
POOL = "pool"
WAIT_SECONDS = 30.0
HELD = "rolloutpool.dev/test"
"""Finalizer of the pods, so that they are seen to go: no kubelet takes its time here."""


class Pods(World):
    """A namespace with what the operator makes for a pool, and pods that are ready as told."""

    def add_engine(self, name: str) -> None:
        """A pod as the engines' StatefulSet makes it; not ready."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": labels.child_labels(POOL, labels.ENGINE),
                "finalizers": [HELD],
            },
            "spec": {
                "nodeName": NODE,
                "hostname": name,
                "subdomain": labels.engine_service_name(POOL),
                "containers": [
                    {
                        "name": "engine",
                        "image": "registry.invalid/engine",
                        "ports": [{"name": "http", "containerPort": labels.ENGINE_PORT}],
                    }
                ],
            },
        }
        self.cluster.apply(json.dumps(pod))
        self.patch(
            name, {"status": {"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}}
        )

    def patch(self, name: str, body: dict[str, Any], subresource: str = "status") -> None:
        """Change a pod."""
        self.cluster.kubectl(
            *("patch", "pod", name, "-n", self.namespace, "--type=merge", "-p", json.dumps(body)),
            *((f"--subresource={subresource}",) if subresource else ()),
        )

    def ready(self, name: str) -> None:
        """Its readiness probe succeeds."""
        self.patch(name, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})

    def release(self, name: str) -> None:
        """Let a deleted pod go."""
        self.patch(name, {"metadata": {"finalizers": None}}, subresource="")

    def kubeconfig(self, folder: Path, account: str) -> Path:
        """Credentials of a ServiceAccount."""
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        token = self.cluster.kubectl("create", "token", account, "-n", self.namespace).strip()
        config["users"] = [{"name": "router", "user": {"token": token}}]
        config["contexts"][0]["context"]["user"] = "router"
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path


@pytest.fixture(scope="module")
def world(control_plane: Cluster) -> Iterator[Pods]:
    control_plane.add_node(NODE)
    found = Pods(control_plane, NAMESPACE)
    found.apply(POOL)
    pool = found.get("rolloutpools", POOL)
    assert pool is not None
    for child in build_children(context_of(parse_pool(pool), Install()), ()):
        if child.kind in ("Service", "ServiceAccount", "Role", "RoleBinding"):
            control_plane.apply(json.dumps(child.body))
    yield found
    found.close()
    control_plane.remove_node(NODE)


@asynccontextmanager
async def watching(kubeconfig: Path, *engines: str) -> AsyncIterator[Fleet]:
    """A fleet that learns of its engines' pods with these credentials."""
    fleet = Fleet()
    view = accept(None, parse_pool(pool_object({name: f"http://{name}" for name in engines})))
    assert not isinstance(view, Ignored)
    fleet.apply(view)

    def connect() -> AsyncClient:
        return AsyncClient(KubeConfig.from_file(kubeconfig).get(), trust_env=False)

    task = asyncio.create_task(watch_endpoints(POOL, NAMESPACE, fleet, connect=connect))
    try:
        yield fleet
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def up(fleet: Fleet) -> set[str]:
    return {engine.name for engine in fleet.homes(0.0)}


async def test_an_engine_whose_pod_is_deleted_drains_and_its_successor_serves(
    world: Pods, tmp_path: Path
) -> None:
    for name in ("e0", "e1"):
        world.add_engine(name)
        world.ready(name)
    kubeconfig = world.kubeconfig(tmp_path, labels.router_name(POOL))
    async with watching(kubeconfig, "e0", "e1", "e2") as fleet:
        await until(lambda: up(fleet) == {"e0", "e1"}, timeout=WAIT_SECONDS)
        assert not fleet.reachable("e2", 0.0), "it has no pod"

        await asyncio.to_thread(world.delete, "pod", "e0")
        await until(lambda: up(fleet) == {"e1"}, timeout=WAIT_SECONDS)
        assert fleet.reachable("e0", 0.0), "its sessions go on"

        await asyncio.to_thread(world.release, "e0")
        await until(lambda: not fleet.reachable("e0", 0.0), timeout=WAIT_SECONDS)

        await asyncio.to_thread(world.add_engine, "e0")
        await until(lambda: fleet.reachable("e0", 0.0), timeout=WAIT_SECONDS)
        assert up(fleet) == {"e1"}
        await asyncio.to_thread(world.ready, "e0")
        await until(lambda: up(fleet) == {"e0", "e1"}, timeout=WAIT_SECONDS)
    for name in ("e0", "e1"):
        world.release(name)
        world.delete("pod", name)


async def test_without_the_right_to_read_them_the_router_goes_on(
    world: Pods, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with watching(world.kubeconfig(tmp_path, "default"), "e0", "e1") as fleet:
        await until(lambda: "may not read EndpointSlices" in caplog.text, timeout=WAIT_SECONDS)
        assert up(fleet) == {"e0", "e1"}
