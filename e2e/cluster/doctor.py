"""What keeps the builtin cluster from running on this machine: facts are gathered, then judged."""

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cluster import binaries, gobuild
from cluster.cache import cache_root

TOOLS = ("unshare", "nsenter")
HIDDEN = ("/run", "/var/lib", "/var/log")
"""Folders that a cell replaces by empty ones."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What decides whether the builtin cluster can run on this machine.

    `gaps` is what the cache lacks (see `binaries.missing_from_cache`), `go_fault` why Go could not fill it,
    `hidden` are folders that the cluster needs but would hide, `pip` whether this Python has pip.
    """

    linux: bool = True
    root: bool = True
    absent: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    go_fault: str | None = None
    apt: bool = True
    pip: bool = True
    hidden: tuple[str, ...] = ()


def reasons(facts: Facts, *, node: bool) -> list[str]:
    """One line for each thing that keeps the builtin cluster (with `node`: with pods) from running."""
    if not facts.linux:
        return ["needs Linux"]
    found = []
    if node and not facts.root:
        found.append("needs root (for namespaces, cgroups and containerd)")
    if node and facts.absent:
        found.append(f"needs {', '.join(facts.absent)} (of util-linux) on PATH")
    if node and facts.hidden:
        found.append(f"cannot run from {', '.join(facts.hidden)}, which a cell hides: use another folder")
    if facts.go_fault and set(facts.gaps) & {module.name for module in gobuild.MODULES}:
        found.append(facts.go_fault)
    if "debian" in facts.gaps and not facts.apt:
        found.append("needs apt-get and dpkg-deb to fetch containerd once")
    if "clients" in facts.gaps and not facts.pip:
        found.append("needs pip to fetch kubectl and helm once")
    return found


def gather(*, node: bool) -> Facts:
    """Look at this machine, for a cluster with or without a node."""
    if sys.platform != "linux":
        return Facts(linux=False)
    gaps = binaries.missing_from_cache(node=node)
    needed = (Path(sys.executable).resolve(), Path(sys.prefix), Path(__file__).resolve().parent, cache_root())
    return Facts(
        root=os.geteuid() == 0,
        absent=tuple(tool for tool in TOOLS if not shutil.which(tool)),
        gaps=gaps,
        go_fault=gobuild.go_fault(gobuild.go_version()) if gaps else None,
        apt=all(shutil.which(tool) for tool in ("apt-get", "dpkg-deb")),
        pip=find_spec("pip") is not None,
        hidden=tuple(str(path) for path in needed if any(path.is_relative_to(each) for each in HIDDEN)),
    )


def missing(*, node: bool = True) -> list[str]:
    """Why the builtin cluster cannot run pods (without `node`: at all) on this machine, one line each."""
    return reasons(gather(node=node), node=node)
