"""The result of an experiment as one HTML page that needs nothing else. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template

from rolloutpool_cli.simulate.experiment import Load, Variant
from rolloutpool_cli.simulate.figures import Picture
from rolloutpool_cli.simulate.measures import CLASS_MEASURES, MEASURES, Measure, format_estimate
from rolloutpool_cli.simulate.outcome import Outcome
from rolloutpool_cli.simulate.summary import Row, tuning
from rolloutpool_cli.simulate.sweep import sweep_table
from rolloutpool_cli.simulate.table import format_ratio, label, ratio_text

MAX_VALUE = 80
"""Characters of a value in the description of a variant; the file at the end has all of it."""


def page(outcome: Outcome, pictures: Sequence[Picture]) -> str:
    """The page, with its pictures in it."""
    experiment = outcome.experiment
    sections = _sweep(outcome) if outcome.points else _comparison(outcome)
    head, *rest = [_figure(picture) for picture in pictures] or [""]
    template = Template(resources.files(__package__).joinpath("page.html").read_text())
    return template.substitute(
        title=escape(experiment.name),
        description=escape(experiment.description),
        warnings="".join(f'<p class="warn">{escape(text)}</p>' for text in outcome.warnings()),
        notes=escape(experiment.notes.strip()),
        command=escape(outcome.command),
        body="\n".join([head, *sections, *rest]),
        changes=escape(f", changed by {' '.join(outcome.changes)}" if outcome.changes else ""),
        source=escape(outcome.text),
        versions=escape("\n".join(f"{name} {version}" for name, version in outcome.versions.items())),
    )


def _comparison(outcome: Outcome) -> list[str]:
    experiment, rows = outcome.experiment, outcome.rows
    shown = [item for item in MEASURES if any(item.name in row.measures for row in rows)]
    headers = ["Load", "Variant", "Ratio", *(_head(item) for item in shown)]
    cells = [
        [row.load, label(row), format_ratio(row), *(format_estimate(row.measures.get(m.name)) for m in shown)]
        for row in rows
    ]
    seeds = len(outcome.seeds)
    interval = f"Means over {seeds} seeds ± half of the 95 % confidence interval (Student's t);"
    table = _table(headers, cells, names=2, classes=_row_classes(outcome, rows))
    parts = [
        "<h2>Comparison</h2>",
        f"<p>{escape(interval)} {escape(ratio_text(experiment))}</p>",
        table,
        _glossary(shown),
        _cells(experiment.variants, "What the variants are"),
        *([_cells(experiment.loads, "What the loads are")] if len(experiment.loads) > 1 else []),
    ]
    return [*parts, *_by_class(outcome, rows), *_tuned(outcome)]


def _by_class(outcome: Outcome, rows: Sequence[Row]) -> list[str]:
    present = {name for row in rows for values in row.classes.values() for name in values}
    shown = [item for item in CLASS_MEASURES if item.name in present]
    headers = ["Load", "Variant", "Class", *(_head(item) for item in shown)]
    cells = [
        [row.load, label(row), name, *(format_estimate(values.get(item.name)) for item in shown)]
        for row in rows
        for name, values in row.classes.items()
    ]
    firsts = ["first" if index == 0 else "" for row in rows for index, _ in enumerate(row.classes)]
    table = _table(headers, cells, names=3, classes=firsts)
    return ["<h2>By class</h2>", f"<details><summary>Table</summary>{table}{_glossary(shown)}</details>"]


def _tuned(outcome: Outcome) -> list[str]:
    tried = tuning(outcome.cells, outcome.results, metric=outcome.metric)
    if not tried:
        return []
    cells = [[cell.load, cell.variant, cell.tuned, format_estimate(found)] for cell, found in tried]
    table = _table(["Load", "Variant", "Value", _title(outcome)], cells, names=3, classes=[""] * len(cells))
    return ["<h2>Tuned values</h2>", f"<details><summary>All that were tried</summary>{table}</details>"]


def _sweep(outcome: Outcome) -> list[str]:
    headers, cells = sweep_table(outcome.flatness)
    sweep = outcome.points[0].cell
    at = f" at {sweep.load}" if sweep.load != "-" else ""
    note = (
        f"{sweep.variant}{at}, one constant at a time, {len(outcome.seeds)} seeds; by {_title(outcome)}. "
        "Losses are against the default, seed by seed, ± half of the 95 % confidence interval."
    )
    return [
        "<h2>How flat each optimum is</h2>",
        f"<p>{escape(note)}</p>",
        _table(headers, cells, names=1, classes=[""] * len(cells)),
    ]


def _row_classes(outcome: Outcome, rows: Sequence[Row]) -> list[str]:
    found, last = [], ""
    for row in rows:
        first = "first" if row.load != last else ""
        base = "base" if row.variant == outcome.experiment.compare.baseline else ""
        found.append(f"{first} {base}".strip())
        last = row.load
    return found


def _table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, names: int, classes: Sequence[str]
) -> str:
    """A table whose first `names` columns are text."""

    def line(cells: Sequence[str], tag: str, class_: str) -> str:
        inner = "".join(
            f"<{tag}{' class=name' if index < names else ''}>{escape(cell)}</{tag}>"
            for index, cell in enumerate(cells)
        )
        return f'<tr class="{class_}">{inner}</tr>'

    body = "".join(line(row, "td", class_) for row, class_ in zip(rows, classes, strict=True))
    return f'<div class="wide"><table>{line(headers, "th", "")}{body}</table></div>'


def _figure(picture: Picture) -> str:
    caption = escape(picture.title)
    return f"<figure>{picture.svg}<figcaption>{caption}</figcaption></figure>"


def _glossary(measures: Sequence[Measure]) -> str:
    items = "".join(f"<dt>{escape(item.title)}</dt><dd>{escape(item.help)}</dd>" for item in measures)
    return f"<details><summary>What the columns are</summary><dl>{items}</dl></details>"


def _cells(items: Sequence[Variant] | Sequence[Load], title: str) -> str:
    """Names with what they stand for, and what they set."""
    lines = []
    for item in items:
        values = "; ".join(f"{path}: {_short(value)}" for path, value in item.set.items())
        text = " ".join(part for part in (item.description, f"[{values}]" if values else "") if part)
        lines.append(f"<dt>{escape(item.name)}</dt><dd>{escape(text or 'as the scenario says')}</dd>")
    return f"<details><summary>{title}</summary><dl>{''.join(lines)}</dl></details>"


def _short(value: object) -> str:
    return textwrap.shorten(str(value), width=MAX_VALUE, placeholder=" ...")


def _head(item: Measure) -> str:
    return f"{item.title}, {item.unit}" if item.unit else item.title


def _title(outcome: Outcome) -> str:
    return next(_head(item) for item in MEASURES if item.name == outcome.metric)
