"""The processes that run: started, replaced and ended one by one, as a kubelet does it with pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutpool_operator.local.children import ProcessSpec
from rolloutpool_operator.local.processes import Exit, KeptProcess


@dataclass
class Running:
    """A process and what it is made from."""

    spec: ProcessSpec
    process: KeptProcess
    before: KeptProcess | None = None
    """The process of an earlier spec, which ends before this one's starts."""
    deleting: bool = False


class Supervisor:
    """Runs processes by their names."""

    def __init__(
        self, logs: Path, *, on_change: Callable[[str], None], on_exit: Callable[[Exit], None]
    ) -> None:
        """Run nothing yet.

        Args:
            logs: folder for one log per process.
            on_change: called with the name when a process was started or is gone for good.
            on_exit: called after every unwanted end.
        """
        self._logs = logs
        self._on_change = on_change
        self._on_exit = on_exit
        self._running: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def all(self) -> tuple[Running, ...]:
        """Every process, those that are ending too."""
        return tuple(self._running.values())

    def find(self, name: str) -> Running | None:
        """One process."""
        return self._running.get(name)

    def apply(self, spec: ProcessSpec) -> None:
        """Run a process; one with another command is ended first, within its grace time, and then replaced.

        A process that is being deleted stays so: it can be applied again once it is gone.
        """
        running = self.find(spec.name)
        if running is None:
            running = self._running[spec.name] = Running(spec=spec, process=self._process(spec))
            running.process.start()
        elif not running.deleting and running.spec != spec:
            replace = running.spec.command != spec.command
            running.spec = spec
            if replace and running.before is None:  # else the replacement under way takes the newest spec
                running.before = running.process
                running.process = self._process(spec)
                self._on_change(spec.name)
                self._background(self._replace(running, running.before))

    def delete(self, name: str) -> None:
        """Begin to end a process; it is listed as deleting until it is gone."""
        running = self.find(name)
        if running is not None and not running.deleting:
            running.deleting = True
            self._background(self._end(running))

    async def stop(self, *, within: float) -> None:
        """End all at once, each within its grace time or `within` seconds, the shorter."""
        await asyncio.gather(*(self._end(running, within=within) for running in self.all()))

    def _process(self, spec: ProcessSpec) -> KeptProcess:
        return KeptProcess(
            spec.name,
            spec.command,
            log=self._logs / f"{spec.name}.log",
            on_start=self._on_change,
            on_exit=self._on_exit,
            clock=time.monotonic,
        )

    async def _replace(self, running: Running, before: KeptProcess) -> None:
        await before.stop()
        running.before = None
        if not running.deleting:
            running.process = self._process(running.spec)
            running.process.start()

    async def _end(self, running: Running, *, within: float | None = None) -> None:
        running.deleting = True
        if running.before is not None:
            await running.before.stop(within=within)
        await running.process.stop(within=within)
        self._running.pop(running.spec.name, None)
        self._on_change(running.spec.name)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
