"""E2E_CLUSTER=current: the current kubeconfig's cluster, with images from the registry E2E_IMAGE_REGISTRY."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster.base import Cluster
from cluster.errors import ClusterError
from cluster.forwarding import port_forward


class CurrentCluster(Cluster):
    """A cluster that was there before and stays; that it enforces NetworkPolicy is not relied on."""

    def __init__(self, *, kubeconfig: Path, registry: str, tag: str, scratch: Path) -> None:
        super().__init__(kubeconfig=kubeconfig, kubectl="kubectl", helm="helm", scratch=scratch)
        self._registry, self._tag = registry, tag

    def load_images(self) -> None:
        """Nothing to do: the nodes pull from the registry."""

    def load_image(self, name_or_archive: str | Path) -> None:
        """Nothing to do: the nodes pull from the registry."""

    def image(self, name: str) -> str:
        """The reference in the registry."""
        return f"{self._registry}/{name}:{self._tag}"

    def forward(self, namespace: str, service: str, port: int) -> contextlib.AbstractContextManager[str]:
        """`kubectl port-forward`."""
        return port_forward("kubectl", self.environment(), namespace=namespace, target=service, port=port)


@contextlib.contextmanager
def open_current() -> Iterator[CurrentCluster]:
    """Use the kubeconfig that KUBECONFIG names, or ~/.kube/config; E2E_IMAGE_TAG is "dev" by default.

    Raises:
        ClusterError: there is no kubeconfig or no registry.
    """
    kubeconfig = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    registry = os.environ.get("E2E_IMAGE_REGISTRY", "").rstrip("/")
    if not kubeconfig.is_file():
        raise ClusterError(f"E2E_CLUSTER=current: no file {kubeconfig}; set KUBECONFIG to one kubeconfig")
    if not registry:
        raise ClusterError("E2E_CLUSTER=current: set E2E_IMAGE_REGISTRY to where the images were pushed")
    with tempfile.TemporaryDirectory(prefix="rolloutpool-current-") as scratch:
        cluster = CurrentCluster(
            kubeconfig=kubeconfig,
            registry=registry,
            tag=os.environ.get("E2E_IMAGE_TAG") or "dev",
            scratch=Path(scratch),
        )
        with contextlib.closing(cluster):
            yield cluster
