"""The cluster's own cgroup in every hierarchy of cgroup v1, or in the one of cgroup v2."""

from collections.abc import Iterable
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "io", "hugetlb")


def hierarchies(root: Path = ROOT) -> list[Path]:
    """The folders that hold a cgroup tree: `root` itself with v2, one per controller with v1."""
    if (root / "cgroup.controllers").exists():
        return [root]
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())


def create(name: str, root: Path = ROOT) -> list[Path]:
    """Make the cgroup `name` wherever the kubelet will look for it; return its folders."""
    made = []
    for parent in hierarchies(root):
        folder = parent / name
        _delegate(parent)
        folder.mkdir(exist_ok=True)
        _delegate(folder)
        # An empty cpuset of cgroup v1 admits no process: it starts with what its parent has.
        for entry in ("cpuset.cpus", "cpuset.mems"):
            if (folder / "cpuset.cpu_exclusive").exists() and not (folder / entry).read_text().strip():
                (folder / entry).write_text((parent / entry).read_text())
        made.append(folder)
    return made


def _delegate(folder: Path) -> None:
    """With cgroup v2, let children of `folder` use the controllers that a kubelet needs."""
    control = folder / "cgroup.subtree_control"
    if folder.name == "unified" or not control.exists():
        return
    available = (folder / "cgroup.controllers").read_text().split()
    control.write_text(" ".join(f"+{name}" for name in V2_CONTROLLERS if name in available))


def remove(name: str, root: Path = ROOT) -> list[Path]:
    """Remove the cgroup `name` with all below it; return what could not be removed (still has processes)."""
    left = []
    for parent in hierarchies(root):
        for folder in _bottom_up(parent / name):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                left.append(folder)
    return left


def _bottom_up(folder: Path) -> Iterable[Path]:
    if not folder.is_dir():
        return
    for child in folder.iterdir():
        if child.is_dir():
            yield from _bottom_up(child)
    yield folder
