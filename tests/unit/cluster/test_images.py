"""The app layer: only what an image needs, as it is in the checkout, compiled so that times do not matter."""

import struct
import tarfile
from pathlib import Path

import pytest

from cluster.components import Component
from cluster.errors import ClusterError
from cluster.images import NAMES, app_layer, built, copy_package
from cluster.progress import Steps
from cluster.pyruntime import shared_libraries

PYPROJECT = """
[project]
name = "rolloutpool"
version = "1.2.3"
[tool.hatch.build.targets.wheel]
packages = ["side/one", "side/two"]
"""
COMPONENT = Component(name="x", extra="x", packages=("one", "two.core"), module="one", dockerfile="x")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    files = {
        "pyproject.toml": PYPROJECT,
        "side/one/__init__.py": "ONE = 1\n",
        "side/one/data.yaml": "a: 1\n",
        "side/one/__pycache__/old.pyc": "stale",
        "side/two/__init__.py": "",
        "side/two/core/__init__.py": "",
        "side/two/shell.py": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_subpackage_comes_without_its_siblings(project: Path, tmp_path: Path) -> None:
    copy_package("two.core", {"two": "side/two"}, project, tmp_path / "app")
    files = sorted(str(path.relative_to(tmp_path / "app")) for path in (tmp_path / "app").rglob("*.py"))
    assert files == ["two/__init__.py", "two/core/__init__.py"]


def test_app_layer(project: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with tarfile.open(app_layer(COMPONENT, scratch, project).path) as tar:
        names = {name.removeprefix("opt/app/") for name in tar.getnames()}
        compiled = next(name for name in tar.getnames() if "one/__pycache__/__init__" in name)
        handle = tar.extractfile(compiled)
        assert handle is not None
        flags = struct.unpack("<I", handle.read(8)[4:])[0]
    assert {"one/__init__.py", "one/data.yaml", "two/core/__init__.py"} <= names
    assert "rolloutpool-dev.dist-info/METADATA" in names
    assert not any("old.pyc" in name or "shell" in name for name in names)
    assert flags == 0b01, "by hash and unchecked (PEP 552), since the layer has no times"


def test_unknown_image() -> None:
    with (
        pytest.raises(ClusterError, match=f"no image ruoter; there are {', '.join(NAMES)}"),
        built(["ruoter"], Steps(None)),
    ):
        pass


def test_libraries_are_placed_where_the_loader_looks(tmp_path: Path) -> None:
    found = shared_libraries([Path("/bin/sh")])
    assert any(name.endswith("/libc.so.6") for name in found)
    assert all(path.is_file() and not path.is_symlink() for path in found.values())
    assert all(name.split("/")[0].startswith(("lib", "usr")) for name in found)
