"""The builtin cluster: Kubernetes in a cell of its own, or without root a bare control plane."""

import contextlib
import datetime
import json
import shutil
import signal
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import yaml

from cluster import config, images, pki, policy
from cluster.archive import Image, write_archive
from cluster.base import GPU, H100, PRODUCT_LABEL, Cluster, run
from cluster.binaries import Binaries
from cluster.cache import cache_root
from cluster.cell.handle import Cell
from cluster.components import reference
from cluster.errors import ClusterError
from cluster.progress import Steps

KEPT_LOGS = 5
"""Log folders that are kept; older ones are removed."""
POLL_SECONDS = 0.1
START_SECONDS = 90.0
SERVICE_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


class BuiltinCluster(Cluster):
    """One cluster; `lifetime.open_builtin` makes and ends it."""

    def __init__(self, *, cell: Cell, layout: config.Layout, programs: Binaries, steps: Steps) -> None:
        super().__init__(
            kubeconfig=layout.folder / "kubeconfig",
            kubectl=str(programs["kubectl"]),
            helm=str(programs["helm"]),
            scratch=layout.folder,
        )
        self.can_run_pods = layout.has_node
        self._cell, self._layout, self._programs, self._steps = cell, layout, programs, steps
        self._environment = config.cell_environment(layout)
        self._commands = dict(config.control_plane_commands(layout, programs.programs))
        if layout.has_node:
            self._commands |= config.node_commands(layout, programs.programs, {PRODUCT_LABEL: H100})
        self._running: set[str] = set()

    def up(self, gpus: int) -> None:
        """Start everything and wait until it works.

        Raises:
            ClusterError: a component ended (with its last lines) or did not answer in time.
        """
        self._write_files()
        if self.can_run_pods:
            self._launch("containerd")
        self._launch("etcd")
        self._launch("apiserver")
        with self._steps.step("kube-apiserver answers"):
            self._connect()
            if self.can_run_pods:
                self._wait("containerd", self._containerd_answers)
                self._import(lambda scratch: images.node_images(self._programs, scratch))
            self._wait("kube-apiserver's /readyz", lambda: self._found("/readyz"))
        self._launch("controller-manager")
        self._launch("scheduler")
        if self.can_run_pods:
            self._up_node(gpus)
        with self._steps.step("default ServiceAccount exists"):
            self._wait("the default ServiceAccount", lambda: self._found(SERVICE_ACCOUNT))

    def _up_node(self, gpus: int) -> None:
        self._launch("kubelet")
        self._launch("proxy")
        self.apply(dns_manifest(self._layout.node))
        self.enforces_network_policy = policy.queue_packets(self.in_cell)
        if self.enforces_network_policy:
            self._launch("netpol")
        node = self._layout.node
        with self._steps.step(f"node Ready, with {gpus} GPUs"):
            self._wait(f"node {node}", lambda: self._found(f"/api/v1/nodes/{node}"))
            self.kubectl("patch", f"node/{node}", "--subresource=status", "-p", gpu_patch(gpus))
            self.kubectl(
                "wait", "--for=condition=Ready", f"node/{node}", "--timeout=60s", timeout=START_SECONDS
            )
        with self._steps.step("cluster DNS answers"):
            self._wait("cluster DNS", self._resolves)

    def _write_files(self) -> None:
        layout = self._layout
        pki.write_pki(
            layout.pki,
            server=layout.server,
            server_names=(layout.address, "127.0.0.1", config.API_SERVICE),
            node=layout.node,
            node_address=layout.address,
            now=datetime.datetime.now(datetime.UTC),
        )
        if self.can_run_pods:
            for name, content in config.node_files(layout, pause_image=reference("pause")).items():
                path = layout.folder / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(content)

    def _connect(self) -> None:
        """Write the kubeconfig for this machine, through a relay where the API server is in a cell."""
        document = yaml.safe_load((self._layout.pki / "admin.kubeconfig").read_text())
        cluster = document["clusters"][0]["cluster"]
        if self.can_run_pods:
            relay = self._cell.relay(self._layout.address, self._layout.api_port)
            cluster["server"] = f"https://127.0.0.1:{self._closing.enter_context(relay)}"
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(yaml.safe_dump(document))
        context = ssl.create_default_context(cafile=str(self._layout.pki / "ca.crt"))
        context.load_cert_chain(self._layout.pki / "admin.crt", self._layout.pki / "admin.key")
        client = httpx.Client(base_url=cluster["server"], verify=context, trust_env=False, timeout=5.0)
        self._api = self._closing.enter_context(client)

    def _wait(self, what: str, ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            self._check_running()
            if time.monotonic() > deadline:
                raise ClusterError(f"{what}: no answer in {seconds:g} s")
            time.sleep(POLL_SECONDS)

    def _check_running(self) -> None:
        for name, code in self._cell.ended().items():
            if name in self._running:
                log = self._layout.folder / "logs" / f"{name}.log"
                lines = log.read_text(errors="replace").splitlines()[-15:]
                raise ClusterError("\n".join([f"{name} ended with exit code {code}:", *lines]))

    def _found(self, path: str) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self._api.get(path).status_code == httpx.codes.OK
        return False

    def _containerd_answers(self) -> bool:
        return self._succeeds("ctr", "version")

    def _resolves(self) -> bool:
        return self._succeeds(
            "busybox", "nslookup", "kubernetes.default.svc.cluster.local", config.DNS_SERVICE
        )

    def _succeeds(self, *argv: str) -> bool:
        with contextlib.suppress(ClusterError):
            self.in_cell(argv, timeout=5.0)
            return True
        return False

    def in_cell(self, argv: Sequence[str], timeout: float = 60.0) -> str:
        """Run a command in the cell, where cluster addresses work; returns and raises as `kubectl` does."""
        return run(tuple(self._cell.command(argv)), env=self._environment, timeout=timeout)

    def load_images(self) -> None:
        """Build all images of this checkout and import them at once, so that shared layers are read once."""
        self._load(images.NAMES)

    def load_image(self, name_or_archive: str | Path) -> None:
        """Build and import one of our images, or import an archive."""
        if name_or_archive in images.NAMES:
            self._load([str(name_or_archive)])
        else:
            self._need_node("load images")
            self._ctr_import(Path(name_or_archive))

    def _load(self, names: Sequence[str]) -> None:
        self._need_node("load images")
        with images.built(names, self._steps) as made, self._steps.step(f"images loaded: {', '.join(names)}"):
            self._import(lambda scratch: made)

    def _import(self, build: Callable[[Path], Sequence[Image]]) -> None:
        with tempfile.TemporaryDirectory(dir=self._layout.folder) as scratch:
            archive = Path(scratch) / "images.tar"
            with archive.open("wb") as target:
                write_archive(target, build(Path(scratch)))
            self._ctr_import(archive)

    def _ctr_import(self, archive: Path) -> None:
        self.in_cell(("ctr", "images", "import", str(archive.resolve())), timeout=120.0)

    def image(self, name: str) -> str:
        """The reference under which `load_image` imports it."""
        return reference(name)

    @contextlib.contextmanager
    def forward(self, namespace: str, service: str, port: int) -> Iterator[str]:
        """A relay to the Service's cluster IP (or to the pod's)."""
        self._need_node("forward ports")
        kind, _, name = service.rpartition("/")
        field = "{.status.podIP}" if kind == "pod" else "{.spec.clusterIP}"
        address = self.kubectl("-n", namespace, "get", kind or "service", name, "-o", f"jsonpath={field}")
        if address in ("", "None"):
            raise ClusterError(f"{service} in {namespace} has no address to forward to")
        with self._cell.relay(address, port) as local:
            yield f"http://127.0.0.1:{local}"

    def _need_node(self, what: str) -> None:
        if not self.can_run_pods:
            raise ClusterError(f"cannot {what}: this control plane has no node (a node needs root)")

    def stop(self, component: str) -> None:
        """End a component with SIGTERM, after ten seconds with SIGKILL."""
        self._end(component, signal.SIGTERM)

    def kill(self, component: str) -> None:
        """End a component with SIGKILL."""
        self._end(component, signal.SIGKILL)

    def _end(self, component: str, signum: int) -> None:
        self._known(component)
        self._running.discard(component)
        self._cell.stop(component, signum)

    def start(self, component: str) -> None:
        """Start a component that is not running, and wait until it answers.

        Raises:
            ClusterError: it is unknown, runs already, ended again or did not answer in time.
        """
        self._known(component)
        if component in self._running and component not in self._cell.ended():
            raise ClusterError(f"{component} runs already")
        self._launch(component)
        answers: dict[str, Callable[[], bool]] = {
            "etcd": lambda: self._found(SERVICE_ACCOUNT),
            "apiserver": lambda: self._found("/readyz"),
            "containerd": self._containerd_answers,
            "kubelet": lambda: self._cell.get("http://127.0.0.1:10248/healthz") == httpx.codes.OK,
            "proxy": lambda: self._cell.get("http://127.0.0.1:10256/healthz") == httpx.codes.OK,
        }
        if component in answers:
            self._wait(component, answers[component])

    def _launch(self, component: str) -> None:
        self._cell.start(component, self._commands[component], self._environment)
        self._running.add(component)

    def _known(self, component: str) -> None:
        if component not in self._commands:
            raise ClusterError(f"no component {component}; there are {', '.join(self._commands)}")

    def keep_logs(self) -> Path:
        """Copy the logs into the cache, where the last five such copies are kept."""
        kept = cache_root() / "logs"
        target = kept / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{self._layout.folder.name}"
        shutil.copytree(self._layout.folder / "logs", target, dirs_exist_ok=True)
        for old in sorted(kept.iterdir())[:-KEPT_LOGS]:
            shutil.rmtree(old, ignore_errors=True)
        return target


def gpu_patch(gpus: int) -> str:
    """Status patch that gives a node GPUs; with one field alone pods would see them only seconds later."""
    amount = {GPU: str(gpus)}
    return json.dumps({"status": {"capacity": amount, "allocatable": amount}})


def dns_manifest(node: str) -> str:
    """The manifest of the cluster's DNS, to run on `node`."""
    text = (Path(__file__).parent / "dns.yaml").read_text()
    for word, value in {"IMAGE": reference("coredns"), "ADDRESS": config.DNS_SERVICE, "NODE": node}.items():
        text = text.replace(f": {word}\n", f": {value}\n")
    return text
