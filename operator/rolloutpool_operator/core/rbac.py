"""Exactly the rights that the operator uses: the chart's roles must grant these and no more.

A right to grant: the API server lets nobody hand out rights that they do not hold, so the operator holds
get, list and watch of rolloutpools and endpointslices, which is what it gives to routers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rolloutpool_api import labels

READ = ("get", "list", "watch")
WRITE = ("create", "patch", "delete")


@dataclass(frozen=True)
class Rule:
    """One rule of a Role or ClusterRole."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def to_wire(self) -> dict[str, Any]:
        """As in a manifest."""
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


NAMESPACED = (
    Rule(labels.GROUP, (labels.PLURAL,), READ),
    Rule(labels.GROUP, (f"{labels.PLURAL}/status",), ("patch",)),
    # Owner references that block the owner's deletion need this where the API server enforces it.
    Rule(labels.GROUP, (f"{labels.PLURAL}/finalizers",), ("update",)),
    Rule("apps", ("statefulsets", "deployments"), READ + WRITE),
    Rule("", ("services", "serviceaccounts"), READ + WRITE),
    Rule("rbac.authorization.k8s.io", ("roles", "rolebindings"), READ + WRITE),
    Rule("networking.k8s.io", ("networkpolicies",), READ + WRITE),
    Rule("policy", ("poddisruptionbudgets",), READ + WRITE),
    Rule("", ("pods",), READ),
    # For routers only.
    Rule("discovery.k8s.io", ("endpointslices",), READ),
    Rule("", ("configmaps",), ("get",)),
    Rule("", ("events",), ("create",)),
    # Kopf watches every kind in every namespace, the heartbeat's too.
    Rule("coordination.k8s.io", ("leases",), READ),
)
"""In every namespace with pools (a ClusterRole where all namespaces are watched)."""

CLUSTER = (Rule("", ("nodes",), READ),)
"""Cluster-wide, also where single namespaces are watched; without it set ROLLOUTPOOL_WATCH_NODES=false."""

OPERATOR_NAMESPACE = (Rule("coordination.k8s.io", ("leases",), (*READ, "create", "patch")),)
"""In the namespace of the heartbeat."""

DISCOVERY = (
    Rule("apiextensions.k8s.io", ("customresourcedefinitions",), ("list", "watch")),
    Rule("", ("namespaces",), ("list", "watch")),
)
"""Cluster-wide where all namespaces are watched: Kopf follows the CRD and namespaces."""
