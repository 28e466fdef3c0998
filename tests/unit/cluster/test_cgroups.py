"""A cluster's cgroups, in a folder that looks like each version's tree."""

from pathlib import Path

import pytest

from cluster.cell import cgroups


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    for name in ("cpu", "memory", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "alias").symlink_to("cpu")
    return tmp_path


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu io memory rdma\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    return tmp_path


def test_v1_has_one_in_every_hierarchy(v1: Path) -> None:
    made = cgroups.create("mine", v1)
    assert [str(folder.relative_to(v1)) for folder in made] == ["cpu/mine", "memory/mine", "unified/mine"]


def test_v2_has_one_and_its_controllers_are_delegated(v2: Path) -> None:
    assert cgroups.create("mine", v2) == [v2 / "mine"]
    assert (v2 / "cgroup.subtree_control").read_text() == "+cpu +memory +io"


def test_remove_takes_what_is_below_and_nothing_else(v1: Path) -> None:
    cgroups.create("mine", v1)
    cgroups.create("other", v1)
    (v1 / "cpu" / "mine" / "kubepods" / "pod1").mkdir(parents=True)
    assert cgroups.remove("mine", v1) == []
    assert [path.name for path in v1.glob("*/*")] == ["other"] * len(list(v1.iterdir()))
    assert cgroups.remove("mine", v1) == [], "again"


def test_remove_says_what_is_still_in_use(v1: Path) -> None:
    cgroups.create("mine", v1)
    (v1 / "cpu" / "mine" / "in-use").write_text("")
    assert cgroups.remove("mine", v1) == [v1 / "cpu" / "mine"]
