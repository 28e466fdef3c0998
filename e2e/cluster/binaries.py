"""Finds each program of the cluster: in KUBEBUILDER_ASSETS, else in the cache, which is filled if need be."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import downloads, gobuild
from cluster.progress import Steps

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = ("kubelet", "kube-proxy", "pause", "coredns", "netpol")
CLIENTS = ("kubectl", "helm")


@dataclass(frozen=True)
class Binaries:
    """Paths of the programs by name; `debian` is the tree of the node's Debian packages (None: no node)."""

    programs: Mapping[str, Path]
    debian: Path | None = None

    def __getitem__(self, name: str) -> Path:
        return self.programs[name]


def assets_folder() -> Path | None:
    """The folder that KUBEBUILDER_ASSETS names, None where it is unset."""
    value = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(value) if value else None


def in_folder(folder: Path | None, names: tuple[str, ...]) -> dict[str, Path]:
    """Those of `names` that `folder` has as files."""
    if folder is None:
        return {}
    return {name: folder / name for name in names if (folder / name).is_file()}


def resolve(steps: Steps, *, node: bool) -> Binaries:
    """Return every program, with `node` also those of a node; what neither place has is built or fetched.

    Raises:
        ClusterError: as the build and the downloads do.
    """
    wanted = (*CONTROL_PLANE, *CLIENTS, *(NODE if node else ()))
    found = in_folder(assets_folder(), wanted)
    for module in gobuild.MODULES:
        names = tuple(name for name in gobuild.programs(module) if name in wanted and name not in found)
        if names:
            found |= in_folder(gobuild.build_module(module, steps), names)
    if missing := tuple(name for name in CLIENTS if name not in found):
        found |= in_folder(downloads.fetch_clients(steps), missing)
    return Binaries(programs=found, debian=downloads.fetch_debian(steps) if node else None)


def missing_from_cache(*, node: bool) -> tuple[str, ...]:
    """What `resolve` would have to build or fetch: names of Go modules, "clients", "debian"."""
    wanted = (*CONTROL_PLANE, *CLIENTS, *(NODE if node else ()))
    found = in_folder(assets_folder(), wanted)
    gaps = [
        module.name
        for module in gobuild.MODULES
        if not gobuild.module_folder(module).exists()
        and any(name in wanted and name not in found for name in gobuild.programs(module))
    ]
    if not all(name in found for name in CLIENTS) and not downloads.clients_folder().exists():
        gaps.append("clients")
    if node and not downloads.debian_folder().exists():
        gaps.append("debian")
    return tuple(gaps)
