"""Pictures of an experiment, as PNG and as SVG for the page.

Ink is a colour of its own, so that the page can turn it into the reader's: dark on light or light on dark.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rolloutpool_cli.simulate.experiment import Experiment
from rolloutpool_cli.simulate.measures import METRICS
from rolloutpool_cli.simulate.stats import Estimate
from rolloutpool_cli.simulate.summary import Row
from rolloutpool_cli.simulate.sweep import FLAT_PERCENT, Flatness
from rolloutpool_cli.simulate.table import tuned_value

INK = "#24292f"
COLOURS = ("#3987d6", "#e08a1e", "#2aa57a", "#d9534f", "#a877c9", "#8a8f98", "#b5a327", "#4bb3c4")
"""Readable on white and on near black; used in this order."""
DPI = 144
INCHES = 10.5
"""Width of every picture."""
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
"""An SVG without it is the same each time, and names no addresses."""
LOGARITHMIC = 8
"""Axes whose ends differ by more than this factor are logarithmic."""
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Picture:
    """One picture in both forms."""

    name: str
    """File name without extension."""
    title: str
    png: bytes
    svg: str
    """An <svg> element; ink is `currentColor`."""


def compare_picture(experiment: Experiment, rows: Sequence[Row]) -> Picture:
    """The metric of every variant with its interval: bars by load, or lines where loads have an `x`."""
    metric = METRICS[experiment.compare.metric]
    title = f"{metric.title}, {metric.unit} (mean and 95 % confidence interval)"
    with mpl.rc_context(STYLE):
        if len(experiment.loads) > 1 and all(load.x is not None for load in experiment.loads):
            figure = _lines(experiment, rows, metric.name)
        else:
            figure = _bars(experiment, rows, metric.name)
        return save(figure, "compare", title)


def sweep_picture(experiment: Experiment, found: Sequence[Flatness]) -> Picture:
    """Each constant's metric, in percent of what its default reaches."""
    metric = METRICS[experiment.compare.metric]
    across = 3
    down = -(-len(found) // across)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(INCHES, 2.4 * down), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False)
        flat_axes: list[Axes] = [axes for line in grid for axes in line]
        for axes, item in zip(flat_axes, found, strict=False):
            _sweep_axes(axes, item)
        for axes in flat_axes[len(found) :]:
            axes.set_visible(False)
        return save(
            figure,
            "sweep",
            f"{metric.title} in percent of what the default (dashed) reaches, seed by seed; "
            f"green: within {FLAT_PERCENT:g} % of the best",
        )


def save(figure: Figure, name: str, title: str) -> Picture:
    """Render a figure in both forms; within the style."""
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png, format="png", dpi=DPI, facecolor="white")
    # Ids in a page must differ between its pictures: the salt makes them.
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(svg, format="svg", transparent=True, metadata=NO_METADATA)
    text = svg.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    return Picture(name, title, png.getvalue(), text)


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of all pictures."""
    with mpl.rc_context(STYLE):
        yield


def _bars(experiment: Experiment, rows: Sequence[Row], metric: str) -> Figure:
    names = list(dict.fromkeys(row.variant for row in rows))
    loads = [load.name for load in experiment.loads if any(row.load == load.name for row in rows)]
    across = min(4, max(1, len(loads)))
    down = -(-max(1, len(loads)) // across)
    figure = Figure(figsize=(INCHES, down * (0.9 + 0.27 * len(names))), layout="constrained")
    grid = figure.subplots(down, across, sharey=True, squeeze=False)
    flat_axes: list[Axes] = [axes for line in grid for axes in line]
    for axes, load in zip(flat_axes, loads, strict=False):
        found = {row.variant: row for row in rows if row.load == load}
        _load_bars(axes, experiment, names, found, metric)
        if len(loads) > 1:
            axes.set_title(load)
    for axes in flat_axes[len(loads) :]:
        axes.set_visible(False)
    return figure


def _load_bars(
    axes: Axes, experiment: Experiment, names: Sequence[str], found: Mapping[str, Row], metric: str
) -> None:
    for place, name in enumerate(names):
        row = found.get(name)
        if row is None or metric not in row.measures:
            continue
        value = row.measures[metric]
        is_baseline = name == experiment.compare.baseline
        axes.barh(place, value.mean, xerr=_error(value), color=COLOURS[5 if is_baseline else 0], ecolor=INK)
        shown = f" {value.mean:.3g}" + (f" ({tuned_value(row)})" if row.tuned else "")
        axes.annotate(shown, (value.high, place), va="center", fontsize=7.5)
    baseline = found.get(experiment.compare.baseline)
    if baseline is not None and metric in baseline.measures:
        axes.axvline(baseline.measures[metric].mean, color=INK, linestyle=":", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.2)
    axes.set_xlim(left=0)


def _lines(experiment: Experiment, rows: Sequence[Row], metric: str) -> Figure:
    at = {load.name: load.x for load in experiment.loads if load.x is not None}
    figure = Figure(figsize=(INCHES, 4), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(dict.fromkeys(row.variant for row in rows)):
        points = sorted(
            (at[row.load], row.measures[metric])
            for row in rows
            if row.variant == name and metric in row.measures
        )
        axes.errorbar(
            [x for x, _ in points],
            [value.mean for _, value in points],
            yerr=[value.half_width or 0.0 for _, value in points],
            label=name,
            marker="o",
            markersize=3,
            capsize=2,
            **_look(number),
        )
    scale(axes, list(at.values()))
    if max(at.values()) > LOGARITHMIC * min(at.values()) > 0:
        axes.set_yscale("log" if axes.get_ylim()[0] > 0 and _grows(rows, metric) else "linear")
    axes.set_xlabel(experiment.load_label or "load")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _grows(rows: Sequence[Row], metric: str) -> bool:
    values = [row.measures[metric].mean for row in rows if metric in row.measures]
    return max(values, default=0) > LOGARITHMIC * min(values, default=0) > 0


def _sweep_axes(axes: Axes, item: Flatness) -> None:
    """Each value against the default seed by seed, which leaves out what is common to both."""
    points = [(value, Estimate(100 - loss.mean, loss.half_width, loss.count)) for value, loss in item.losses]
    top = max([100.0, *(found.mean for _, found in points)])
    axes.axhspan(top * (1 - FLAT_PERCENT / 100), top, color=COLOURS[2], alpha=0.2, linewidth=0)
    axes.errorbar(
        [value for value, _ in points],
        [found.mean for _, found in points],
        yerr=[_error(found) for _, found in points],
        color=COLOURS[0],
        marker="o",
        markersize=3,
        capsize=2,
    )
    if item.default is None:
        axes.axhline(100, color=INK, linestyle="--", linewidth=0.8)
    else:
        axes.axvline(item.default, color=INK, linestyle="--", linewidth=0.8)
    axes.set_title(item.path + (f" ({item.unit})" if item.unit else ""))
    if points:
        scale(axes, [value for value, _ in points])


def scale(axes: Axes, values: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic where the values need it, and mark just these."""
    if min(values) > 0 and max(values) > LOGARITHMIC * min(values):
        axes.set_xscale("log")
        axes.set_xticks([], minor=True)
    axes.set_xticks(list(values), [f"{value:g}" for value in values])


def _look(number: int) -> dict[str, Any]:
    """Colour and dashes of the n-th line; a second round of colours is dashed."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": "-" if number < len(COLOURS) else "--",
    }


def _error(value: Estimate) -> float:
    return value.half_width or 0.0
