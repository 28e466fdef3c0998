"""What the benchmarks need beside this project: other routers from PyPI, wrk and nginx from the system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from cluster.cache import build_once, digest
from cluster.progress import Steps
from router_bench.errors import BenchError

PEERS = ("sglang-router", "vllm-router")
PROFILER = "py-spy"
TOOLS = {"wrk": "wrk", "nginx": "nginx-light", "taskset": "util-linux"}
"""Programs, and the Debian packages that have them."""


def cache_folder() -> Path:
    """`${XDG_CACHE_HOME:-~/.cache}/rolloutpool/router-bench`, made if need be."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "rolloutpool" / "router-bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def location(package: str) -> Path:
    """Where the environment of a package is, or will be: one for each range of versions and Python."""
    pins = digest([_requirements(package).read_bytes()])
    return cache_folder() / f"{package}-python{sys.version_info[0]}.{sys.version_info[1]}-{pins}"


def python_of(package: str) -> Path:
    """The Python of a package's environment.

    Raises:
        BenchError: it has not been made.
    """
    python = location(package) / "bin" / "python"
    if not python.exists():
        raise BenchError(f"{package} is not installed: run `PYTHONPATH=e2e python -m router_bench install`")
    return python


def version_of(package: str) -> str:
    """The installed version of a package, from its environment."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([python_of(package), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def install(package: str, steps: Steps) -> Path:
    """Make a package's environment from PyPI unless it is there (tens of MB); returns its folder.

    Raises:
        BenchError: pip failed; nothing is left behind then.
    """
    target = location(package)
    if target.exists():
        return target
    with steps.step(f"installed {package} from PyPI into {target}"):
        return build_once(target, lambda aside: _build(aside, package))


def check_tools() -> None:
    """See that the programs are there that the benchmarks run.

    Raises:
        BenchError: one is missing; says how to install it.
    """
    missing = [name for name in TOOLS if not shutil.which(name, path=_search_path())]
    if missing:
        packages = " ".join(TOOLS[name] for name in missing)
        raise BenchError(f"needs {', '.join(missing)} on PATH: apt-get install {packages}")


def program(name: str) -> str:
    """The path of a program that `check_tools` found; nginx is often in /usr/sbin, which users lack."""
    found = shutil.which(name, path=_search_path())
    assert found is not None
    return found


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


def _requirements(package: str) -> Path:
    return Path(__file__).with_name(f"requirements-{package}.txt")


def _build(aside: Path, package: str) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(aside)])
    pip = [sys.executable, "-m", "pip", "--python", str(aside / "bin" / "python"), "install"]
    options = ["--quiet", "--only-binary", ":all:", "--disable-pip-version-check"]
    _run([*pip, *options, "-r", str(_requirements(package))])


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(argv[:5])} ... failed: {done.stderr.strip()[-1000:]}")
