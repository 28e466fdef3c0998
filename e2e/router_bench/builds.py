"""How our router runs in the benchmarks: by which Python, and whether its hot modules are compiled."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from router_bench.errors import BenchError

COMPILE = Path(__file__).parents[2] / "router" / "compile_router.py"
_ASK = "import platform, sysconfig; print(platform.python_version(), sysconfig.get_config_var('EXT_SUFFIX'))"


@dataclass(frozen=True)
class Build:
    """A Python, and what its environment has beside that of the benchmarks."""

    python: str
    version: str
    compiled: bool
    env: dict[str, str]

    @property
    def words(self) -> str:
        """For the report."""
        return f"{'compiled' if self.compiled else 'not compiled'}, by {self.python} ({self.version})"


def build(python: Path | None, *, compiled: bool) -> Build:
    """The build to measure; compiles first if need be (minutes, says so on stderr).

    Args:
        python: an interpreter to run with this environment's packages; None: this environment's.
        compiled: run the modules that `compile_router` compiles as the image does.

    Raises:
        BenchError: the interpreter cannot use this environment's packages, or compiling failed.
    """
    chosen = str(python or sys.executable)
    version = _version(chosen)
    path = [*([_compiled()] if compiled else []), *_packages()]
    return Build(chosen, version, compiled, {"PYTHONPATH": os.pathsep.join(path)})


def _compiled() -> str:
    done = subprocess.run([sys.executable, str(COMPILE)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BenchError("the router could not be compiled: see above")
    return done.stdout.strip()


def _version(python: str) -> str:
    try:
        done = subprocess.run([python, "-c", _ASK], stdout=subprocess.PIPE, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchError(f"{python} does not run: {error}") from error
    version, suffix = done.stdout.split()
    if suffix != (own := sysconfig.get_config_var("EXT_SUFFIX")):
        raise BenchError(f"{python} loads {suffix}, but this environment's packages are {own}: take another")
    return version


def _packages() -> list[str]:
    """Where this environment finds packages; the standard library is each Python's own."""
    stdlib = sysconfig.get_path("stdlib")
    return [each for each in sys.path if "-packages" in each or not Path(each).is_relative_to(stdlib)]
