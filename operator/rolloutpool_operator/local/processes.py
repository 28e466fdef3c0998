"""Processes that are kept running: started, started again when they end, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FIRST_DELAY_SECONDS = 0.5
"""Wait before the first restart; doubles with every further one."""
MOST_DELAY_SECONDS = 30.0
"""Longest wait before a restart."""
STEADY_SECONDS = 30.0
"""A process that ran this long starts afresh with FIRST_DELAY_SECONDS."""
MAX_LOG_BYTES = 16 * 2**20
"""A log larger than this is moved aside when its process starts."""
TAIL_BYTES = 2000
"""Part of a log that is looked at for the reason of an exit."""
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def restart_delay(failures: int) -> float:
    """Seconds to wait before the restart after this many exits in a row (1: the first)."""
    return float(min(MOST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 16)))


@dataclass(frozen=True, kw_only=True)
class Command:
    """What to run."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables besides those of this process."""
    grace_seconds: float = 10.0
    """Time between SIGTERM and SIGKILL, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended."""

    name: str
    code: int
    """Exit code; negative: the signal."""
    log: Path
    last_line: str
    """Last line of its log."""

    @property
    def cause(self) -> str:
        """Why, and where to read more; the same for the same cause."""
        how = f"killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        said = f"; last line: {self.last_line}" if self.last_line else ""
        return f"{how}; log: {self.log}{said}"


class KeptProcess:
    """One process that is kept running until `stop`."""

    def __init__(
        self,
        name: str,
        command: Command,
        *,
        log: Path,
        on_start: Callable[[str], None],
        on_exit: Callable[[Exit], None],
        clock: Callable[[], float],
    ) -> None:
        """Describe a process; `start` runs it.

        Args:
            name: for messages.
            command: what to run.
            log: file that takes its output.
            on_start: called with the name after every start.
            on_exit: called after every unwanted end.
            clock: monotonic seconds.
        """
        self.name = name
        self.command = command
        self.log = log
        self.last_exit: Exit | None = None
        self._on_start = on_start
        self._on_exit = on_exit
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    @property
    def stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Begin to keep it running."""
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.name}")

    async def stop(self, *, within: float | None = None) -> None:
        """End it: SIGTERM, then SIGKILL to its whole process group after its grace time.

        Args:
            within: shorter grace time, in seconds.
        """
        grace = self.command.grace_seconds if within is None else min(within, self.command.grace_seconds)
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=grace)
            if late and self._process is not None:
                _kill_group(self._process.pid)
            await self._task

    async def _keep(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = self._clock()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            failures = 1 if self._clock() - began >= STEADY_SECONDS else failures + 1
            delay = restart_delay(failures)
            self.last_exit = Exit(name=self.name, code=code, log=self.log, last_line=last_line(self.log))
            self._on_exit(self.last_exit)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def _run_once(self) -> int:
        _move_large_aside(self.log)
        with self.log.open("ab") as output:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command.argv,
                    env={**os.environ, **self.command.env},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C in the terminal is for the parent, which ends its own
                    preexec_fn=_die_with(os.getpid()),
                )
            except OSError as error:
                output.write(f"could not start: {error}\n".encode())
                return 127
        if self._stopping.is_set():
            self._process.terminate()
        self._on_start(self.name)
        code = await self._process.wait()
        _kill_group(self._process.pid)  # what it leaves behind would hold its memory and ports
        return code


def last_line(log: Path) -> str:
    """The last line of a log that is not empty, cut to 300 characters."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except FileNotFoundError:
        return ""
    return next((line[:300] for line in reversed(lines) if line), "")


def _die_with(parent: int) -> Callable[[], None] | None:
    """What a child does before exec so that it gets SIGTERM whenever `parent` dies (Linux only)."""
    libc = _libc
    if libc is None:
        return None

    def ask_kernel() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask_kernel


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _move_large_aside(log: Path) -> None:
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
