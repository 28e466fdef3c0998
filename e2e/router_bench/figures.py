"""Arithmetic on measurements, and what a part reports. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows for people; the first column names them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Aim:
    """Something that our router should reach, and what it did."""

    what: str
    wanted: str
    got: str
    met: bool


@dataclass(frozen=True)
class Report:
    """What a part measured."""

    part: str
    tables: Sequence[Table]
    aims: Sequence[Aim] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs: values that JSON has, with units in their names."""


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value with at least the fraction `q` of all at or below it; NaN where there are none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def middle(values: Sequence[float]) -> float:
    """The median; NaN where there are none."""
    return median(values) if values else math.nan


def at_least(what: str, got: float, wanted: float, *, unit: str = "") -> Aim:
    """An aim that is met from `wanted` upwards."""
    return Aim(what, f">= {number(wanted)}{unit}", f"{number(got)}{unit}", got >= wanted)


def at_most(what: str, got: float, wanted: float, *, unit: str = "") -> Aim:
    """An aim that is met up to `wanted`."""
    return Aim(what, f"<= {number(wanted)}{unit}", f"{number(got)}{unit}", got <= wanted)


def number(value: float) -> str:
    """For people: three digits that count."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def growth(values: Sequence[float]) -> float:
    """How much higher a series ends than it was half-way: median of its last fifth over that of its middle
    fifth, less 1. What comes before is left out: bounded caches fill in it."""
    fifth = max(1, len(values) // 5)
    middle_fifth, last = values[2 * fifth : 3 * fifth] or values[:1], values[-fifth:]
    return middle(last) / middle(middle_fifth) - 1
