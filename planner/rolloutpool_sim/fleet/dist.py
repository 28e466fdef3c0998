"""Distributions of scenario files: token counts, turns and gaps, and how to draw from them.

Every draw goes through a standard normal score: two draws are correlated by correlating their scores (a
Gaussian copula), and the same score gives comparable values before and after a change of parameters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from rolloutpool_api.base import ApiModel

if TYPE_CHECKING:
    from random import Random

Z95 = 1.6449
"""Standard normal quantile of 95 %."""
KINDS = ("constant", "lognormal", "exponential", "uniform", "mixture")

Positive = Annotated[float, Field(gt=0, le=1e9)]
NotNegative = Annotated[float, Field(ge=0, le=1e9)]


class Lognormal(ApiModel):
    """A lognormal, by its median and one of 95th percentile and sigma."""

    median: Positive
    """Median, in the unit of the field."""
    p95: Positive | None = None
    """95th percentile, in the unit of the field."""
    sigma: Annotated[float, Field(ge=0, le=10)] | None = None
    """Standard deviation of the logarithm."""

    @model_validator(mode="after")
    def _one_spread(self) -> Self:
        if (self.p95 is None) == (self.sigma is None):
            raise ValueError("give exactly one of p95 and sigma")
        if self.p95 is not None and self.p95 < self.median:
            raise ValueError(f"p95 {self.p95:g} is below the median {self.median:g}")
        return self

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm."""
        if self.sigma is not None:
            return self.sigma
        return math.log((self.p95 or self.median) / self.median) / Z95


class Exponential(ApiModel):
    """An exponential."""

    mean: Positive
    """Mean, in the unit of the field."""


class Uniform(ApiModel):
    """Any value of an interval, each as likely."""

    low: NotNegative
    """Least value, in the unit of the field."""
    high: NotNegative
    """Largest value, in the unit of the field."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high {self.high:g} is below low {self.low:g}")
        return self


class Part(ApiModel):
    """One part of a mixture."""

    weight: Positive
    """How often it is drawn from, relative to the other parts."""
    dist: Distribution
    """The part's own distribution."""


class Distribution(ApiModel):
    """One of the kinds, clipped to [min, max] where given. A bare number is a constant."""

    constant: NotNegative | None = None
    """Always this value."""
    lognormal: Lognormal | None = None
    """Skewed, as token counts are."""
    exponential: Exponential | None = None
    """Memoryless, as short tool calls are."""
    uniform: Uniform | None = None
    """Between two values."""
    mixture: Annotated[tuple[Part, ...], Field(min_length=1, max_length=16)] | None = None
    """One of several distributions, by weight."""
    min: NotNegative | None = None
    """Smaller draws become this."""
    max: NotNegative | None = None
    """Larger draws become this."""

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return {"constant": value} if isinstance(value, int | float) and value is not True else value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(KINDS)}; given: {', '.join(given) or 'none'}")
        if self.min is not None and self.max is not None and self.max < self.min:
            raise ValueError(f"max {self.max:g} is below min {self.min:g}")
        return self


def draw(dist: Distribution, score: float, rng: Random) -> float:
    """Draw a value, in the unit of the field.

    Args:
        dist: the distribution.
        score: a standard normal draw: the value is the quantile at its probability.
        rng: picks the part of a mixture, the score then being that part's.
    """
    if dist.mixture is not None:
        part = rng.choices(dist.mixture, [part.weight for part in dist.mixture])[0]
        value = draw(part.dist, score, rng)
    else:
        value = _quantile(dist, score)
    if dist.min is not None and value < dist.min:
        return dist.min
    if dist.max is not None and value > dist.max:
        return dist.max
    return value


def _quantile(dist: Distribution, score: float) -> float:
    if dist.lognormal is not None:
        return dist.lognormal.median * math.exp(dist.lognormal.spread * score)
    if dist.exponential is not None:
        return -dist.exponential.mean * math.log(_upper_tail(score))
    if dist.uniform is not None:
        return dist.uniform.low + (dist.uniform.high - dist.uniform.low) * (1 - _upper_tail(score))
    return dist.constant or 0.0


def _upper_tail(score: float) -> float:
    """Probability of a standard normal draw above the score; never 0."""
    return max(math.erfc(score / math.sqrt(2)) / 2, 1e-300)
