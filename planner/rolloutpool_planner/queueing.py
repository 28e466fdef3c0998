"""Waiting in one engine's prefill queue: an M/G/1 queue, first come first served.

Assumes Poisson arrivals of prompts (the samples of one prompt count as one job). The mean wait is
Pollaczek-Khinchine's; its tail is taken as exponential, P(wait > t) = rho exp(-t rho / mean), which is exact
for M/M/1.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """A kind of job: how many arrive per second, its mean work in seconds and E[work^2] / E[work]^2."""

    rate: float
    work: float
    variance_factor: float = 1.0


@dataclass(frozen=True)
class Wait:
    """Utilisation of the queue and the wait in it, in seconds (infinite where the queue is overloaded)."""

    utilization: float
    mean: float

    def quantile(self, level: float) -> float:
        """The wait that is exceeded with probability 1 - level."""
        rho = self.utilization
        if rho <= 1 - level:
            return 0.0
        return self.mean / rho * math.log(rho / (1 - level))


def wait(jobs: Iterable[Job]) -> Wait:
    """The wait in the queue that these kinds of jobs share."""
    rho = second = 0.0
    for job in jobs:
        rho += job.rate * job.work
        second += job.rate * job.work**2 * job.variance_factor
    return Wait(rho, math.inf if rho >= 1 else second / (2 * (1 - rho)))


def mixture_quantile(level: float, parts: Iterable[tuple[float, float]]) -> float:
    """Quantile of a value that is 0 but for `parts` (probability, value), scaled if they exceed 1."""
    ordered = sorted(parts, key=lambda part: -part[1])
    scale = max(1.0, sum(probability for probability, _ in ordered))
    above = 0.0
    for probability, value in ordered:
        above += probability / scale
        if above > 1 - level:
            return value
    return 0.0
