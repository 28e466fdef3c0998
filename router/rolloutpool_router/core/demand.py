"""Priors: what a session of a class is expected to hold and how long, before any has been observed.

A session has n turns. Turn i starts with S_i = p + i (o + d) tokens (p: first prompt, o: output of one turn,
d: what the environment adds before a later turn), grows evenly to S_i + o while it is answered, which takes
b = TTFT + o ITL seconds, and then holds S_i + o for a tool gap of g seconds, but for the last turn. So

    residency T = n b + (n - 1) g
    footprint k = (sum_i b (S_i + o / 2) + sum_{i < n-1} g (S_i + o)) / T tokens, in blocks of the engine

k is the time average, not the peak: what a growing session costs is what it holds over its life.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rolloutpool_api.planning import SloSpec
from rolloutpool_api.workloads import TokenPrior, WorkloadSpec

PRIOR_TTFT_SECONDS = 1.0
"""Time to first token assumed where the SLO names none, in seconds."""
PRIOR_ITL_SECONDS = 0.03
"""Inter-token latency assumed where the SLO names none, in seconds."""
Z95 = 1.6449
"""Standard normal quantile of 95 %."""


@dataclass(frozen=True)
class SessionCost:
    """What one session of a class costs an engine."""

    footprint_blocks: float
    """Mean KV blocks held while resident (k)."""
    residency_seconds: float
    """Time from admission to the last answer (T), in seconds."""


def prior_cost(workload: WorkloadSpec, *, block_size: int, slo: SloSpec | None = None) -> SessionCost:
    """Footprint and residency that the priors of a class imply; see the module's docstring.

    Args:
        workload: the class.
        block_size: KV block size, in tokens.
        slo: latency objectives of the pool; those of the class go first.
    """
    priors = workload.priors
    turns = priors.turns
    output = mean_tokens(priors.output_tokens)
    busy = _ttft_seconds(workload, slo) + output * _itl_seconds(workload, slo)
    gaps = (turns - 1) * priors.tool_gap_seconds
    residency = turns * busy + gaps
    first = mean_tokens(priors.prompt_tokens)
    grown = output + priors.turn_tokens
    mean_start = first + grown * (turns - 1) / 2
    mean_start_before_gap = first + grown * max(turns - 2, 0) / 2
    token_seconds = turns * busy * (mean_start + output / 2) + gaps * (mean_start_before_gap + output)
    return SessionCost(blocks(token_seconds / residency, block_size), residency)


def queue_share(waiting: int, capacity_blocks: int, pool_capacity_blocks: int) -> float:
    """One engine's part of a pool's queue: sessions waiting, in proportion to the engine's KV blocks."""
    return waiting * capacity_blocks / pool_capacity_blocks if pool_capacity_blocks > 0 else 0.0


def mean_tokens(prior: TokenPrior) -> float:
    """Mean of the lognormal distribution with this median and 95th percentile, in tokens."""
    sigma = math.log(prior.p95 / prior.p50) / Z95
    return prior.p50 * math.exp(sigma * sigma / 2)


def blocks(tokens: float, block_size: int) -> int:
    """KV blocks that hold this many tokens; at least 1."""
    return max(1, math.ceil(tokens / block_size))


def prior_costs(
    workloads: Mapping[str, WorkloadSpec], *, block_size: int, slo: SloSpec | None
) -> dict[str, SessionCost]:
    """`prior_cost` of every class, by name."""
    return {
        name: prior_cost(workload, block_size=block_size, slo=slo) for name, workload in workloads.items()
    }


def _ttft_seconds(workload: WorkloadSpec, slo: SloSpec | None) -> float:
    for objectives in (workload.slo, slo):
        if objectives is not None and objectives.ttft_milliseconds is not None:
            return objectives.ttft_milliseconds / 1000
    return PRIOR_TTFT_SECONDS


def _itl_seconds(workload: WorkloadSpec, slo: SloSpec | None) -> float:
    for objectives in (workload.slo, slo):
        if objectives is not None and objectives.itl_milliseconds is not None:
            return objectives.itl_milliseconds / 1000
    return PRIOR_ITL_SECONDS
