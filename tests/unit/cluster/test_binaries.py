"""Where programs come from: KUBEBUILDER_ASSETS first, then the cache."""

from pathlib import Path

import pytest

from cluster import binaries, downloads, gobuild
from cluster.progress import Steps


def fill(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def full(cache: Path) -> Path:
    """A cache with everything for a control plane."""
    fill(gobuild.module_folder(gobuild.MODULES[0]), *binaries.CONTROL_PLANE, "kubelet", "kube-proxy", "pause")
    fill(downloads.clients_folder(), *binaries.CLIENTS)
    return cache


def test_everything_is_missing_from_an_empty_cache(cache: Path) -> None:
    assert binaries.missing_from_cache(node=True) == ("kubernetes", "coredns", "netpol", "clients", "debian")
    assert binaries.missing_from_cache(node=False) == ("kubernetes", "clients")


def test_a_control_plane_needs_less(full: Path) -> None:
    assert binaries.missing_from_cache(node=False) == ()
    assert binaries.missing_from_cache(node=True) == ("coredns", "netpol", "debian")
    found = binaries.resolve(Steps(None), node=False)
    assert set(found.programs) == {*binaries.CONTROL_PLANE, *binaries.CLIENTS}
    assert found.debian is None


def test_assets_come_first_and_the_cache_fills_their_gaps(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tmp_path / "assets"
    fill(assets, "etcd", "kube-apiserver", "kubectl")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    found = binaries.resolve(Steps(None), node=False)
    assert {name for name, path in found.programs.items() if path.parent == assets} == {
        "etcd",
        "kube-apiserver",
        "kubectl",
    }
    assert found["kube-scheduler"].is_relative_to(full)
    assert found["helm"].is_relative_to(full)


def test_assets_alone_can_do_without_a_build(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "assets", *binaries.CONTROL_PLANE, *binaries.CLIENTS)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert binaries.missing_from_cache(node=False) == ()
    assert binaries.resolve(Steps(None), node=False)["helm"] == tmp_path / "assets" / "helm"
