"""The steps of an installation, each through helm, kubectl or the `rolloutpool` command as a user would."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from cluster import Cluster

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "rolloutpool"
EXAMPLE = ROOT / "examples" / "mixed-rollouts.yaml"
SYSTEM = "rolloutpool-system"
"""Namespace of the operator."""
NAMESPACE = "rollouts"
"""Namespace of the pools; it enforces the restricted pod security standard."""
COMMAND = Path(sys.executable).with_name("rolloutpool")

Manifest = dict[str, Any]
Say = Callable[[str], None]


class StepFailed(RuntimeError):
    """A step did not get where it should; the message says what to look at."""


def install_chart(cluster: Cluster, *settings: str) -> None:
    """Install or upgrade the chart with this checkout's images, and wait for the operator.

    Args:
        cluster: where to.
        settings: further `--set` values, e.g. networkPolicies.enabled=false.
    """
    values = [*_image_values(cluster, "operator"), *_image_values(cluster, "router"), *settings]
    flags = [flag for value in values for flag in ("--set", value)]
    cluster.helm(
        "upgrade",
        "--install",
        "rolloutpool",
        str(CHART),
        "--namespace",
        SYSTEM,
        "--create-namespace",
        "--wait",
        "--timeout=120s",
        *flags,
    )


def _image_values(cluster: Cluster, component: str) -> tuple[str, str]:
    repository, _, tag = cluster.image(component).rpartition(":")
    return f"{component}.image.repository={repository}", f"{component}.image.tag={tag}"


def make_namespace(cluster: Cluster, name: str = NAMESPACE) -> None:
    """A namespace in which only restricted pods may run."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(body))


def example(cluster: Cluster, path: Path = EXAMPLE, **metadata: str) -> Manifest:
    """The example manifest with the emulator image that this cluster has."""
    manifest: Manifest = yaml.safe_load(path.read_text())
    manifest["metadata"] = {**manifest["metadata"], "namespace": NAMESPACE, **metadata}
    manifest["spec"]["engine"]["image"] = cluster.image("emulator")
    return manifest


def apply(cluster: Cluster, manifest: Manifest) -> None:
    """`kubectl apply` of one object."""
    cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))


def get_pool(cluster: Cluster, name: str, namespace: str = NAMESPACE) -> Manifest:
    """The stored object."""
    pool: Manifest = json.loads(cluster.kubectl("get", "rolloutpool", name, "-n", namespace, "-o", "json"))
    return pool


def condition(pool: Manifest, kind: str = "Ready") -> Manifest:
    """One condition of a pool; status Unknown while it is not there or speaks of an older spec."""
    for found in pool.get("status", {}).get("conditions", []):
        if found["type"] == kind and found.get("observedGeneration") == pool["metadata"]["generation"]:
            return dict(found)
    return {
        "type": kind,
        "status": "Unknown",
        "reason": "",
        "message": f"no {kind} condition of this spec yet",
    }


def wait_condition(
    cluster: Cluster,
    name: str,
    kind: str = "Ready",
    *,
    status: str = "True",
    reason: str = "",
    timeout: float = 120.0,
    say: Say = lambda _: None,
) -> Manifest:
    """Poll until a condition has this status; returns the object.

    Args:
        reason: the condition must have this reason too; empty: any.
        say: called with each new message on the way.
        timeout: in seconds.

    Raises:
        StepFailed: with the conditions, the pods and the operator's last lines.
    """
    deadline, last = time.monotonic() + timeout, ""
    while True:
        pool = get_pool(cluster, name)
        found = condition(pool, kind)
        text = f"{kind}={found['status']} {found['reason']}: {found['message']}"
        if text != last:
            say(text)
        last = text
        if found["status"] == status and reason in ("", found["reason"]):
            return pool
        if time.monotonic() > deadline:
            awaited = f"{kind} was not {status} {reason} within {timeout:.0f} s"
            raise StepFailed(f"{awaited}\n{diagnosis(cluster, name)}")
        time.sleep(0.5)


def diagnosis(cluster: Cluster, name: str) -> str:
    """What to look at when a pool does not come up."""
    parts = [
        ("get", "rolloutpool", name, "-n", NAMESPACE, "-o", "jsonpath={.status.conditions}"),
        ("get", "pods", "-A", "-o", "wide"),
        ("get", "events", "-n", NAMESPACE, "--sort-by=.lastTimestamp"),
        ("logs", "-n", SYSTEM, "deployment/rolloutpool", "--tail=40"),
    ]
    return "\n".join(f"--- kubectl {' '.join(part)}\n{_try(cluster, *part)}" for part in parts)


def _try(cluster: Cluster, *arguments: str) -> str:
    try:
        return cluster.kubectl(*arguments)
    except Exception as error:
        return str(error)


def load_command(url: str, manifest: Path, *, seconds: float, more: tuple[str, ...] = ()) -> list[str]:
    """The command that drives a trainer-like mixed load."""
    return [str(COMMAND), "load", "--url", url, "-f", str(manifest), "--duration", f"{seconds:.0f}s", *more]


def run_load(url: str, manifest: Path, *, seconds: float, near_end: Callable[[], None]) -> None:
    """Drive load with its own progress and table on the terminal.

    Args:
        near_end: called once, while the load is on.

    Raises:
        StepFailed: if it lost a session.
    """
    with subprocess.Popen(load_command(url, manifest, seconds=seconds)) as load:
        with contextlib.suppress(subprocess.TimeoutExpired):
            load.wait(timeout=0.75 * seconds)
        near_end()
        code = load.wait()
    if code != 0:
        raise StepFailed(f"the load ended with code {code}: see its last lines above")


def describe(cluster: Cluster, name: str) -> str:
    """`kubectl describe rolloutpool`."""
    return cluster.kubectl("describe", "rolloutpool", name, "-n", NAMESPACE)
