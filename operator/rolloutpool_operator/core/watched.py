"""What is watched, and which change of an object calls for a reconcile."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolloutpool_api import labels
from rolloutpool_operator.core.cluster_facts import Raw, condition, is_ready, labels_of, trouble
from rolloutpool_operator.core.observed import PoolKey

LEASE = "Lease"
HEARTBEAT = f"{labels.GROUP}/heartbeat"
"""Label of the Lease by which the operator proves to itself that watches deliver."""
MAX_OBJECTS = 50_000
"""Most objects whose last state is remembered; the least recently changed go first."""


@dataclass(frozen=True)
class Kind:
    """A kind of object and where the API has it."""

    kind: str
    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """As in manifests, e.g. apps/v1."""
        return f"{self.group}/{self.version}" if self.group else self.version


POOL = Kind(labels.KIND, labels.GROUP, labels.VERSION, labels.PLURAL)
NODE = Kind("Node", "", "v1", "nodes")
POD = Kind("Pod", "", "v1", "pods")
CONFIG_MAP = Kind("ConfigMap", "", "v1", "configmaps")
EVENT = Kind("Event", "", "v1", "events")
LEASES = Kind(LEASE, "coordination.k8s.io", "v1", "leases")
CHILDREN = (
    Kind("StatefulSet", "apps", "v1", "statefulsets"),
    Kind("Deployment", "apps", "v1", "deployments"),
    Kind("Service", "", "v1", "services"),
    Kind("ServiceAccount", "", "v1", "serviceaccounts"),
    Kind("Role", "rbac.authorization.k8s.io", "v1", "roles"),
    Kind("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings"),
    Kind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
    Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
)
"""Kinds of children, which the pool's label selects."""
BY_KIND: Mapping[str, Kind] = {item.kind: item for item in (*CHILDREN, POOL, NODE, POD, LEASES)}


def fingerprint(kind: str, body: Raw) -> Any:
    """What must differ between two states of an object for its pool to be reconciled.

    Status writes of the operator itself must never count, nor what kubelets renew all the time.
    """
    meta = body["metadata"]
    base = (meta.get("uid"), meta.get("deletionTimestamp"), meta.get("labels"), meta.get("generation"))
    match kind:
        case POOL.kind:
            return base[0], base[1], base[3]
        case POD.kind:
            address = (body.get("status") or {}).get("podIP")
            return base, is_ready(body), trouble(body), address, body["spec"].get("nodeName")
        case NODE.kind:
            return _node(body)
        case "StatefulSet" | "Deployment":
            status = body.get("status") or {}
            counts = ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas")
            return base, *(status.get(name) for name in counts)
        case _:
            return base, meta.get("resourceVersion")


def owner(kind: str, body: Raw) -> PoolKey | None:
    """The pool that an object belongs to by its label; the pool itself for a pool; None for nodes."""
    meta = body["metadata"]
    name = meta.get("name") if kind == POOL.kind else labels_of(body).get(labels.POOL)
    return PoolKey(str(meta.get("namespace", "")), str(name)) if name and kind != NODE.kind else None


class Changes:
    """The last fingerprint of every object; bounded."""

    def __init__(self, limit: int = MAX_OBJECTS) -> None:
        self._seen: OrderedDict[str, Any] = OrderedDict()
        self._limit = limit

    def __len__(self) -> int:
        return len(self._seen)

    def matters(self, kind: str, body: Raw, *, gone: bool) -> bool:
        """Whether this state of an object calls for a reconcile; remembers it.

        Args:
            kind: kind of the object.
            body: its state.
            gone: whether it was deleted.
        """
        uid = str(body["metadata"].get("uid", ""))
        if gone:
            self._seen.pop(uid, None)
            return True
        mark = fingerprint(kind, body)
        if self._seen.get(uid) == mark:
            return False
        self._seen[uid] = mark
        self._seen.move_to_end(uid)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)
        return True


def _node(body: Raw) -> Any:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    ready = condition(body, "Ready").get("status")
    return labels_of(body), status.get("allocatable"), spec.get("unschedulable"), spec.get("taints"), ready
