"""What is built once: by one of two builders at a time, all of it or nothing."""

import threading
from pathlib import Path

import pytest

from cluster.cache import build_once, digest


def test_builds_only_what_is_missing(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(target: Path) -> None:
        built.append(target)
        (target / "file").write_text("done")

    for _ in range(2):
        assert (build_once(tmp_path / "thing", build) / "file").read_text() == "done"
    assert len(built) == 1


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(target: Path) -> None:
        (target / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path / "thing", build)
    assert [path.name for path in tmp_path.iterdir()] == ["thing.lock"]


def test_of_two_builders_one_waits(tmp_path: Path) -> None:
    started, go_on, builds = threading.Event(), threading.Event(), []

    def build(target: Path) -> None:
        builds.append(target)
        started.set()
        assert go_on.wait(10)

    threads = [threading.Thread(target=build_once, args=(tmp_path / "thing", build)) for _ in range(2)]
    threads[0].start()
    assert started.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(builds) == 1


def test_digest_tells_parts_apart() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest(["a", b"b"]) == digest([b"a", "b"])
