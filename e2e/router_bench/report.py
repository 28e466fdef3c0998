"""Shows reports as tables, and writes them as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from router_bench.figures import Aim, Report, Table


def show(report: Report, console: Console) -> None:
    """Print a report's tables and aims."""
    for table in report.tables:
        _print(table, console)
    if report.aims:
        rows = [[aim.what, aim.wanted, aim.got, "yes" if aim.met else "NO"] for aim in report.aims]
        _print(Table("Aims", ["what", "wanted", "got", "reached"], rows), console)


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def write(path: Path, reports: Sequence[Report], context: Mapping[str, Any]) -> None:
    """Write everything that was measured, and the context: machine, versions, settings."""
    found = {
        report.part: {"aims": [vars(aim) for aim in report.aims], **report.figures} for report in reports
    }
    path.write_text(json.dumps({**context, "parts": found}, indent=2) + "\n")


def missed(reports: Sequence[Report]) -> list[Aim]:
    """The aims that were not reached."""
    return [aim for report in reports for aim in report.aims if not aim.met]


def _print(table: Table, console: Console) -> None:
    shown = RichTable(title=table.title, title_justify="left", title_style="bold")
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown, markup=False)
