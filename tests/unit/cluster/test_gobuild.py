"""The Go modules: pinned, stamped with their version, built anew when something of theirs changes."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import gobuild
from cluster.gobuild import GoModule

KUBERNETES, COREDNS, NETPOL = gobuild.MODULES


def test_programs_are_named_as_go_names_them() -> None:
    assert gobuild.programs(KUBERNETES) == (*gobuild.COMMANDS, "etcd", "pause")
    assert gobuild.programs(COREDNS) == ("coredns",)


def test_the_version_is_pinned_and_stamped() -> None:
    text = (KUBERNETES.folder / "go.mod").read_text()
    staging = "0" + gobuild.KUBERNETES.removeprefix("1")
    assert f"k8s.io/kubernetes v{gobuild.KUBERNETES}" in text
    assert len(re.findall(rf"^\tk8s\.io/\S+ => k8s\.io/\S+ v{re.escape(staging)}$", text, re.MULTILINE)) == 33
    assert f"gitVersion=v{gobuild.KUBERNETES}" in KUBERNETES.ldflags
    assert "gitMajor=1 " in KUBERNETES.ldflags


@pytest.fixture
def module(tmp_path: Path) -> GoModule:
    folder = tmp_path / "netpol"
    shutil.copytree(NETPOL.folder, folder)
    return replace(NETPOL, folder=folder)


def test_key_stands_for_the_content_not_the_place(module: GoModule) -> None:
    assert gobuild.module_key(module) == gobuild.module_key(NETPOL)


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_key_changes_with_a_file(module: GoModule, name: str) -> None:
    (module.folder / name).write_text((module.folder / name).read_text() + "\n")
    assert gobuild.module_key(module) != gobuild.module_key(NETPOL)


def test_key_changes_with_the_flags(module: GoModule) -> None:
    assert gobuild.module_key(replace(module, ldflags="")) != gobuild.module_key(module)


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        pytest.param((1, 26), None, id="right"),
        pytest.param((1, 27), "`go` is 1.27", id="too new"),
        pytest.param((1, 25), "`go` is 1.25", id="too old"),
        pytest.param(None, "no `go` on PATH", id="none"),
    ],
)
def test_go_version(version: tuple[int, int] | None, fault: str | None) -> None:
    found = gobuild.go_fault(version)
    assert (found is None) == (fault is None)
    assert (fault or "") in (found or "")
