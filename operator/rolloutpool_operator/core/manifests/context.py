"""What every builder needs: the pool, its identity, and how the operator was installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolloutpool_api import labels
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_operator.core.merging import strategic_merge

NON_ROOT = 65532
"""User and group of all containers, unless an overlay says otherwise; images need no entry for it."""
OPERATOR_SELECTOR: Mapping[str, str] = {
    "app.kubernetes.io/part-of": "rolloutpool",
    "app.kubernetes.io/component": "operator",
}
"""Labels of the operator's own pods, by which NetworkPolicies let it in."""
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label that every namespace carries with its own name."""


@dataclass(frozen=True, kw_only=True)
class Install:
    """How the operator was installed: what manifests take from its settings."""

    router_image: str = "rolloutpool-router:latest"
    router_pull_policy: str = "IfNotPresent"
    network_policies: bool = True
    operator_namespace: str = ""
    """Namespace of the operator, let in by NetworkPolicies; empty: it does not run in the cluster."""
    monitoring_namespace: str = ""
    """Namespace of the monitoring system, let in for metrics; empty: none."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """One pool, as builders see it."""

    name: str
    namespace: str
    uid: str
    spec: RolloutPoolSpec
    install: Install

    def metadata(
        self, name: str, component: str, extra_labels: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Metadata of a child: labels, and the pool as its controller, so that it goes with the pool."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": labels.child_labels(self.name, component) | dict(extra_labels or {}),
            "ownerReferences": [
                {
                    "apiVersion": labels.API_VERSION,
                    "kind": labels.KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        }


def context_of(pool: RolloutPool, install: Install) -> Context:
    """The builders' view of a pool."""
    meta = pool.metadata
    return Context(name=meta.name, namespace=meta.namespace, uid=meta.uid, spec=pool.spec, install=install)


def pod_security() -> dict[str, Any]:
    """Pod security context of the `restricted` standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": NON_ROOT,
        "runAsGroup": NON_ROOT,
        "fsGroup": NON_ROOT,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Container security context of the `restricted` standard."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def http_probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    """A probe of the port named http; `period` in seconds."""
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def overlaid(
    template: dict[str, Any], overlay: Mapping[str, Any] | None, must_keep: Mapping[str, str]
) -> dict[str, Any]:
    """A pod template under the user's overlay; labels that selectors need cannot be overlaid."""
    if not overlay:
        return template
    merged: dict[str, Any] = strategic_merge(template, overlay)
    metadata = {**(merged.get("metadata") or {})}
    metadata["labels"] = {**(metadata.get("labels") or {}), **must_keep}
    return {**merged, "metadata": metadata}


def resources(spec: Mapping[str, Any], extra: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Container resources from the wire form of a ResourceSpec, and extended resources on both sides."""
    more = dict(extra or {})
    found = {side: {**(spec.get(side) or {}), **more} for side in ("requests", "limits")}
    return {side: amounts for side, amounts in found.items() if amounts}
