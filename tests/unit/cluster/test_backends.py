"""The kind and current backends against stand-ins for kind, kubectl and helm, which note their calls."""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from cluster import ClusterError, open_cluster

STAND_IN = f"""#!{sys.executable}
import http.server, json, os, signal, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([os.path.basename(sys.argv[0]), os.getpid(), *sys.argv[1:]]) + "\\n")
if "port-forward" in sys.argv:
    port = int(sys.argv[-1].split(":")[0])
    http.server.HTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler).serve_forever()
if "fail" in sys.argv:
    sys.exit("this failed")
sys.stdout.write("output")
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-ins on PATH; returns the file with their calls."""
    for name in ("kind", "kubectl", "helm"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(STAND_IN)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def noted(calls: Path) -> list[list[str]]:
    """Program and arguments of each call."""
    lines = [json.loads(line) for line in calls.read_text().splitlines()]
    return [[name, *arguments] for name, _, *arguments in lines]


def test_kind_cluster_is_made_with_gpus_and_deleted(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2E_CLUSTER", "kind")
    with open_cluster(name="x", gpus=3) as cluster:
        assert cluster.image("router") == "localhost/rolloutpool/router:dev"
        cluster.load_image("/images/some.tar")
        with pytest.raises(ClusterError, match="only the builtin cluster can"):
            cluster.kill("etcd")
    create, label, patch, load, delete = noted(calls)
    assert create == ["kind", "create", "cluster", "--wait=120s", "--name", "rolloutpool-x"]
    assert label[:3] == ["kubectl", "label", "node/rolloutpool-x-control-plane"]
    assert json.loads(patch[-1])["status"]["allocatable"] == {"nvidia.com/gpu": "3"}
    assert load == ["kind", "load", "image-archive", "/images/some.tar", "--name", "rolloutpool-x"]
    assert delete == ["kind", "delete", "cluster", "--name", "rolloutpool-x"]


@pytest.fixture
def current(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "kubeconfig").write_text("")
    monkeypatch.setenv("E2E_CLUSTER", "current")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("E2E_IMAGE_REGISTRY", "registry.example/pool/")
    return calls


def test_current_uses_the_registrys_images(current: Path) -> None:
    with open_cluster() as cluster:
        cluster.load_images()
        assert cluster.image("operator") == "registry.example/pool/operator:dev"
        assert cluster.helm("list") == "output"
    assert noted(current) == [["helm", "list"]]


def test_current_needs_a_registry(current: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2E_IMAGE_REGISTRY")
    with pytest.raises(ClusterError, match="set E2E_IMAGE_REGISTRY"), open_cluster():
        pass


def test_a_failed_command_says_what_it_said(current: Path) -> None:
    with (
        open_cluster() as cluster,
        pytest.raises(ClusterError, match="kubectl fail: exit code 1: this failed"),
    ):
        cluster.kubectl("fail")


def test_port_forward_comes_back_when_it_dies(current: Path) -> None:
    with open_cluster() as cluster, cluster.forward("ns", "web", 80) as url:
        first = json.loads(current.read_text().splitlines()[-1])
        assert first[2:7] == ["-n", "ns", "port-forward", "--address=127.0.0.1", "svc/web"]
        os.kill(first[1], 15)
        deadline = time.monotonic() + 20
        while len(current.read_text().splitlines()) < 2 or not answers(url):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(url, timeout=1).status == 200)
    except OSError:
        return False
