"""Running scenarios in processes of their own, one per run, as many at once as there are cores.

A process per run, rather than a pool of them: a run that is killed (out of memory, say) takes no other with
it, and Ctrl-C can end those under way at once.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Protocol

from rolloutpool_sim.fleet.result import FleetResult, Series
from rolloutpool_sim.fleet.scenario import Scenario

PROGRESS_STEP = 0.01
"""Part of a run between two reports of its progress."""
NO_SERIES = Series(
    time=(),
    completed={},
    active={},
    waiting={},
    caps={},
    used=(),
    resident=(),
    drift=(),
    hit_rate=(),
    preemptions=(),
)


class Simulate(Protocol):
    """What does a run: `rolloutpool_sim.fleet.run.run`. A function of a module, so that processes find it."""

    __module__: str

    def __call__(
        self, scenario: Scenario, *, seed: int, progress: Callable[[float], None] | None = None
    ) -> FleetResult:
        """Run a scenario; tells the part of it that is done as it goes on."""


@dataclass(frozen=True)
class Job:
    """One run to do."""

    key: str
    """Of its cell."""
    seed: int
    scenario: Scenario
    keep_series: bool
    """False: its course over time is dropped, which is most of a result."""


@dataclass(frozen=True)
class Progress:
    """A run has come this far."""

    job: Job
    fraction: float


@dataclass(frozen=True)
class Finished:
    """A run has ended."""

    job: Job
    result: FleetResult


@dataclass(frozen=True)
class Failed:
    """A run has ended without a result."""

    job: Job
    message: str


Update = Progress | Finished | Failed


def run_jobs(
    jobs: Sequence[Job], *, simulate: Simulate, workers: int, report: Callable[[Update], None]
) -> None:
    """Do all runs; however this ends, no process of it is left.

    Args:
        jobs: the runs, started in this order.
        simulate: does one.
        workers: most processes at once.
        report: called for all that happens, in this process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([simulate.__module__])
    pending = deque(jobs)
    under_way: dict[Connection, tuple[ForkServerProcess, Job]] = {}
    try:
        while pending or under_way:
            while pending and len(under_way) < workers:
                job = pending.popleft()
                reader, process = _start(context, simulate, job)
                under_way[reader] = (process, job)
            ready = wait(list(under_way))
            for reader in [reader for reader in under_way if reader in ready]:
                process, job = under_way[reader]
                update = _receive(reader, process, job)
                if not isinstance(update, Progress):
                    process.join()
                    reader.close()
                    del under_way[reader]
                report(update)
    finally:
        for process, _ in under_way.values():
            process.kill()
        for reader, (process, _) in under_way.items():
            process.join()
            reader.close()


def _start(context: ForkServerContext, simulate: Simulate, job: Job) -> tuple[Connection, ForkServerProcess]:
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(writer, simulate, job), daemon=True)
    process.start()
    # With this end closed here, the end of the process is the end of what can be read.
    writer.close()
    return reader, process


def _receive(reader: Connection, process: ForkServerProcess, job: Job) -> Update:
    try:
        update: Update = reader.recv()
    except EOFError:
        process.join()
        code = process.exitcode
        return Failed(job, f"its process ended with exit code {code}: is there memory for so many --jobs?")
    return update


def _work(writer: Connection, simulate: Simulate, job: Job) -> None:
    """Do one run, in its own process."""
    # Ctrl-C reaches every process of the terminal; only the one that reports may act on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = 0.0

    def progress(fraction: float) -> None:
        nonlocal told
        if fraction >= told + PROGRESS_STEP:
            told = fraction
            writer.send(Progress(job, fraction))

    try:
        result = simulate(job.scenario, seed=job.seed, progress=progress)
    except BrokenPipeError:
        return  # nobody waits for the result any more
    except Exception as error:
        writer.send(Failed(job, f"{type(error).__name__}: {error}"))
        return
    writer.send(Finished(job, result if job.keep_series else replace(result, series=NO_SERIES)))
