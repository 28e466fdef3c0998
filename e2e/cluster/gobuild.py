"""Builds Kubernetes, etcd, CoreDNS and the NetworkPolicy enforcer from Go modules pinned beside this file."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.cache import build_once, cache_root, digest
from cluster.errors import ClusterError
from cluster.progress import Note, Steps

HERE = Path(__file__).resolve().parent
KUBERNETES = "1.36.3"
GO = (1, 26)
"""Go 1.27's new JSON package breaks this Kubernetes' /openapi, and with it every `kubectl apply`."""


@dataclass(frozen=True)
class GoModule:
    """A Go module: its folder, packages to build, linker flags, and minutes from nothing on two cores."""

    name: str
    title: str
    folder: Path
    packages: tuple[str, ...]
    ldflags: str
    minutes: float


def _kubernetes_ldflags() -> str:
    major, minor, _ = KUBERNETES.split(".")
    values = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    # Without a version the server says v0.0.0-master, and every Helm chart's kubeVersion check fails.
    return " ".join(
        ["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items())]
    )


COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
MODULES = (
    GoModule(
        name="kubernetes",
        title=f"Kubernetes {KUBERNETES} and etcd",
        folder=HERE,
        packages=(*(f"k8s.io/kubernetes/cmd/{name}" for name in COMMANDS), "./etcd", "./pause"),
        ldflags=_kubernetes_ldflags(),
        minutes=7,
    ),
    GoModule("coredns", "CoreDNS", HERE / "coredns", packages=(".",), ldflags="-s -w", minutes=1.5),
    GoModule(
        "netpol", "NetworkPolicy enforcer", HERE / "netpol", packages=(".",), ldflags="-s -w", minutes=2.5
    ),
)


def programs(module: GoModule) -> tuple[str, ...]:
    """Names of the programs that `module` yields."""
    return tuple(module.name if package == "." else package.rsplit("/", 1)[-1] for package in module.packages)


def module_key(module: GoModule) -> str:
    """Stands for everything that decides what the build yields, save the Go version."""
    mains = sorted(module.folder.glob("*.go"))
    mains += [
        path
        for name in module.packages
        if name != "."
        for path in sorted((module.folder / name).glob("*.go"))
    ]
    files = [module.folder / "go.mod", module.folder / "go.sum", *mains]
    return digest(
        [platform.machine(), module.ldflags, *module.packages, *(path.read_bytes() for path in files)]
    )


def module_folder(module: GoModule) -> Path:
    """Where the cache has, or will have, the programs of `module`."""
    return cache_root() / f"{module.name}-{module_key(module)}"


def go_version() -> tuple[int, int] | None:
    """(major, minor) of the machine's Go, None without Go."""
    if not shutil.which("go"):
        return None
    output = subprocess.run(
        ["go", "env", "GOVERSION"], env=_environment(), capture_output=True, text=True, check=False, cwd="/"
    ).stdout
    match = re.match(r"go(\d+)\.(\d+)", output)
    return (int(match[1]), int(match[2])) if match else None


def go_fault(version: tuple[int, int] | None) -> str | None:
    """Why this Go cannot build the cluster, in a few words; None where it can."""
    wanted = f"needs Go {GO[0]}.{GO[1]} to build Kubernetes {KUBERNETES} once"
    if version is None:
        return f"{wanted}, and there is no `go` on PATH"
    if version != GO:
        return f"{wanted}, and `go` is {version[0]}.{version[1]}"
    return None


def build_module(module: GoModule, steps: Steps) -> Path:
    """Return the folder with the programs of `module`, built into the cache if it is not there yet.

    Raises:
        ClusterError: no Go, another Go than 1.26, or a failed build (with its last lines).
    """
    folder = module_folder(module)
    if folder.exists():
        return folder
    if fault := go_fault(go_version()):
        raise ClusterError(f"the cluster {fault}")
    what = f"{module.title}, from source (once; about {module.minutes:g} min on two cores)"
    with steps.step(what) as note:
        return build_once(folder, lambda aside: _go_build(module, aside, note))


def _environment() -> dict[str, str]:
    # No cgo: the programs run in any image and on any libc. No other toolchain than the one that was checked.
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}


def _go_build(module: GoModule, target: Path, note: Note) -> None:
    note("fetching modules")
    total = len(_go(module, ["list", "-deps", *module.packages]).splitlines())
    flags = ["-v", "-trimpath", "-buildvcs=false", f"-ldflags={module.ldflags}", "-o", f"{target}/"]
    lines = []
    with subprocess.Popen(
        ["nice", "go", "build", *flags, *module.packages],
        cwd=module.folder,
        env=_environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:  # with -v: the name of each package that had to be compiled
            lines.append(line)
            note(f"{len(lines)} of at most {total} packages")
    if process.returncode:
        raise ClusterError(f"go build in {module.folder} failed:\n{''.join(lines[-20:])}")


def _go(module: GoModule, words: Sequence[str]) -> str:
    done = subprocess.run(
        ["go", *words], cwd=module.folder, env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ClusterError(f"go {words[0]} in {module.folder} failed:\n{done.stderr[-2000:]}")
    return done.stdout
