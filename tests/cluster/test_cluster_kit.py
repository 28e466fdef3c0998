"""The test cluster itself: what the other suites rely on, and that nothing of it is left behind."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster, ClusterError, open_cluster
from cluster.cache import cache_root
from cluster.cell import cgroups
from cluster.gobuild import GoModule, build_module
from cluster.lifetime import sweep
from cluster.progress import Steps

E2E = Path(__file__).resolve().parents[2] / "e2e"
GPU = "nvidia.com/gpu"
GPUS = r"jsonpath={.status.allocatable.nvidia\.com/gpu}"
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
SERVE = "hostname > /tmp/index.html; exec python3 -m http.server 8000 -d /tmp"
PROBE = {"httpGet": {"path": "/index.html", "port": 8000}, "periodSeconds": 1}


def pod(name: str, image: str, command: list[str], **spec: Any) -> dict[str, Any]:
    """A pod that the restricted pod security standard takes."""
    gpus, probe = spec.pop("gpus", 0), spec.pop("probe", None)
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "resources": {"limits": {GPU: str(gpus)} if gpus else {}},
        "readinessProbe": probe,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "securityContext": RESTRICTED,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            **spec,
        },
    }


def wait_until(what: str, holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)


class Namespace:
    """kubectl in one namespace."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name

    def kubectl(self, *args: str, **options: Any) -> str:
        return self.cluster.kubectl("-n", self.name, *args, **options)

    def apply(self, *manifests: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", input="\n---\n".join(map(json.dumps, manifests)))

    def wait(self, name: str, condition: str) -> None:
        self.kubectl("wait", f"pod/{name}", f"--for={condition}", "--timeout=30s")

    def python(self, name: str, code: str) -> str:
        return self.kubectl("exec", name, "--", "python3", "-c", code).strip()

    def fetches(self, name: str, url: str) -> bool:
        """Whether the pod `name` gets an answer from `url` on a new connection."""
        try:
            self.python(name, f"import urllib.request as u; u.urlopen('{url}', timeout=1)")
        except ClusterError:
            return False
        return True


@pytest.fixture(scope="module")
def kit(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace that takes only restricted pods, with a web server, its Service and a client."""
    cluster.load_images()
    cluster.kubectl("create", "namespace", "kit")
    cluster.kubectl("label", "namespace", "kit", "pod-security.kubernetes.io/enforce=restricted")
    namespace = Namespace(cluster, "kit")
    image = cluster.image("python")
    service = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]}
    namespace.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": service},
        pod("web", image, ["sh", "-c", SERVE], gpus=8, probe=PROBE),
        pod("client", image, ["sleep", "3600"]),
    )
    for name in ("web", "client"):
        namespace.wait(name, "condition=Ready")
    yield namespace
    cluster.kubectl("delete", "namespace", "kit", "--wait=false")


def test_restricted_pods_run_as_nobody_with_a_read_only_root(kit: Namespace) -> None:
    assert kit.kubectl("exec", "client", "--", "id", "-u").strip() == "65532"
    with pytest.raises(ClusterError, match="Read-only file system"):
        kit.python("client", "open('/x', 'w')")


def test_pod_security_is_enforced(kit: Namespace) -> None:
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        kit.kubectl("run", "free", "--image", kit.cluster.image("python"))


def test_service_name_works_in_a_pod(kit: Namespace) -> None:
    code = "import urllib.request as u; print(u.urlopen('http://web.kit', timeout=5).read().decode())"
    assert kit.python("client", code) == "web"


def test_forward_lends_a_service_to_this_machine(kit: Namespace) -> None:
    for target, port in (("web", 80), ("pod/web", 8000)):
        with kit.cluster.forward("kit", target, port) as url:
            assert urllib.request.urlopen(f"{url}/index.html", timeout=5).read() == b"web\n"


def test_forward_names_a_service_that_is_not_there(kit: Namespace) -> None:
    with (
        pytest.raises(ClusterError, match='services "nothing" not found'),
        kit.cluster.forward("kit", "nothing", 80),
    ):
        pass


def test_network_policy_denies_then_allows(kit: Namespace) -> None:
    if not kit.cluster.enforces_network_policy:
        pytest.skip("this cluster does not enforce NetworkPolicy (the kernel cannot queue packets)")
    everyone: dict[str, Any] = {"podSelector": {}}
    deny = policy("deny", {**everyone, "policyTypes": ["Ingress"]})
    from_client = {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": 8000}]}
    assert kit.fetches("client", "http://web")
    kit.apply(deny)
    wait_until("policy denies", lambda: not kit.fetches("client", "http://web"))
    kit.apply(policy("allow", {**everyone, "ingress": [from_client]}))
    wait_until("policy allows", lambda: kit.fetches("client", "http://web"))
    kit.kubectl("delete", "networkpolicy", "--all")


def policy(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def test_a_ninth_gpu_is_refused(kit: Namespace) -> None:
    kit.apply(pod("ninth", kit.cluster.image("python"), ["sleep", "3600"], gpus=1))
    kit.wait("ninth", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=Unschedulable")
    assert f"Insufficient {GPU}" in kit.kubectl("get", "pod", "ninth", "-o", "jsonpath={.status.conditions}")
    kit.kubectl("delete", "pod", "ninth")


def test_a_node_without_kubelet_takes_pods_and_lets_them_go(kit: Namespace) -> None:
    kit.cluster.add_node("extra", gpus=4, labels={"pool": "extra"})
    for name, gpus in (("first", 4), ("second", 1)):
        image = kit.cluster.image("python")
        kit.apply(pod(name, image, ["sleep", "3600"], gpus=gpus, nodeSelector={"pool": "extra"}))
    kit.wait("first", "condition=PodScheduled")
    assert kit.kubectl("get", "pod", "first", "-o", "jsonpath={.spec.nodeName}") == "extra"
    kit.wait("second", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=Unschedulable")
    kit.kubectl("delete", "pod", "first", "--timeout=20s")
    kit.wait("second", "condition=PodScheduled")
    kit.kubectl("delete", "pod", "second", "--timeout=20s")
    kit.cluster.remove_node("extra")


SOLVE = """
import cbcbox, pulp
problem, x = pulp.LpProblem("p", pulp.LpMaximize), pulp.LpVariable("x", upBound=3.5, cat="Integer")
problem += x
problem.solve(pulp.COIN_CMD(path=cbcbox.cbc_bin_path(), msg=False))
assert x.value() == 3
"""
IMPORTS = [
    pytest.param("router", "import aiohttp, lightkube, prometheus_client, rolloutpool_router", id="router"),
    pytest.param("emulator", "import aiohttp, rolloutpool_sim, rolloutpool_router.core", id="emulator"),
    pytest.param("operator", "import kopf, kubernetes, httpx, rolloutpool_operator", id="operator"),
    pytest.param("operator", SOLVE, id="operator's solver"),
]


@pytest.mark.parametrize(("name", "code"), IMPORTS)
def test_images_have_what_they_need(kit: Namespace, name: str, code: str) -> None:
    kit.apply(pod("imports", kit.cluster.image(name), ["python3", "-c", code]))
    kit.wait("imports", "jsonpath={.status.phase}=Succeeded")
    kit.kubectl("delete", "pod", "imports")


def test_apiserver_comes_back_after_kill(kit: Namespace) -> None:
    kit.cluster.kill("apiserver")
    with pytest.raises(ClusterError):
        kit.kubectl("get", "pods", timeout=1.0)
    kit.cluster.start("apiserver")
    assert "Running" in kit.kubectl("get", "pod", "web")


def test_kubelet_comes_back_with_its_pods_and_gpus(kit: Namespace) -> None:
    kit.cluster.kill("kubelet")
    kit.cluster.start("kubelet")
    assert "Running" in kit.kubectl("get", "pod", "web")
    assert kit.kubectl("get", "node", "node1", "-o", GPUS) == "8"


def test_unknown_component(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="no component etdc; there are etcd, apiserver"):
        cluster.kill("etdc")


class Traces:
    """What the cluster `name` has on this machine, as strings that say where."""

    def __init__(self, name: str) -> None:
        self.name, self.folder = name, cache_root() / "run" / name
        self._networks: set[str] = set()

    def processes(self) -> dict[int, str]:
        """Pid to command line; once seen, the cell's network tells which processes are in it."""
        seen: list[tuple[int, str, str]] = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it may end while we look
                words = (process / "cmdline").read_bytes().decode(errors="replace")
                seen.append((int(process.name), words, os.readlink(process / "ns" / "net")))
        mine = {network for _, words, network in seen if str(self.folder) in words}
        self._networks |= mine - {os.readlink("/proc/self/ns/net")}
        return {
            pid: words
            for pid, words, network in seen
            if str(self.folder) in words or network in self._networks
        }

    def left(self) -> list[str]:
        groups = [folder for parent in cgroups.hierarchies() for folder in parent.glob(f"*{self.name}*")]
        mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if self.name in line]
        folders = [self.folder] if self.folder.exists() else []
        return [*map(str, groups), *mounts, *map(str, folders), *self.processes().values()]

    def expect_none(self) -> None:
        with contextlib.suppress(AssertionError):
            wait_until("nothing left", lambda: not self.left())
        assert self.left() == []


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


@pytest.fixture
def _builtin(cluster: Cluster) -> None:
    if os.environ.get("E2E_CLUSTER", "builtin") != "builtin":
        pytest.skip("only the builtin cluster is in our hands")


@pytest.mark.usefixtures("_builtin")
def test_two_clusters_side_by_side_and_nothing_left_of_the_second(cluster: Cluster) -> None:
    before, traces = interfaces(), Traces("second-of-two")
    with open_cluster(name=traces.name) as second:
        second.kubectl("create", "configmap", "only-here")
        assert traces.processes()
        with pytest.raises(ClusterError, match="not found"):
            cluster.kubectl("get", "configmap", "only-here")
        with pytest.raises(ClusterError, match="already"), open_cluster(name=traces.name):
            pass
    traces.expect_none()
    assert interfaces() == before
    assert "Running" in cluster.kubectl("get", "pods", "-A")


@contextlib.contextmanager
def command_up(name: str, until: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m cluster up` as a process of its own that has said `until`."""
    argv = [sys.executable, "-m", "cluster", "up", "--no-load", "--name", name]
    environment = {**os.environ, "PYTHONPATH": str(E2E)}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment) as command:
        assert command.stderr is not None
        assert any(until in line for line in command.stderr)
        yield command
        command.stderr.read()


ENDS = [
    pytest.param(signal.SIGINT, "kube-apiserver answers", id="SIGINT half-way"),
    pytest.param(signal.SIGTERM, "cell", id="SIGTERM at the start"),
    pytest.param(signal.SIGKILL, "Ctrl-C ends it", id="SIGKILL when it is up"),
]


@pytest.mark.usefixtures("_builtin")
@pytest.mark.parametrize(("signum", "until"), ENDS)
def test_nothing_left_after_a_signal(signum: int, until: str) -> None:
    traces = Traces(f"ended-by-{int(signum)}")
    with command_up(traces.name, until) as command:
        assert traces.processes()
        command.send_signal(signum)
    traces.expect_none()


@pytest.mark.usefixtures("_builtin")
def test_what_is_left_when_process_1_is_killed_too_is_swept() -> None:
    traces = Traces("swept")
    with command_up(traces.name, "cell") as command:
        command.send_signal(signal.SIGSTOP)  # or it would clean up itself
        for pid in traces.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.kill()
    assert traces.left() != []
    # A killed process holds its lock until the kernel has taken it apart.
    wait_until("swept", lambda: traces.name in sweep())
    assert traces.left() == []


@pytest.mark.usefixtures("_builtin")
def test_bare_control_plane_needs_no_namespaces() -> None:
    traces = Traces("bare")
    with open_cluster(name=traces.name, node=False) as bare:
        assert not bare.can_run_pods
        bare.add_node("only", gpus=2)
        bare.apply(json.dumps(pod("tiny", "nowhere/nothing", ["true"], gpus=2)))
        bare.kubectl("wait", "pod/tiny", "--for=condition=PodScheduled", "--timeout=30s")
        with pytest.raises(ClusterError, match="no node"):
            bare.load_image("python")
    traces.expect_none()


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        pytest.param("func main() {}", None, id="builds"),
        pytest.param("func main() { missing() }", "undefined: missing", id="does not build"),
    ],
)
def test_a_program_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, fault: str | None
) -> None:
    """With warnings as errors, as at the first use of a cluster within tests: nothing may be left open."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.com/hello\n\ngo 1.26\n")
    (folder / "go.sum").write_text("")
    (folder / "main.go").write_text(f"package main\n\n{source}\n")
    module = GoModule("hello", "a program", folder, packages=(".",), ldflags="-s -w", minutes=0.1)
    steps = Steps(lambda line: None)
    if fault is not None:
        with pytest.raises(ClusterError, match=fault):
            build_module(module, steps)
    else:
        assert build_module(module, steps) == build_module(module, steps)
    gc.collect()
