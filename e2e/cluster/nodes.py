"""Nodes without a kubelet, which the scheduler takes for real; a thread here does what must go on."""

import contextlib
import datetime
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, Client, KubeConfig
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Node, Pod

from cluster.base import GPU, PRODUCT_LABEL

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS, RENEW_SECONDS, CLEAN_SECONDS = 40, 10.0, 0.5
ADDRESS = "192.0.2.1"
"""Reserved for documentation: nothing answers there."""


class KubeletLessNodes:
    """Renews the nodes' leases, and removes pods that are being deleted there; a context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = Client(config=KubeConfig.from_file(str(kubeconfig)), trust_env=False)
        self._names: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._live, name="kubelet-less nodes", daemon=True)

    def __enter__(self) -> "KubeletLessNodes":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for name in list(self._names):
            with contextlib.suppress(httpx2.HTTPError, ApiError):
                self.remove(name)
        self._client.close()

    def add(self, name: str, *, gpus: int, product: str, labels: Mapping[str, str]) -> None:
        """Register a Ready node; it can be scheduled to when this returns.

        Raises:
            lightkube.ApiError: the API server refused it, for instance for a name in use.
        """
        every = {"kubernetes.io/hostname": name, PRODUCT_LABEL: product, **labels}
        self._client.create(Node(metadata=ObjectMeta(name=name, labels=every)))
        self._names.append(name)
        self._client.create(_lease(name))
        self._client.patch(Node.Status, name, {"status": node_status(gpus=gpus)})
        # The API server taints every new node; the controller takes that away only some seconds later.
        self._client.patch(Node, name, {"spec": {"taints": None}})

    def remove(self, name: str) -> None:
        """Remove a node that `add` made."""
        self._names.remove(name)
        self._client.delete(Node, name)
        self._client.delete(Lease, name, namespace=LEASE_NAMESPACE)

    def _live(self) -> None:
        renewals = 0.0
        while not self._end.wait(CLEAN_SECONDS):
            renewals += CLEAN_SECONDS
            # The API server may be down, on purpose even; the next round tries again.
            with contextlib.suppress(httpx2.HTTPError, ApiError):
                self._remove_terminating()
                if renewals >= RENEW_SECONDS:
                    self._renew()
                    renewals = 0.0

    def _remove_terminating(self) -> None:
        for pod in self._client.list(Pod, namespace="*"):
            if not (pod.metadata and pod.spec and pod.metadata.name):
                continue
            if pod.metadata.deletionTimestamp and pod.spec.nodeName in self._names:
                self._client.delete(Pod, pod.metadata.name, namespace=pod.metadata.namespace, grace_period=0)

    def _renew(self) -> None:
        for name in list(self._names):
            self._client.patch(Lease, name, {"spec": {"renewTime": _now()}}, namespace=LEASE_NAMESPACE)


def node_status(*, gpus: int) -> dict[str, Any]:
    """Status of a healthy node with `gpus` GPUs."""
    amount = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", GPU: str(gpus)}
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "there is no kubelet",
    }
    moment = _now()
    return {
        "capacity": amount,
        "allocatable": amount,
        "conditions": [{**condition, "lastHeartbeatTime": moment, "lastTransitionTime": moment}],
        "addresses": [{"type": "InternalIP", "address": ADDRESS}],
        "nodeInfo": None,
    }


def _lease(name: str) -> Lease:
    now = datetime.datetime.now(datetime.UTC)
    spec = LeaseSpec(holderIdentity=name, leaseDurationSeconds=LEASE_SECONDS, renewTime=now)
    return Lease(metadata=ObjectMeta(name=name, namespace=LEASE_NAMESPACE), spec=spec)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
