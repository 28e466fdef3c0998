"""What every backend of the test cluster offers; tests and demos are written against this class."""

import abc
import os
import shlex
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.errors import ClusterError

if TYPE_CHECKING:
    from cluster.nodes import KubeletLessNodes

GPU = "nvidia.com/gpu"
PRODUCT_LABEL = "nvidia.com/gpu.product"
H100 = "NVIDIA-H100-80GB-HBM3"


class Cluster(abc.ABC):
    """A Kubernetes cluster for tests, reachable from this machine through `kubeconfig`."""

    kubeconfig: Path
    """Grants everything; its server is reachable from this machine."""
    can_run_pods: bool = True
    """False for a control plane without a node: objects and scheduling work, pods stay Pending."""
    enforces_network_policy: bool = False

    def __init__(self, *, kubeconfig: Path, kubectl: str, helm: str, scratch: Path) -> None:
        """`scratch` takes the clients' caches, so that nothing of them lands in the home folder."""
        self.kubeconfig = kubeconfig
        self._kubectl, self._helm, self._scratch = kubectl, helm, scratch
        self._closing = ExitStack()
        self._nodes: KubeletLessNodes | None = None

    def environment(self) -> dict[str, str]:
        """This process's environment with KUBECONFIG, and with the cluster's kubectl and helm on PATH."""
        folders = [str(Path(tool).parent) for tool in (self._kubectl, self._helm) if os.sep in tool]
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self._scratch / "kube-cache"),
            "HELM_CACHE_HOME": str(self._scratch / "helm-cache"),
            "HELM_CONFIG_HOME": str(self._scratch / "helm-config"),
            "HELM_DATA_HOME": str(self._scratch / "helm-data"),
            "PATH": os.pathsep.join([*dict.fromkeys(folders), os.environ.get("PATH", "")]),
        }

    def kubectl(self, *args: str, timeout: float = 60.0, input: str | None = None) -> str:
        """Run kubectl and return its standard output.

        Raises:
            ClusterError: it failed (the message has its standard error) or took over `timeout` seconds.
        """
        return run((self._kubectl, *args), env=self.environment(), timeout=timeout, input=input)

    def helm(self, *args: str, timeout: float = 120.0, input: str | None = None) -> str:
        """Run helm and return its standard output; raises as `kubectl` does."""
        return run((self._helm, *args), env=self.environment(), timeout=timeout, input=input)

    def apply(self, manifest: str, *, timeout: float = 60.0) -> str:
        """`kubectl apply` of YAML or JSON text."""
        return self.kubectl("apply", "-f", "-", input=manifest, timeout=timeout)

    def load_images(self) -> None:
        """Build all images of this checkout that are out of date, and give them to the cluster's node."""
        from cluster import images

        for name in images.NAMES:
            self.load_image(name)

    @abc.abstractmethod
    def load_image(self, name_or_archive: str | Path) -> None:
        """Give the node one image: "operator", "router", "emulator", "python", or a docker-archive file."""

    @abc.abstractmethod
    def image(self, name: str) -> str:
        """Reference to use in manifests and Helm values for "operator", "router", "emulator" or "python"."""

    @abc.abstractmethod
    def forward(self, namespace: str, service: str, port: int) -> AbstractContextManager[str]:
        """Lend a Service's port (or a pod's: "pod/NAME") to 127.0.0.1; yields "http://127.0.0.1:N"."""

    def add_node(
        self,
        name: str,
        *,
        gpus: int = 8,
        product: str = H100,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Register a node without a kubelet: Ready, schedulable, but pods bound to it never start.

        Until `remove_node` or the cluster's end its lease is renewed, and pods deleted there go at once.
        """
        from cluster.nodes import KubeletLessNodes

        if self._nodes is None:
            self._nodes = self._closing.enter_context(KubeletLessNodes(self.kubeconfig))
        self._nodes.add(name, gpus=gpus, product=product, labels=labels or {})

    def remove_node(self, name: str) -> None:
        """Remove a node that `add_node` made, or later pods may be bound to it and never start."""
        if self._nodes is None:
            raise ClusterError(f"no node {name} was added")
        self._nodes.remove(name)

    def stop(self, component: str) -> None:
        """End a component ("apiserver", "etcd", "kubelet"...) politely; it stays down until `start`."""
        raise ClusterError(f"cannot stop {component}: only the builtin cluster can")

    def kill(self, component: str) -> None:
        """End a component with SIGKILL; it stays down until `start`."""
        raise ClusterError(f"cannot kill {component}: only the builtin cluster can")

    def start(self, component: str) -> None:
        """Start a component that was stopped or killed, and wait until it answers."""
        raise ClusterError(f"cannot start {component}: only the builtin cluster can")

    def keep_logs(self) -> Path | None:
        """Keep the components' logs beyond the cluster's end; returns where, None where there are none."""
        return None

    def close(self) -> None:
        """End what this object started on the machine's side."""
        self._closing.close()


def run(argv: tuple[str, ...], *, env: Mapping[str, str], timeout: float, input: str | None = None) -> str:
    """Run a program and return its standard output.

    Raises:
        ClusterError: it is missing, failed (with its standard error) or took over `timeout` seconds.
    """
    words = shlex.join((Path(argv[0]).name, *argv[1:]))[:300]
    # No input means an empty one: a program that asks something must fail instead of waiting for a terminal.
    try:
        done = subprocess.run(
            argv, env=env, timeout=timeout, input=input or "", capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = (
            error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else error.stderr or ""
        )
        raise ClusterError(f"{words}: no end after {timeout:g} s {said[-2000:]}".strip()) from None
    except FileNotFoundError:
        raise ClusterError(f"{argv[0]}: not found; install it or put it on PATH") from None
    if done.returncode:
        raise ClusterError(
            f"{words}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-4000:]}"
        )
    return done.stdout
