"""Names: API group, labels, the field manager, and what children of a pool are called."""

from __future__ import annotations

GROUP = "rolloutpool.dev"
VERSION = "v1alpha1"
KIND = "RolloutPool"
PLURAL = "rolloutpools"
SINGULAR = "rolloutpool"
SHORT_NAME = "rp"
API_VERSION = f"{GROUP}/{VERSION}"

FIELD_MANAGER = "rolloutpool-operator"
"""The one field manager of server-side apply."""

POOL = f"{GROUP}/pool"
"""Label: name of the pool that a child belongs to."""
COMPONENT = f"{GROUP}/component"
"""Label: engine or router."""
ROLE = f"{GROUP}/role"
"""Label: aggregated, prefill or decode."""
GROUP_NAME = f"{GROUP}/group"
"""Label: the plan group that an engine belongs to, e.g. decode-tp2."""
REVISION = f"{GROUP}/revision"
"""Label: revision of an engine's configuration."""
CONFIG_HASH = f"{GROUP}/config-hash"
"""Annotation: hash of what a child was made from."""

ENGINE = "engine"
ROUTER = "router"

ENGINE_PORT = 8000
ROUTER_PORT = 8080
WEIGHTS_PORT = 8001
"""Port of the router for weight synchronisation, unless the spec names another."""
NIXL_PORT = 5600
KV_EVENTS_PORT = 5557
"""Port of an engine for KV events, unless the spec names another."""
KV_REPLAY_PORT = 5558
"""Port of an engine that repeats past KV events, unless the spec names another."""

GPU_PRODUCT = "nvidia.com/gpu.product"
"""Node label (NVIDIA GPU feature discovery) with the GPU's product name."""

MAX_POOL_NAME = 31
"""Longest pool name. A StatefulSet labels its pods with its name and an 11-character hash, so its name has
52 of a label's 63 characters at most, and the longest group (-aggregated-tp64-pp64) takes 21 of those."""


def child_labels(pool: str, component: str) -> dict[str, str]:
    """Labels of every child: the recommended set and the pool."""
    return {
        "app.kubernetes.io/name": "rolloutpool",
        "app.kubernetes.io/instance": pool,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "rolloutpool",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        POOL: pool,
        COMPONENT: component,
    }


def selector(pool: str, component: str) -> dict[str, str]:
    """The least labels that select a component of a pool; never changes."""
    return {POOL: pool, COMPONENT: component}


def group_name(role: str, tensor_parallel: int, pipeline_parallel: int) -> str:
    """Name of a plan group: role and parallelism, e.g. decode-tp2 or decode-tp8-pp2."""
    pipeline = f"-pp{pipeline_parallel}" if pipeline_parallel > 1 else ""
    return f"{role}-tp{tensor_parallel}{pipeline}"


def engine_set_name(pool: str, group: str) -> str:
    """Name of a group's StatefulSet; its pods are this and an ordinal."""
    return f"{pool}-{group}"


def engine_service_name(pool: str) -> str:
    """Name of the headless Service of all engines of a pool."""
    return f"{pool}-engines"


def weights_service_name(pool: str) -> str:
    """Name of the Service of the router's port for weight synchronisation."""
    return f"{pool}-router-weights"


def router_name(pool: str) -> str:
    """Name of the router's Deployment, Service, ServiceAccount, Role and RoleBinding."""
    return f"{pool}-router"
