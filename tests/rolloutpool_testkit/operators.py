"""An operator process on this machine, and the namespace that it is tested in."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from rolloutpool_api import crdgen
from rolloutpool_testkit.manifests import pool_manifest

if TYPE_CHECKING:
    from cluster import Cluster

WAIT_SECONDS = 30.0
CHILDREN = {
    ("StatefulSet", "{}-aggregated-tp1"),
    ("Deployment", "{}-router"),
    ("Service", "{}-engines"),
    ("Service", "{}-router"),
    ("ServiceAccount", "{}-router"),
    ("Role", "{}-router"),
    ("RoleBinding", "{}-router"),
    ("NetworkPolicy", "{}-engines"),
    ("NetworkPolicy", "{}-router"),
}
KINDS = (
    "statefulsets,deployments,services,serviceaccounts,roles,rolebindings,networkpolicies,"
    "poddisruptionbudgets"
)
MANUAL = {"mode": "Manual", "replicas": [{"role": "aggregated", "replicas": 2}]}


def eventually(what: str, check: Callable[[], Any], timeout: float = WAIT_SECONDS) -> Any:
    """Poll until `check` answers with something true, and return it."""
    deadline = time.monotonic() + timeout
    while not (found := check()):
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(0.2)
    return found


def install_crd(cluster: Cluster) -> None:
    """Apply the CRD and wait until the API server serves it."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=crdgen.render())
    # Not `kubectl wait`: it fails on an object that has no conditions yet.
    established = '-o=jsonpath={.status.conditions[?(@.type=="Established")].status}'
    get = ("get", "crd", "rolloutpools.rolloutpool.dev", established)
    eventually("the CRD is established", lambda: cluster.kubectl(*get) == "True")


class Operator:
    """One operator process on this machine."""

    def __init__(self, kubeconfig: Path, folder: Path, namespace: str, **settings: str) -> None:
        """Start it and wait until it serves.

        Args:
            kubeconfig: says where the API server is.
            folder: takes its log.
            namespace: of its heartbeat.
            settings: ROLLOUTPOOL_* variables, in lower case without the prefix.
        """
        self._log = folder / f"operator-{time.monotonic_ns()}.log"
        environ = {
            "KUBECONFIG": str(kubeconfig),
            "ROLLOUTPOOL_ROUTER_IMAGE": "registry.invalid/router:none",
            "ROLLOUTPOOL_HOST": "127.0.0.1",
            "ROLLOUTPOOL_PORT": "0",
            "ROLLOUTPOOL_OPERATOR_NAMESPACE": namespace,
            "ROLLOUTPOOL_HEARTBEAT_SECONDS": "1",
            # Long, so that only a watch can have told of a change.
            "ROLLOUTPOOL_RESYNC_SECONDS": "3600",
        }
        environ |= {f"ROLLOUTPOOL_{name.upper()}": value for name, value in settings.items()}
        with self._log.open("w") as log:
            command = [sys.executable, "-m", "rolloutpool_operator.main"]
            self.process = subprocess.Popen(command, env=environ, stderr=log, stdout=log)
        self.url = eventually("the operator serves", self._find_url)

    @property
    def log(self) -> str:
        """What it logged."""
        return self._log.read_text()

    def _find_url(self) -> str | None:
        assert self.process.poll() is None, self.log
        match = re.search(r"http://127\.0\.0\.1:\d+", self.log)
        return match[0] if match else None

    def health(self) -> int:
        """Status of /healthz."""
        return httpx.get(f"{self.url}/healthz", trust_env=False).status_code

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that have these labels."""
        text = httpx.get(f"{self.url}/metrics", trust_env=False).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in text.splitlines() if re.match(rf"rolloutpool_operator_{name}[ {{]", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(part in line for part in wanted))

    def kill(self) -> None:
        """End it at once, as kill -9."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """End it with SIGTERM; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


class World:
    """One namespace of a cluster, by kubectl."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        """Make the namespace and make sure of the CRD."""
        self.cluster = cluster
        self.namespace = namespace
        install_crd(cluster)
        cluster.kubectl("create", "namespace", namespace)

    def close(self) -> None:
        """Let the pools go with all that they have, then the namespace."""
        self.cluster.kubectl("delete", "rolloutpools", "--all", "-n", self.namespace)
        eventually("pods are gone", lambda: not self.items("statefulsets,deployments,pods"))
        self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")

    def apply(self, name: str, **changes: Any) -> None:
        """Apply a pool (see `pool_manifest` for the changes)."""
        manifest = pool_manifest(name, **changes)
        manifest["metadata"]["namespace"] = self.namespace
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object; None where there is none."""
        found = self.items(kind, "--field-selector", f"metadata.name={name}")
        return found[0] if found else None

    def items(self, kinds: str, *args: str) -> list[dict[str, Any]]:
        """Objects of some kinds, as `kubectl get` selects them."""
        text = self.cluster.kubectl("get", kinds, "-n", self.namespace, *args, "-o", "json")
        return list(json.loads(text)["items"])

    def children(self, pool: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Children of a pool by kind and name."""
        found = self.items(KINDS, "-l", f"rolloutpool.dev/pool={pool}")
        return {(item["kind"], item["metadata"]["name"]): item for item in found}

    def status(self, pool: str) -> dict[str, Any]:
        """Status of a pool; empty while there is none."""
        found = self.get("rolloutpools", pool)
        return (found or {}).get("status") or {}

    def condition(self, pool: str, kind: str) -> dict[str, Any]:
        """A condition of a pool; empty while there is none."""
        found = self.status(pool).get("conditions", [])
        return next((item for item in found if item["type"] == kind), {})

    def events(self, pool: str) -> set[str]:
        """Reasons of the Events on a pool."""
        found = self.items("events", "--field-selector", f"involvedObject.name={pool}")
        return {item["reason"] for item in found}

    def delete(self, kind: str, name: str) -> None:
        """Delete an object and do not wait."""
        self.cluster.kubectl("delete", kind, name, "-n", self.namespace, "--wait=false")

    def versions(self, pool: str) -> dict[tuple[str, str], str]:
        """Resource versions of a pool's children."""
        found = self.children(pool)
        return {key: item["metadata"]["resourceVersion"] for key, item in found.items()}

    def comes_up(self, pool: str, **changes: Any) -> None:
        """Apply a pool and wait for its children."""
        self.apply(pool, **{"planning": MANUAL} | changes)
        wanted = {(kind, name.format(pool)) for kind, name in CHILDREN}
        eventually(f"children of {pool}", lambda: set(self.children(pool)) == wanted)


def quiet(operator: Operator) -> float:
    """Wait until nothing is reconciled nor written any more; returns how many reconciles there were."""

    def counts() -> tuple[float, float]:
        return operator.metric("reconciles_total"), operator.metric("status_writes_total")

    def still() -> float:
        before = counts()
        time.sleep(2.5)  # longer than the admission loop's period
        return before[0] if counts() == before else 0

    return float(eventually("the operator is quiet", still))
