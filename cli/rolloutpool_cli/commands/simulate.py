"""`rolloutpool simulate`: variants of a pool compared on the fleet simulator."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rolloutpool_cli.console import FAILURE, USAGE_ERROR, fail, output, progress
from rolloutpool_cli.simulate.cells import Cell, cells, select
from rolloutpool_cli.simulate.changes import parse_changes
from rolloutpool_cli.simulate.display import run_shown
from rolloutpool_cli.simulate.experiment import Experiment
from rolloutpool_cli.simulate.outcome import Outcome
from rolloutpool_cli.simulate.read import InvalidExperiment, Source, parse_experiment
from rolloutpool_cli.simulate.runner import Job
from rolloutpool_cli.simulate.shipped import NoSuchFile, find, shipped
from rolloutpool_cli.simulate.sweep import SweepPoint, sweep_lines, sweep_points
from rolloutpool_cli.simulate.table import table_lines
from rolloutpool_cli.tables import columns
from rolloutpool_sim.fleet.run import run

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


File = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help="Experiment file, or the name of one of --list.", show_default=False),
]
Seeds = Annotated[
    int | None, typer.Option(min=1, max=1000, help="Runs of each variant. Default: as the file says.")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, max=1024, help="Runs at once. Default: one per core.")
]
Variants = Annotated[
    str,
    typer.Option(
        "--variants", "--policies", help="Only these and their baseline, e.g. 'MISA-T,None'. Default: all."
    ),
]
Loads = Annotated[str, typer.Option(help="Only these loads, e.g. '1x,2x'. Default: all.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change the base scenario, e.g. fleet.engines=2; repeatable.",
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=10,
        max=1e6,
        help="Simulated seconds of a run; warm-up and events in proportion. Default: as the file says.",
    ),
]
SweepOption = Annotated[
    bool, typer.Option("--sweep", help="Vary the constants of the file's `sweep`, one at a time, instead.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Where results go. Default: results/NAME."),
]
List = Annotated[bool, typer.Option("--list", help="List the experiments that come with the project.")]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the options ask for, checked."""

    experiment: Experiment
    text: str
    """The file as it was written."""
    changes: tuple[str, ...]
    """Options that change it."""
    compared: tuple[Cell, ...]
    swept: tuple[SweepPoint, ...]
    seeds: tuple[int, ...]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Every run, once: by seed first, so that what there is after Ctrl-C has all variants.

        The first seed's course over time is kept for the pictures.
        """
        scenarios = {cell.key: cell.scenario for cell in self.compared}
        scenarios |= {point.cell.key: point.cell.scenario for point in self.swept}
        return tuple(
            Job(key, seed, scenario, keep_series=bool(self.compared) and seed == self.seeds[0])
            for seed in self.seeds
            for key, scenario in scenarios.items()
        )


def simulate(
    file: File = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    variants: Variants = "",
    loads: Loads = "",
    sets: Sets = None,
    seconds: Seconds = None,
    sweep: SweepOption = False,
    folder: Folder = None,
    list_: List = False,
) -> None:
    """Compare variants of a pool on a simulated fleet: real decisions, simulated engines, virtual time.

    An experiment file has a base scenario (engines, workloads, trainer, events), variants of it, loads and a
    baseline. Every variant runs at every load with the same seeds, so that what differs is the variant's. You
    get a table of means with 95 % confidence intervals, and in DIR results.json, pictures and report.html, a
    page that needs nothing else. Ctrl-C stops at once and reports what has finished.

    To write your own, copy one of examples/scenarios; the fields of a scenario are described in
    planner/rolloutpool_sim/fleet/scenario.py, and a wrong one is named with its line.

    Exits with 1 if a run failed, with 2 if the file or an option is wrong, and with 130 after Ctrl-C.
    """
    if list_:
        output().print("\n".join(_listing()))
        return
    try:
        request = _request(
            file,
            seeds=seeds,
            variants=_names(variants),
            loads=_names(loads),
            sets=sets or [],
            seconds=seconds,
            sweep=sweep,
        )
    except (NoSuchFile, InvalidExperiment) as error:
        fail(str(error), code=USAGE_ERROR)
    except OSError as error:
        fail(f"cannot read the experiment: {error}", code=USAGE_ERROR)
    name = request.experiment.name + ("-sweep" if sweep else "")
    _run(request, workers=jobs or os.cpu_count() or 1, folder=folder or Path("results") / name)


def _request(
    file: str | None,
    *,
    seeds: int | None,
    variants: Sequence[str],
    loads: Sequence[str],
    sets: Sequence[str],
    seconds: float | None,
    sweep: bool,
) -> Request:
    """Check everything before anything runs."""
    if file is None:
        raise NoSuchFile("give an experiment file, or --list to see those that come with the project")
    path = find(file)
    text = path.read_text(errors="replace")
    source = Source(str(path), text)
    experiment = parse_experiment(source)
    changes = parse_changes(sets, seconds=seconds, experiment=experiment)
    chosen = select(experiment, variants=variants, loads=loads)
    if sweep and experiment.sweep is None:
        raise InvalidExperiment(
            f"{path}: sweep: is missing: add it, with variant and constants, or omit --sweep"
        )
    points = (
        sweep_points(experiment, experiment.sweep, source, changes=changes)
        if sweep and experiment.sweep
        else ()
    )
    return Request(
        experiment=chosen,
        text=text,
        changes=(
            *(f"--set {item}" for item in sets),
            *([f"--seconds {seconds:g}"] if seconds is not None else []),
        ),
        compared=() if sweep else cells(chosen, source, changes=changes),
        swept=points,
        seeds=tuple(range(1, (seeds or experiment.seeds) + 1)),
    )


def _run(request: Request, *, workers: int, folder: Path) -> None:
    """Do the runs, print the table and write the files."""
    # Loading matplotlib takes a while, which no other command should wait for.
    from rolloutpool_cli.simulate.files import versions, write_outcome

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"cannot write results there: {error}: give another folder with --output")
    experiment, jobs = request.experiment, request.jobs
    progress().print(f"{experiment.name}: {len(jobs)} runs, {min(workers, len(jobs))} at once")
    began = time.monotonic()
    runs = run_shown(jobs, simulate=run, workers=workers, console=progress())
    outcome = Outcome(
        experiment=experiment,
        text=request.text,
        changes=request.changes,
        command=shlex.join(["rolloutpool", *sys.argv[1:]]),
        versions=versions(),
        seeds=request.seeds,
        cells=request.compared,
        points=request.swept,
        results=runs.results,
        failures=tuple(runs.failures),
        planned=len(jobs),
        elapsed_seconds=time.monotonic() - began,
    )
    if runs.results:
        swept = bool(request.swept)
        lines = sweep_lines(experiment, outcome.flatness) if swept else table_lines(experiment, outcome.rows)
        output().print("\n".join(lines))
        try:
            written = write_outcome(outcome, folder)
        except OSError as error:
            fail(f"cannot write the results: {error}: give another folder with --output")
        progress().print(f"Written to {folder}: {', '.join(path.name for path in written)}")
    for warning in outcome.warnings():
        progress().print(warning)
    if runs.interrupted or runs.failures:
        raise typer.Exit(INTERRUPTED if runs.interrupted else FAILURE)


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _listing() -> list[str]:
    """The shipped experiments with a line each."""
    files = shipped()
    if not files:
        fail("no experiments here: they come with a checkout of the project, in examples/scenarios")
    rows = []
    for path in files:
        experiment = parse_experiment(Source(str(path), path.read_text()))
        rows.append((path.stem, experiment.description))
    folder = files[0].parent
    return [
        *columns(("Name", "What it asks"), rows),
        "",
        f"Files: {folder}; run one with: rolloutpool simulate NAME",
    ]
