"""Durations as people write them: 30s, 5m, 1.5h; and ages as kubectl prints them."""

from __future__ import annotations

import re

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PATTERN = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h)?$")


def parse_duration(text: str) -> float:
    """Read a duration in seconds.

    Raises:
        ValueError: with what a duration looks like.
    """
    match = _PATTERN.match(text.strip())
    if not match:
        raise ValueError(f"{text!r} is no duration: write a number and ms, s, m or h, e.g. 60s or 5m")
    return float(match[1]) * _UNITS[match[2] or ""]


def format_age(seconds: float) -> str:
    """A duration in the short form of kubectl: 45s, 12m, 3h, 2d; never negative."""
    whole = max(0, int(seconds))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
