"""A builtin cluster's life: its folder is claimed, it is brought up, and ended with all that was made."""

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from cluster import binaries, config
from cluster.binaries import Binaries
from cluster.builtin import BuiltinCluster
from cluster.cache import cache_root
from cluster.cell import cgroups
from cluster.cell.handle import Cell
from cluster.cell.init import Settings
from cluster.errors import ClusterError
from cluster.ports import free_ports
from cluster.progress import Steps

CELL_ADDRESS = "10.99.0.1"


def cgroup_name(cluster: str) -> str:
    """The cgroup that holds all pods of the cluster `cluster`."""
    return f"rolloutpool-{cluster}"


def runs_folder() -> Path:
    """Holds a folder for each running cluster."""
    folder = cache_root() / "run"
    folder.mkdir(exist_ok=True)
    return folder


def sweep() -> list[str]:
    """Remove what clusters left whose process 1 was killed too (a lock tells); returns their names."""
    swept = []
    with _claims():
        for folder in runs_folder().iterdir():
            with contextlib.suppress(OSError), (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder)
                swept.append(folder.name)
    return swept


@contextlib.contextmanager
def _claims() -> Iterator[None]:
    """One claims or sweeps at a time: a folder that was just made is not locked yet."""
    with (cache_root() / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove(folder: Path) -> None:
    cgroups.remove(cgroup_name(folder.name))
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def open_builtin(
    *, name: str | None, gpus: int, steps: Steps, keep: bool = False, node: bool = True
) -> Iterator[BuiltinCluster]:
    """Bring a cluster up, with a node where this process is root, and end it with all that it made.

    The logs are kept where the bring-up or the block fails, or `keep` asks for it; the report says where.

    Raises:
        ClusterError: a component ended or did not answer in time, or the name is taken.
    """
    has_node = node and os.geteuid() == 0
    programs = binaries.resolve(steps, node=has_node)
    sweep()
    folder = runs_folder() / (name or secrets.token_hex(3))
    started = time.monotonic()
    with _claimed(folder) as lock, steps.step("cell"):
        layout = _layout(folder, programs, has_node=has_node)
        cell = Cell(_settings(layout, lock))
    cluster = BuiltinCluster(cell=cell, layout=layout, programs=programs, steps=steps)
    try:
        cluster.up(gpus)
        steps.say(f"{time.monotonic() - started:7.1f} s  cluster {folder.name} is up")
        yield cluster
    except Exception:  # not Ctrl-C, which is no failure
        keep = True
        raise
    finally:
        if keep:
            steps.say(f"logs kept in {cluster.keep_logs()}")
        with steps.step("cluster ended"):
            cluster.close()
            cell.close()
            _remove(folder)


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[int]:
    """Make the folder and lock it; yields the lock's descriptor, which process 1 of the cell inherits."""
    with contextlib.ExitStack() as held:
        with _claims():
            try:
                folder.mkdir()
            except FileExistsError:
                raise ClusterError(f"there is a cluster {folder.name} already; choose another name") from None
            lock = held.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "logs").mkdir()
        yield lock.fileno()


def _layout(folder: Path, programs: Binaries, *, has_node: bool) -> config.Layout:
    if has_node:
        assert programs.debian is not None
        return config.Layout(
            folder=folder, address=CELL_ADDRESS, cgroup=cgroup_name(folder.name), debian=programs.debian
        )
    api, etcd, peer = free_ports(3)
    return config.Layout(
        folder=folder, address="127.0.0.1", api_port=api, etcd_port=etcd, etcd_peer_port=peer, has_node=False
    )


def _settings(layout: config.Layout, lock: int) -> Settings:
    if not layout.has_node:
        return Settings(folder=str(layout.folder), lock=lock, namespaced=False)
    return Settings(
        folder=str(layout.folder),
        lock=lock,
        namespaced=True,
        cgroup=layout.cgroup,
        address=layout.address,
        service_cidr=config.SERVICE_CIDR,
        busybox=str(layout.debian / "bin/busybox"),
    )
