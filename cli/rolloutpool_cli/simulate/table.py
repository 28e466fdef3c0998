"""The result of an experiment as plain text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rolloutpool_cli.simulate.experiment import Experiment
from rolloutpool_cli.simulate.measures import BY_NAME, METRICS, NOTHING, format_estimate
from rolloutpool_cli.simulate.summary import Row
from rolloutpool_cli.tables import columns

SHOWN = ("inMixture", "samples", "driftMax", "hitRate", "preemptions", "kvUsed", "kvResident", "waitP95")
"""Measures in the table; all of them are in results.json and in the page."""


def table_lines(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """The table, and what its figures are."""
    headers, cells = table(experiment, rows)
    seeds = max((len(row.seeds) for row in rows), default=0)
    interval = f"mean over {seeds} seeds ± half of the 95 % confidence interval" if seeds > 1 else "one seed"
    return [*columns(headers, cells), "", f"{interval}; {ratio_text(experiment)}"]


def ratio_text(experiment: Experiment) -> str:
    """What the ratio is, in a line."""
    metric, baseline = METRICS[experiment.compare.metric].title, experiment.compare.baseline
    others = [f"{item.name}: {item.baseline}" for item in experiment.variants if item.baseline]
    but = f" ({', '.join(others)})" if others else ""
    return f"ratio: {metric} divided by that of {baseline}{but} at the same load, seed by seed"


def table(experiment: Experiment, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table."""
    with_load = len(experiment.loads) > 1
    shown = [BY_NAME[name] for name in _shown(rows)]
    heads = [f"{item.title} {item.unit}".strip() for item in shown]
    headers = [*(["Load"] if with_load else []), "Variant", heads[0], "Ratio", *heads[1:]]
    cells = []
    for row in rows:
        figures = [format_estimate(row.measures.get(item.name)) for item in shown]
        name = [*([row.load] if with_load else []), label(row)]
        cells.append([*name, figures[0], format_ratio(row), *figures[1:]])
    return headers, cells


def label(row: Row) -> str:
    """A variant's name with the value that was chosen for it."""
    value = tuned_value(row)
    return f"{row.variant} ({value})" if value else row.variant


def tuned_value(row: Row) -> str:
    """The value that was chosen for it; empty where nothing is tuned."""
    return row.tuned.partition("=")[2]


def format_ratio(row: Row) -> str:
    """The ratio to the baseline with half of its interval."""
    ratio = row.ratio
    if ratio is None:
        return NOTHING
    if ratio.half_width is None:
        return f"{ratio.mean:.2f}"
    return f"{ratio.mean:.2f} ±{ratio.half_width:.2f}"


def _shown(rows: Sequence[Row]) -> list[str]:
    """The usual measures, and the iteration's time where the trainer is synchronous."""
    return [*SHOWN, "iteration"] if any("iteration" in row.measures for row in rows) else list(SHOWN)
