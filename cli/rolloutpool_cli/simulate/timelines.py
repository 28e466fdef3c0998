"""Pictures of the course of runs: mixture, KV and queues over time, and a trainer's iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rolloutpool_cli.simulate.figures import COLOURS, INCHES, INK, Picture, save, style
from rolloutpool_cli.simulate.summary import Results, Row
from rolloutpool_cli.simulate.table import label
from rolloutpool_sim.fleet.result import FleetResult, Series
from rolloutpool_sim.fleet.scenario import Scenario, TrainerMode

SMOOTH_PART = 0.05
"""The mixture is shown over this part of the run, so that single samples do not hide its course."""
MINUTE = 60.0


def course_pictures(
    rows: Sequence[Row], results: Results, scenarios: Mapping[str, Scenario], *, seed: int
) -> tuple[Picture, ...]:
    """One picture per load: a line of panels for each variant.

    Args:
        rows: variants and loads.
        results: finished runs, with the series of this seed.
        scenarios: by key of the cell.
        seed: whose run is shown.
    """
    pictures = []
    for number, load in enumerate(dict.fromkeys(row.load for row in rows)):
        shown = [(row, results.get((row.key, seed))) for row in rows if row.load == load]
        drawn = [(row, result) for row, result in shown if result is not None and result.series.time]
        if not drawn:
            continue
        title = "Course of one run" + (f" at {load}" if load != "-" else "") + f" (seed {seed})"
        with style():
            figure = Figure(figsize=(INCHES, 0.6 + 1.5 * len(drawn)), layout="constrained")
            grid = figure.subplots(len(drawn), 4, squeeze=False, sharex=True, sharey="col")
            for line, (row, result) in zip(grid, drawn, strict=True):
                _draw_course(list(line), row, result, scenarios[row.key])
            for axes, head in zip(
                grid[0], ("mixture, %", "KV, % of blocks", "waiting", "resident"), strict=True
            ):
                axes.set_title(head)
            for axes in grid[-1]:
                axes.set_xlabel("minutes")
            _legend(figure, grid[0])
            pictures.append(save(figure, f"course-{number + 1}", title))
    return tuple(pictures)


def iterations_picture(
    rows: Sequence[Row], results: Results, scenarios: Mapping[str, Scenario]
) -> Picture | None:
    """A synchronous trainer's iterations: how long each took, and when each class was done; mean over seeds.

    None where no trainer is synchronous.
    """
    rows = [row for row in rows if scenarios[row.key].trainer.mode is TrainerMode.SYNC]
    found = [(row, _iterations([results[row.key, seed] for seed in row.seeds])) for row in rows]
    columns = next((list(iterations[0]) for _, iterations in found if iterations), None)
    if columns is None:
        return None
    with style():
        figure = Figure(figsize=(INCHES, 3.4), layout="constrained")
        grid = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
        for axes, column in zip(grid, columns, strict=True):
            for number, (row, iterations) in enumerate(found):
                axes.plot(
                    range(1, len(iterations) + 1),
                    [iteration.get(column, math.nan) for iteration in iterations],
                    color=COLOURS[number % len(COLOURS)],
                    linestyle="-" if number < len(COLOURS) else "--",
                    marker="o" if len(iterations) == 1 else "",
                    label=label(row) + (f", {row.load}" if row.load != "-" else ""),
                )
            axes.set_title(column)
            axes.set_xlabel("iteration")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        grid[0].set_ylabel("seconds")
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        return save(figure, "iterations", "Iterations: duration, and time to each class's last sample, s")


def _iterations(results: Sequence[FleetResult]) -> list[dict[str, float]]:
    """Duration and each class's end by iteration, mean over the runs that have it in full."""
    count = min((len(result.iterations) for result in results), default=0)
    found = []
    for index in range(count):
        each = [result.iterations[index] for result in results]
        names = [name for name in each[0].finished if all(name in item.finished for item in each)]
        mean = {"iteration": sum(item.end - item.start for item in each) / len(each)}
        mean |= {name: sum(item.finished[name] for item in each) / len(each) for name in names}
        found.append(mean)
    return found


def _draw_course(line: Sequence[Axes], row: Row, result: FleetResult, scenario: Scenario) -> None:
    mixture, kv, waiting, resident = line
    series = result.series
    minutes = [time / MINUTE for time in series.time]
    for number, (name, shares) in enumerate(_mixture(series).items()):
        colour = COLOURS[number]
        mixture.plot(minutes, shares, color=colour, label=name)
        target = next(workload.share for workload in scenario.workloads if workload.name == name)
        mixture.axhline(100 * target, color=colour, linestyle=":", linewidth=0.9)
        waiting.plot(minutes, series.waiting[name], color=colour)
        resident.plot(minutes, series.active[name], color=colour)
    kv.plot(minutes, [100 * part for part in series.used], color=COLOURS[3], label="running requests")
    kv.plot(minutes, [100 * part for part in series.resident], color=COLOURS[4], label="resident sessions")
    for axes in line:
        axes.axvline(scenario.warmup_seconds / MINUTE, color=INK, linestyle="--", linewidth=0.6, alpha=0.5)
        for event in scenario.events:
            axes.axvline(event.at / MINUTE, color=INK, linewidth=0.6, alpha=0.5)
    mixture.set_ylabel(label(row), rotation=0, ha="right", va="center")


def _mixture(series: Series) -> dict[str, list[float]]:
    """Shares of the completed samples by class, in percent, over the last few intervals at each time."""
    window = max(1, round(SMOOTH_PART * len(series.time)))
    total = [sum(counts) for counts in zip(*series.completed.values(), strict=True)]
    shares = {}
    for name, counts in series.completed.items():
        points = []
        for end in range(1, len(counts) + 1):
            begin = max(0, end - window)
            all_classes = sum(total[begin:end])
            points.append(100 * sum(counts[begin:end]) / all_classes if all_classes else math.nan)
        shares[name] = points
    return shares


def _legend(figure: Figure, line: Sequence[Axes]) -> None:
    handles, labels = [], []
    for axes in (line[0], line[1]):
        found = axes.get_legend_handles_labels()
        handles += found[0]
        labels += found[1]
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
