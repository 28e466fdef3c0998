"""Means over seeds with confidence intervals, by Student's t distribution. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
"""Level of every interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean and how sure it is."""

    mean: float
    half_width: float | None
    """Half of the 95 % confidence interval of the mean; None of a single value."""
    count: int
    """Values that it was made from."""

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean where there is none."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval; the mean where there is none."""
        return self.mean + (self.half_width or 0.0)


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of independent values with its interval; None of nothing."""
    if not values:
        return None
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, t_quantile(count - 1) * math.sqrt(variance / count), count)


def paired_ratio(values: Sequence[float], baseline: Sequence[float]) -> Estimate | None:
    """The mean ratio of pairs, with its interval.

    Pairs share a seed and so their arrivals and lengths (common random numbers): what a seed makes easy or
    hard for both cancels out, so this interval is narrower than two separate ones suggest.

    Args:
        values: one per seed.
        baseline: of the same seeds in the same order.

    Returns:
        None where a baseline is 0, or there is nothing.
    """
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} values and {len(baseline)} of the baseline are not pairs")
    if any(base == 0 for base in baseline):
        return None
    return estimate([value / base for value, base in zip(values, baseline, strict=True)])


@lru_cache(maxsize=1024)
def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The t with P(|T| <= t) = confidence for Student's t with a whole number of degrees of freedom.

    Raises:
        ValueError: degrees below 1 or a confidence outside (0, 1).
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no quantile for {degrees} degrees of freedom and confidence {confidence}")
    low, high = 0.0, 1.0
    while _within(high, degrees) < confidence:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """P(|T| <= t), in closed form for whole degrees (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    theta = math.atan2(t, math.sqrt(degrees))
    cosine2 = math.cos(theta) ** 2
    odd = degrees % 2
    term = total = 0.0
    if degrees > 1:
        term = total = math.cos(theta) if odd else 1.0
    for index in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine2 * (index - 1) / index
        total += term
    if odd:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total
