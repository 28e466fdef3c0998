"""Command lines and files of the components: two clusters share nothing, the caller stays out."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml

from cluster import config
from cluster.config import Layout

PROGRAMS = {
    name: Path("/bin-of") / name
    for name in (
        *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
        *("kubelet", "kube-proxy", "netpol"),
    )
}
CELL = Layout(folder=Path("/run-of/a"), address="10.99.0.1", cgroup="rolloutpool-a", debian=Path("/debian"))
BARE = Layout(
    folder=Path("/run-of/b"), address="127.0.0.1", api_port=1, etcd_port=2, etcd_peer_port=3, has_node=False
)


def test_a_cells_api_server_is_the_endpoint_that_pods_use() -> None:
    flags = config.apiserver(CELL, PROGRAMS["kube-apiserver"])
    assert {"--bind-address=10.99.0.1", "--advertise-address=10.99.0.1", "--secure-port=6443"} <= set(flags)
    assert not any("reconciler" in flag for flag in flags)


def test_a_bare_control_plane_listens_on_loopback_alone() -> None:
    flags = [flag for command in config.control_plane_commands(BARE, PROGRAMS).values() for flag in command]
    assert {"--bind-address=127.0.0.1", "--endpoint-reconciler-type=none", "--secure-port=1"} <= set(flags)
    urls = [flag for flag in flags if flag.startswith(("--listen-", "--etcd-servers"))]
    assert urls
    assert all("http://127.0.0.1:" in url for url in urls)
    assert flags.count("--secure-port=0") == 2, "two clusters' schedulers and controllers must not collide"


def test_every_path_of_a_cell_is_its_own_or_hidden_in_it() -> None:
    texts = [*config.node_files(CELL, pause_image="pause").values()]
    texts += [" ".join(command) for command in config.control_plane_commands(CELL, PROGRAMS).values()]
    texts += [" ".join(command) for command in config.node_commands(CELL, PROGRAMS, {}).values()]
    allowed = ("/run-of/a", "/run/rolloutpool/", "/var/lib/kubelet", "/debian/", "/bin-of/", "/rolloutpool-a")
    for text in texts:
        for word in text.replace('"', " ").replace("=", " ").replace("unix://", " ").split():
            assert not word.startswith("/") or word.startswith(allowed), word


@pytest.mark.parametrize("layout", [pytest.param(CELL, id="cell"), pytest.param(BARE, id="bare")])
def test_components_get_nothing_of_the_callers_environment(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.setenv("PATH", "/caller")
    environment = config.cell_environment(layout)
    assert "HTTPS_PROXY" not in environment
    assert "/caller" not in environment["PATH"]
    assert environment["HOME"] == str(layout.folder)


def test_files_parse_and_agree() -> None:
    files = config.node_files(CELL, pause_image="localhost/x/pause:dev")
    containerd = tomllib.loads(files["containerd.toml"])
    kubelet = yaml.safe_load(files["kubelet.yaml"])
    network = json.loads(files["cni/10-bridge.conflist"])
    proxy = yaml.safe_load(files["proxy.yaml"])
    cri = containerd["plugins"]["io.containerd.grpc.v1.cri"]
    assert kubelet["containerRuntimeEndpoint"] == f"unix://{containerd['grpc']['address']}"
    assert kubelet["cgroupRoot"] == "/rolloutpool-a"
    assert cri["sandbox_image"] == "localhost/x/pause:dev"
    assert cri["cni"]["conf_dir"] == "/run-of/a/cni"
    assert network["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] == proxy["clusterCIDR"]


def test_a_socket_path_is_short_wherever_the_cluster_is() -> None:
    deep = Layout(folder=Path("/" + "x" * 300), address="10.99.0.1")
    assert len(str(deep.containerd_socket)) < 100


def test_labels_go_onto_the_node() -> None:
    assert "--node-labels=a/b=c,d=e" in config.kubelet(CELL, PROGRAMS["kubelet"], {"a/b": "c", "d": "e"})
