"""E2E_CLUSTER=kind: a kind cluster (needs Docker and the kind CLI) with the same images and the same GPUs."""

import contextlib
import json
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster import images
from cluster.base import GPU, H100, PRODUCT_LABEL, Cluster, run
from cluster.components import reference
from cluster.forwarding import port_forward
from cluster.progress import Steps

CREATE_SECONDS, LOAD_SECONDS = 600.0, 300.0


class KindCluster(Cluster):
    """A kind cluster with one node; `open_kind` makes and ends it. kind's own CNI enforces NetworkPolicy."""

    enforces_network_policy = True

    def __init__(self, name: str, scratch: Path, steps: Steps) -> None:
        super().__init__(kubeconfig=scratch / "kubeconfig", kubectl="kubectl", helm="helm", scratch=scratch)
        self._name, self._steps = name, steps

    def kind(self, *args: str, timeout: float) -> str:
        """Run the kind CLI on this cluster; raises as `kubectl` does."""
        return run(("kind", *args, "--name", self._name), env=self.environment(), timeout=timeout)

    def up(self, gpus: int) -> None:
        """Create the cluster and give its node GPUs."""
        with self._steps.step("kind create cluster"):
            self.kind("create", "cluster", "--wait=120s", timeout=CREATE_SECONDS)
        node = f"node/{self._name}-control-plane"
        amount = {GPU: str(gpus)}
        status = json.dumps({"status": {"capacity": amount, "allocatable": amount}})
        self.kubectl("label", node, f"{PRODUCT_LABEL}={H100}")
        self.kubectl("patch", node, "--subresource=status", "--type=merge", "-p", status)

    def load_image(self, name_or_archive: str | Path) -> None:
        """Build the image if it is one of ours, and load the archive."""
        if name_or_archive not in images.NAMES:
            self.kind("load", "image-archive", str(name_or_archive), timeout=LOAD_SECONDS)
            return
        with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
            images.write([str(name_or_archive)], archive, self._steps)
            archive.flush()
            self.kind("load", "image-archive", archive.name, timeout=LOAD_SECONDS)

    def image(self, name: str) -> str:
        """The reference in the archive."""
        return reference(name)

    def forward(self, namespace: str, service: str, port: int) -> contextlib.AbstractContextManager[str]:
        """`kubectl port-forward`."""
        return port_forward("kubectl", self.environment(), namespace=namespace, target=service, port=port)


@contextlib.contextmanager
def open_kind(*, name: str | None, gpus: int, steps: Steps) -> Iterator[KindCluster]:
    """Create a kind cluster and delete it at the end.

    Raises:
        ClusterError: kind, kubectl or Docker is missing or failed.
    """
    with tempfile.TemporaryDirectory(prefix="rolloutpool-kind-") as scratch:
        cluster = KindCluster(f"rolloutpool-{name or secrets.token_hex(3)}", Path(scratch), steps)
        try:
            cluster.up(gpus)
            yield cluster
        finally:
            cluster.close()
            with steps.step("kind delete cluster"):
                cluster.kind("delete", "cluster", timeout=CREATE_SECONDS)
