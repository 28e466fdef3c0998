"""Doing the runs of an experiment while showing how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rolloutpool_cli.simulate import runner
from rolloutpool_cli.simulate.runner import Failed, Finished, Job, Simulate, run_jobs
from rolloutpool_sim.fleet.result import FleetResult

REMEMBERED_SECONDS = 600.0
"""Over how long the speed is measured from which the time left is estimated."""
RUNS_PER_LINE = 10
"""Runs from one line of progress to the next where there is no terminal."""


@dataclass
class Runs:
    """What became of the runs so far."""

    planned: int
    results: dict[tuple[str, int], FleetResult] = field(default_factory=dict)
    """By key of the cell and seed."""
    failures: list[Failed] = field(default_factory=list)
    interrupted: bool = False
    """Whether Ctrl-C ended it."""
    _fractions: dict[tuple[str, int], float] = field(default_factory=dict)

    def note(self, update: runner.Update) -> None:
        """Take in what happened."""
        key = (update.job.key, update.job.seed)
        self._fractions[key] = update.fraction if isinstance(update, runner.Progress) else 1.0
        if isinstance(update, Finished):
            self.results[key] = update.result
        elif isinstance(update, Failed):
            self.failures.append(update)

    @property
    def ended(self) -> int:
        """Runs that are over, well or not."""
        return len(self.results) + len(self.failures)

    @property
    def done(self) -> float:
        """The same, with parts of those under way."""
        return sum(self._fractions.values())


def run_shown(jobs: Sequence[Job], *, simulate: Simulate, workers: int, console: Console) -> Runs:
    """Do the runs, with a bar on a terminal and a few lines elsewhere; Ctrl-C ends them.

    Args:
        jobs: the runs.
        simulate: does one.
        workers: most at once.
        console: where progress is shown.
    """
    runs = Runs(len(jobs))
    with _shown(runs, console) as show:

        def report(update: runner.Update) -> None:
            runs.note(update)
            show()

        try:
            run_jobs(jobs, simulate=simulate, workers=workers, report=report)
        except KeyboardInterrupt:
            runs.interrupted = True
    return runs


@contextmanager
def _shown(runs: Runs, console: Console) -> Iterator[Callable[[], None]]:
    """Show the state of the runs whenever the function that this gives is called."""
    if not console.is_terminal:
        yield _lines(runs, console)
        return
    bar = Progress(
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        speed_estimate_period=REMEMBERED_SECONDS,
    )
    with bar:
        task = bar.add_task(_text(runs), total=runs.planned)
        yield lambda: bar.update(task, completed=runs.done, description=_text(runs))


def _lines(runs: Runs, console: Console) -> Callable[[], None]:
    told = 0

    def show() -> None:
        nonlocal told
        if runs.ended >= min(told + RUNS_PER_LINE, runs.planned) > told:
            told = runs.ended
            console.print(_text(runs))

    return show


def _text(runs: Runs) -> str:
    failed = f", {len(runs.failures)} failed" if runs.failures else ""
    return f"{runs.ended} of {runs.planned} runs{failed}"
