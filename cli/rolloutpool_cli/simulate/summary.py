"""What the runs of an experiment say together: a row per variant and load. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolloutpool_cli.simulate.cells import Cell
from rolloutpool_cli.simulate.measures import (
    CLASS_MEASURES,
    MEASURES,
    OF_BATCHES,
    Measure,
    measure,
    measure_class,
)
from rolloutpool_cli.simulate.stats import Estimate, estimate, paired_ratio
from rolloutpool_sim.fleet.result import FleetResult
from rolloutpool_sim.fleet.scenario import TrainerMode

Results = Mapping[tuple[str, int], FleetResult]
"""Finished runs by the cell's key and the seed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant at one load."""

    variant: str
    load: str
    tuned: str
    """The tuned value that was best, as path and value; empty where nothing is tuned."""
    key: str
    """Of the cell."""
    seeds: tuple[int, ...]
    """Seeds that have finished."""
    measures: Mapping[str, Estimate]
    """By name of `MEASURES`; those without a value are left out."""
    classes: Mapping[str, Mapping[str, Estimate]]
    """By class and name of `CLASS_MEASURES`."""
    ratio: Estimate | None
    """The metric divided by the baseline's at the same load, over the seeds that both have finished."""


def summarise(
    cells: Sequence[Cell], results: Results, *, baselines: Mapping[str, str], metric: str
) -> tuple[Row, ...]:
    """A row per variant and load, in the order of the cells; those without a finished run are left out.

    Args:
        cells: all cells of the experiment.
        results: what has finished.
        baselines: by variant the one to divide by.
        metric: name of the measure that is divided, and by which tuned values are chosen.
    """
    best: dict[tuple[str, str], tuple[float, Cell]] = {}
    tried: dict[tuple[str, str], set[int]] = {}
    for cell in cells:
        reached = list(metric_by_seed(cell, results, metric).values())
        found = estimate(reached)
        place = (cell.variant, cell.load)
        tried.setdefault(place, set()).add(len(reached))
        if found is not None and (place not in best or found.mean > best[place][0]):
            best[place] = (found.mean, cell)
    rows = []
    for (variant, load), (_, cell) in best.items():
        # A baseline that is still being tuned, as after Ctrl-C, is none.
        against = (baselines[variant], load)
        base = best.get(against) if len(tried.get(against, ())) == 1 else None
        ratio = _ratio(cell, base[1], results, metric) if base else None
        rows.append(_row(cell, results, ratio))
    return tuple(rows)


def tuning(cells: Sequence[Cell], results: Results, *, metric: str) -> tuple[tuple[Cell, Estimate], ...]:
    """Every tuned value that was tried, with what it reached."""
    tried = []
    for cell in cells:
        found = estimate(list(metric_by_seed(cell, results, metric).values()))
        if cell.tuned and found is not None:
            tried.append((cell, found))
    return tuple(tried)


def metric_by_seed(cell: Cell, results: Results, metric: str) -> dict[int, float]:
    """The metric of a cell by seed, of those that have finished."""
    return {seed: measure(result)[metric] for (key, seed), result in results.items() if key == cell.key}


def _row(cell: Cell, results: Results, ratio: Estimate | None) -> Row:
    in_batches = cell.scenario.trainer.mode is TrainerMode.SYNC
    finished = {seed: result for (key, seed), result in sorted(results.items()) if key == cell.key}
    measured = [measure(result) for result in finished.values()]
    names = [workload.name for workload in cell.scenario.workloads]
    by_class = {name: [measure_class(result, name) for result in finished.values()] for name in names}
    return Row(
        variant=cell.variant,
        load=cell.load,
        tuned=cell.tuned,
        key=cell.key,
        seeds=tuple(finished),
        measures=_estimates(_names(MEASURES, in_batches), measured),
        classes={
            name: _estimates(_names(CLASS_MEASURES, in_batches), found) for name, found in by_class.items()
        },
        ratio=ratio,
    )


def _names(measures: Sequence[Measure], in_batches: bool) -> list[str]:
    """Those that make sense: iterations are the trainer's own only where it works in batches."""
    return [item.name for item in measures if in_batches or item.name not in OF_BATCHES]


def _estimates(names: Sequence[str], measured: Sequence[Mapping[str, float]]) -> dict[str, Estimate]:
    found = {name: estimate([one[name] for one in measured if name in one]) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _ratio(cell: Cell, base: Cell, results: Results, metric: str) -> Estimate | None:
    own, other = metric_by_seed(cell, results, metric), metric_by_seed(base, results, metric)
    seeds = sorted(own.keys() & other.keys())
    return paired_ratio([own[seed] for seed in seeds], [other[seed] for seed in seeds])
