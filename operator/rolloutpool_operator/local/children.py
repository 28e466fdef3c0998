"""The sets of processes that a pool should have, as its children. Pure.

A set is to its processes what a StatefulSet is to its pods: one per group of the plan, one for the router.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutpool_api import labels
from rolloutpool_api.status import PlanGroup
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_operator.core.children import Child, sealed
from rolloutpool_operator.core.engine_args import engine_args, engine_env, engine_revision
from rolloutpool_operator.core.manifests.router import weights_arguments
from rolloutpool_operator.local.ports import LOOPBACK
from rolloutpool_operator.local.processes import Command

ENGINES = "EngineProcesses"
ROUTER = "RouterProcesses"
MODEL_CACHE = "/tmp"
"""Emulators download nothing."""
ROUTER_GRACE_SECONDS = 10
"""Time that a stopping router has, in seconds."""

PortOf = Callable[[str], int]
"""The port of a name."""


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process of a set."""

    name: str
    command: Command
    url: str
    """Base URL that it serves."""
    ready_url: str
    """URL that answers 200 once it serves."""
    labels: Mapping[str, str]
    """Labels of its set."""
    kv_ports: tuple[int, int] | None = None
    """Ports for KV events and for repeating them, where it publishes any."""


def build_children(
    pool: RolloutPool,
    groups: Sequence[PlanGroup],
    *,
    python: str,
    pool_file: Path,
    token_file: Path,
    port_of: PortOf,
) -> tuple[Child, ...]:
    """The router, and a set of engines for every group of the plan.

    Args:
        pool: the pool.
        groups: the plan's groups; none where engines are given.
        python: interpreter that runs them.
        pool_file: file that the router watches.
        token_file: file with the token of weight synchronisation.
        port_of: gives every process its port.
    """
    router = build_router(pool, python=python, pool_file=pool_file, token_file=token_file, port_of=port_of)
    return (router, *(build_engines(pool, group, python=python, port_of=port_of) for group in groups))


def build_engines(pool: RolloutPool, group: PlanGroup, *, python: str, port_of: PortOf) -> Child:
    """The engines of a group: emulators, with the arguments that vLLM would get in a pod."""
    group_name = labels.group_name(group.role, group.tensor_parallel, group.pipeline_parallel)
    name = labels.engine_set_name(pool.metadata.name, group_name)
    set_labels = {
        **labels.child_labels(pool.metadata.name, labels.ENGINE),
        labels.ROLE: str(group.role),
        labels.GROUP_NAME: group_name,
        labels.REVISION: engine_revision(pool.spec),
    }
    processes = [
        _engine(pool, group, f"{name}-{ordinal}", python=python, port_of=port_of)
        for ordinal in range(group.replicas)
    ]
    return _process_set(ENGINES, name, set_labels, processes)


def weights_name(pool: str) -> str:
    """Name under which the router's port for weight synchronisation is kept."""
    return f"{labels.router_name(pool)}/weights"


def build_router(
    pool: RolloutPool, *, python: str, pool_file: Path, token_file: Path, port_of: PortOf
) -> Child:
    """The router, watching the object's file."""
    name = labels.router_name(pool.metadata.name)
    module = (python, "-m", "rolloutpool_router.main")
    arguments = ["--host", LOOPBACK, "--port", str(port_of(name)), "--name", name]
    if pool.spec.engine.rl.enabled:
        arguments += weights_arguments(port_of(weights_name(pool.metadata.name)), str(token_file))
    process = {
        "name": name,
        "command": [*module, "--pool-file", str(pool_file), *arguments],
        "env": {},
        "port": port_of(name),
        "readyPath": "/readyz",
        "graceSeconds": ROUTER_GRACE_SECONDS,
    }
    return _process_set(ROUTER, name, labels.child_labels(pool.metadata.name, labels.ROUTER), [process])


def processes_of(body: Mapping[str, Any]) -> tuple[ProcessSpec, ...]:
    """The processes of a set."""
    return tuple(_process_spec(body["metadata"]["labels"], item) for item in body["spec"]["processes"])


def _engine(
    pool: RolloutPool, group: PlanGroup, name: str, *, python: str, port_of: PortOf
) -> dict[str, Any]:
    env = engine_env(
        pool.spec,
        group,
        model_cache=MODEL_CACHE,
        side_channel_host=LOOPBACK,
        side_channel_port=port_of(f"{name}/kv"),
    )
    publishes = pool.spec.engine.kv_events.enabled
    kv_ports = (port_of(f"{name}/kv-events"), port_of(f"{name}/kv-replay")) if publishes else None
    arguments = engine_args(pool.spec, group, host=LOOPBACK, port=port_of(name), kv_ports=kv_ports)
    return {
        "name": name,
        "command": [python, "-m", "rolloutpool_sim.emulator", *arguments],
        "env": env,
        "port": port_of(name),
        "readyPath": "/v1/models",
        "graceSeconds": pool.spec.engine.termination_grace_seconds,
        **({"kvPorts": kv_ports} if kv_ports else {}),
    }


def _process_set(kind: str, name: str, set_labels: dict[str, str], processes: list[dict[str, Any]]) -> Child:
    spec = {"replicas": len(processes), "processes": processes}
    return sealed(kind, name, {"metadata": {"name": name, "labels": set_labels}, "spec": spec})


def _process_spec(set_labels: Mapping[str, str], item: Mapping[str, Any]) -> ProcessSpec:
    url = f"http://{LOOPBACK}:{item['port']}"
    return ProcessSpec(
        name=item["name"],
        command=Command(
            argv=tuple(item["command"]), env=item["env"], grace_seconds=float(item["graceSeconds"])
        ),
        url=url,
        ready_url=url + item["readyPath"],
        labels=set_labels,
        kv_ports=item.get("kvPorts"),
    )
