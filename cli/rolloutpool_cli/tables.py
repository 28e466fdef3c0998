"""Plain text tables and fields in the manner of `kubectl describe`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

INDENT = "  "


def columns(headers: Sequence[str], rows: Sequence[Sequence[str]], *, underline: bool = False) -> list[str]:
    """Lines of a left-aligned table; the last column is not padded.

    Args:
        headers: one per column.
        rows: cells, as many per row as there are headers.
        underline: a line of dashes below the headers.
    """
    table = [list(headers), *([["-" * len(header) for header in headers]] if underline else []), *rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(headers))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def fields(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Lines `Name:   value`, values aligned; pairs without a value are left out."""
    shown = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0) + 1
    return [f"{name + ':':<{width}}  {value}" for name, value in shown]


def section(title: str, lines: Sequence[str]) -> list[str]:
    """A titled block with indented lines; `<none>` where there are none."""
    if not lines:
        return [f"{title}:  <none>"]
    return [f"{title}:", *(INDENT + line for line in lines)]
