"""Image archives: layout as `docker save` writes it, shared layers once, the same bytes each time."""

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cluster.archive import Entry, Image, Layer, tree, write_archive, write_layer


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "run").write_text("#!/bin/sh\n")
    (folder / "bin" / "run").chmod(0o700)
    (folder / "data.txt").write_text("data")
    (folder / "link").symlink_to("data.txt")
    return folder


def members(layer: Layer) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(layer.path) as tar:
        return {info.name: info for info in tar.getmembers()}


def test_layer_belongs_to_root_and_has_no_times(tmp_path: Path, source: Path) -> None:
    found = members(write_layer(tmp_path / "layer.tar", tree(source, "/opt/app/")))
    assert list(found) == ["opt/app", "opt/app/bin", "opt/app/bin/run", "opt/app/data.txt", "opt/app/link"]
    assert {(info.uid, info.gid, info.mtime) for info in found.values()} == {(0, 0, 0)}
    assert (found["opt/app/bin/run"].mode, found["opt/app/data.txt"].mode) == (0o755, 0o644)
    assert found["opt/app/link"].linkname == "data.txt"


def test_layer_is_the_same_whatever_the_files_times(tmp_path: Path, source: Path) -> None:
    first = write_layer(tmp_path / "first.tar", tree(source, "app"))
    os.utime(source / "data.txt", (1, 1))
    second = write_layer(tmp_path / "second.tar", reversed(list(tree(source, "app"))))
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.digest == second.digest == hashlib.sha256(first.path.read_bytes()).hexdigest()


def test_tree_leaves_out_what_is_not_kept(source: Path) -> None:
    names = [entry.name for entry in tree(source, "app", lambda path: path.name != "bin")]
    assert sorted(names) == ["app", "app/data.txt", "app/link"]


def read_archive(data: bytes) -> tuple[list[str], dict[str, Any]]:
    """Member names, and the parsed JSON members."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
        texts = {name: tar.extractfile(name) for name in names if name.endswith(".json")}
        return names, {name: json.loads(handle.read()) for name, handle in texts.items() if handle}


def test_archive_names_everything_by_its_content(tmp_path: Path) -> None:
    base = write_layer(tmp_path / "base.tar", [Entry("etc/os", 0o644, b"base")])
    top = write_layer(tmp_path / "top.tar", [Entry("app", 0o755, b"app")])
    images = [
        Image("localhost/a:dev", (base, top), ("python3", "-m", "a"), environment={"A": "1"}),
        Image("localhost/b:dev", (base,), ("b",), user=""),
    ]
    target = io.BytesIO()
    write_archive(target, images)
    names, documents = read_archive(target.getvalue())
    manifest = documents["manifest.json"]
    assert names.count(f"{base.digest}/layer.tar") == 1, "a shared layer is written once"
    assert [entry["RepoTags"] for entry in manifest] == [["localhost/a:dev"], ["localhost/b:dev"]]
    assert manifest[0]["Layers"] == [f"{base.digest}/layer.tar", f"{top.digest}/layer.tar"]
    config = documents[manifest[0]["Config"]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{base.digest}", f"sha256:{top.digest}"]
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Entrypoint"] == ["python3", "-m", "a"]
    assert config["config"]["Env"] == ["A=1"]


def test_archive_is_reproducible(tmp_path: Path) -> None:
    layer = write_layer(tmp_path / "layer.tar", [Entry("x", 0o644, b"x")])
    written = []
    for _ in range(2):
        target = io.BytesIO()
        write_archive(target, [Image("localhost/a:dev", (layer,), ("a",))])
        written.append(target.getvalue())
    assert written[0] == written[1]
