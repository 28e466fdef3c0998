"""All that one call of the command has to report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rolloutpool_cli.simulate.cells import Cell
from rolloutpool_cli.simulate.experiment import Experiment
from rolloutpool_cli.simulate.measures import METRICS
from rolloutpool_cli.simulate.runner import Failed
from rolloutpool_cli.simulate.stats import Estimate
from rolloutpool_cli.simulate.summary import Results, Row, summarise
from rolloutpool_cli.simulate.sweep import Flatness, SweepPoint, flatness
from rolloutpool_sim.fleet.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An experiment and its finished runs."""

    experiment: Experiment
    text: str
    """The file as it was written."""
    changes: tuple[str, ...]
    """What the command line changed of it."""
    command: str
    versions: Mapping[str, str]
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    """Empty where constants are swept."""
    points: tuple[SweepPoint, ...]
    """Empty where variants are compared."""
    results: Results
    failures: tuple[Failed, ...]
    planned: int
    """Runs that there would be, had none failed and nobody stopped them."""
    elapsed_seconds: float

    @property
    def complete(self) -> bool:
        """Whether every run has finished."""
        return len(self.results) == self.planned

    @property
    def metric(self) -> str:
        """Name of the measure that variants are compared by."""
        return METRICS[self.experiment.compare.metric].name

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The comparison."""
        baselines = {item.name: self.experiment.baseline_of(item.name) for item in self.experiment.variants}
        return summarise(self.cells, self.results, baselines=baselines, metric=self.metric)

    @cached_property
    def flatness(self) -> tuple[Flatness, ...]:
        """The sweep."""
        return flatness(self.points, self.results, metric=self.metric)

    @property
    def scenarios(self) -> dict[str, Scenario]:
        """By key of the cell."""
        return {cell.key: cell.scenario for cell in self.all_cells}

    @property
    def all_cells(self) -> tuple[Cell, ...]:
        """Of the comparison and of the sweep."""
        return (*self.cells, *(point.cell for point in self.points))

    def warnings(self) -> list[str]:
        """What the reader must know before trusting the figures."""
        found = []
        if not self.complete:
            found.append(f"Incomplete: {len(self.results)} of {self.planned} runs have finished.")
        for message in dict.fromkeys(failed.message for failed in self.failures):
            alike = [failed for failed in self.failures if failed.message == message]
            found.append(failure_text(alike, self.all_cells))
        return found

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "experiment": self.experiment.name,
            "command": self.command,
            "versions": dict(self.versions),
            "changes": list(self.changes),
            "complete": self.complete,
            "elapsedSeconds": round(self.elapsed_seconds, 1),
            "seeds": list(self.seeds),
            "metric": self.metric,
            "baseline": self.experiment.compare.baseline,
            "warnings": self.warnings(),
            "rows": [_row_wire(row) for row in self.rows],
            "sweep": [_flatness_wire(item) for item in self.flatness],
            "file": self.experiment.to_wire(),
            "cells": [
                {
                    "variant": cell.variant,
                    "load": cell.load,
                    "tuned": cell.tuned,
                    "key": cell.key,
                    "scenario": cell.scenario.to_wire(),
                }
                for cell in self.all_cells
            ],
            "runs": [
                {"key": key, "seed": seed, "result": result.to_json()}
                for (key, seed), result in sorted(self.results.items())
            ],
        }


def failure_text(alike: Sequence[Failed], cells: Sequence[Cell]) -> str:
    """Which runs failed with the same message: the first of them by name."""
    job = alike[0].job
    cell = next(cell for cell in cells if cell.key == job.key)
    at = f" at {cell.load}" if cell.load != "-" else ""
    tuned = f" with {cell.tuned}" if cell.tuned else ""
    more = f", and {len(alike) - 1} more runs" if len(alike) > 1 else ""
    return f"Failed: {cell.variant}{at}{tuned}, seed {job.seed}{more}: {alike[0].message}"


def _row_wire(row: Row) -> dict[str, Any]:
    return {
        "variant": row.variant,
        "load": row.load,
        "tuned": row.tuned,
        "key": row.key,
        "seeds": list(row.seeds),
        "ratio": _estimate_wire(row.ratio),
        "measures": {name: _estimate_wire(value) for name, value in row.measures.items()},
        "classes": {
            name: {key: _estimate_wire(value) for key, value in measures.items()}
            for name, measures in row.classes.items()
        },
    }


def _flatness_wire(item: Flatness) -> dict[str, Any]:
    return {
        "path": item.path,
        "unit": item.unit,
        "default": item.default,
        "atDefault": _estimate_wire(item.at_default),
        "best": item.best,
        "within": [item.low, item.high],
        "points": [{"value": value, **(_estimate_wire(found) or {})} for value, found in item.points],
        "lossPercent": [{"value": value, **(_estimate_wire(loss) or {})} for value, loss in item.losses],
    }


def _estimate_wire(value: Estimate | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"mean": value.mean, "halfWidth": value.half_width, "count": value.count}
