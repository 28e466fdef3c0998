"""Processes that the benchmarks start, measure and end."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from router_bench.errors import BenchError

HOST = "127.0.0.1"
STOP_SECONDS = 5.0
START_SECONDS = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cpus:
    """Which processors each side may use, as `taskset -c` takes it; None: all."""

    router: str | None = None
    load: str | None = None
    """Load generators and engines."""


SHARED = Cpus()
PINNED = Cpus(router="0", load="1")


@dataclass(frozen=True)
class Process:
    """One that runs."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    """What it wrote."""

    def cpu_seconds(self) -> float:
        """Processor time that it has used so far, all threads."""
        fields = Path(f"/proc/{self.popen.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss_bytes(self) -> int:
        """Memory that it holds."""
        pages = int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def check(self) -> None:
        """See that it still runs.

        Raises:
            BenchError: it ended; has its last words.
        """
        if self.popen.poll() is not None:
            words = self.log.read_text(errors="replace")[-2000:]
            raise BenchError(f"{self.name} ended with code {self.popen.returncode}: {words}")


@contextlib.contextmanager
def running(
    name: str, argv: Sequence[str], *, folder: Path, cpus: str | None, env: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run a program within the block; what it writes goes to a file in `folder`."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [*pinning(cpus), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )
    try:
        yield Process(name, popen, log)
    finally:
        popen.send_signal(signal.SIGTERM)
        try:
            popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


def pinning(cpus: str | None) -> list[str]:
    """What goes before a command so that it runs on these processors only."""
    return ["taskset", "-c", cpus] if cpus is not None else []


def raise_file_limit() -> int:
    """Let this process and those it starts open as many files as the system allows; the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def wait_for(process: Process, ready: Callable[[], bool], *, seconds: float = START_SECONDS) -> None:
    """Wait until a process answers: `ready` is called again and again until it returns True.

    Raises:
        BenchError: the process ended, or the time is over.
    """
    until = time.monotonic() + seconds
    while not ready():
        process.check()
        if time.monotonic() > until:
            words = process.log.read_text(errors="replace")[-2000:]
            raise BenchError(f"{process.name} was not ready within {seconds:.0f} s: {words}")
        time.sleep(0.1)
