"""Estimates of a class's footprint k and residency T from the sessions seen, blended with the priors."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rolloutpool_router.core.demand import SessionCost

PRIOR_WEIGHT = 8.0
"""How many observed sessions the prior counts for (n0): after as many, prior and mean weigh the same."""
MAX_OBSERVATIONS = 1024
"""Most finished sessions of a class that are kept; the oldest go first."""


def blend(prior: float, observed: float, observations: int) -> float:
    """The prior and the mean of n observed sessions, weighted n0 to n; the prior alone while n is 0."""
    return (PRIOR_WEIGHT * prior + observations * observed) / (PRIOR_WEIGHT + observations)


def blend_cost(prior: SessionCost, observed: SessionCost, observations: int) -> SessionCost:
    """`blend` of footprint (blocks) and residency (seconds)."""
    return SessionCost(
        blend(prior.footprint_blocks, observed.footprint_blocks, observations),
        blend(prior.residency_seconds, observed.residency_seconds, observations),
    )


@dataclass(frozen=True)
class Observed:
    """Means over the sessions of a window."""

    cost: SessionCost
    """Mean footprint (blocks) and residency (seconds); zeros while there is none."""
    observations: int
    """Sessions behind the means."""


class FinishedWindow:
    """Sessions of one class that finished within the last `window_seconds`, at most MAX_OBSERVATIONS.

    Counts finished sessions only, so it is biased towards short ones until long ones have ended.
    """

    def __init__(self) -> None:
        self._entries: deque[tuple[float, SessionCost]] = deque()

    def add(self, *, now: float, cost: SessionCost) -> None:
        """Count one finished session; `now` in seconds, never before the last one."""
        self._entries.append((now, cost))
        if len(self._entries) > MAX_OBSERVATIONS:
            self._entries.popleft()

    def observed(self, *, now: float, window_seconds: float) -> Observed:
        """Means over the sessions that finished after `now - window_seconds`; older ones are forgotten."""
        while self._entries and self._entries[0][0] <= now - window_seconds:
            self._entries.popleft()
        n = len(self._entries)
        if n == 0:
            return Observed(SessionCost(0.0, 0.0), 0)
        footprint = sum(cost.footprint_blocks for _, cost in self._entries) / n
        residency = sum(cost.residency_seconds for _, cost in self._entries) / n
        return Observed(SessionCost(footprint, residency), n)
