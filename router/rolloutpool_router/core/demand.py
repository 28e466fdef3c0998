"""Priors: what a session of a class is expected to hold and how long, before any has been observed.

A session has n turns. Turn i starts with S_i = p + i (o + d) tokens (p: first prompt, o: output of one turn,
d: what the environment adds before a later turn), grows evenly to S_i + o while it is answered, which takes
b = TTFT + o ITL seconds, and then holds S_i + o for a tool gap of g seconds, but for the last turn. So

    residency T = n b + (n - 1) g
    footprint k = (sum_i b (S_i + v o / 2) + sum_{i < n-1} g (S_i + o)) / T tokens, in blocks of the engine

k is the time average, not the peak: what a growing session costs is what it holds over its life. Long answers
are there longer, so an answer of random length o holds E[o^2] / (2 E[o]) = v E[o] / 2 tokens on average over
its time, with v = 1 + its squared coefficient of variation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rolloutpool_api.planning import SloSpec
from rolloutpool_api.workloads import TokenPrior, WorkloadSpec
from rolloutpool_router.core.lifetable import PriorLife

PRIOR_TTFT_SECONDS = 1.0
"""Time to first token assumed where the SLO names none, in seconds."""
PRIOR_ITL_SECONDS = 0.03
"""Inter-token latency assumed where the SLO names none, in seconds."""
TURNS_SPREAD = 0.4
"""Squared coefficient of variation of the turns of a session, where there are several."""
Z95 = 1.6449
"""Standard normal quantile of 95 %."""


@dataclass(frozen=True)
class SessionCost:
    """What one session of a class costs an engine."""

    footprint_blocks: float
    """Mean KV blocks held while resident (k)."""
    residency_seconds: float
    """Time from admission to the last answer (T), in seconds."""


def prior_cost(
    workload: WorkloadSpec, *, block_size: int, slo: SloSpec | None = None, max_tokens: int | None = None
) -> SessionCost:
    """Footprint and residency that the priors of a class imply; see the module's docstring.

    Args:
        workload: the class.
        block_size: KV block size, in tokens.
        slo: latency objectives of the pool; those of the class go first.
        max_tokens: longest sequence that the model takes.
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
    held = mean_start + size_bias(priors.output_tokens) * output / 2
    token_seconds = turns * busy * held + gaps * (mean_start_before_gap + output)
    mean = min(token_seconds / residency, max_tokens or math.inf)
    return SessionCost(blocks(mean, block_size), residency)


def prior_life(
    workload: WorkloadSpec, *, block_size: int, slo: SloSpec | None = None, max_tokens: int | None = None
) -> PriorLife:
    """The prior of a class's life table: like `prior_cost`, less what the samples of one prompt share."""
    cost = prior_cost(workload, block_size=block_size, slo=slo, max_tokens=max_tokens)
    prompt = mean_tokens(workload.priors.prompt_tokens) / block_size
    shared = prompt * (1 - 1 / workload.priors.samples_per_prompt)
    return PriorLife(
        residency_seconds=cost.residency_seconds,
        start_blocks=max(1.0, prompt - shared),
        footprint_blocks=max(1.0, cost.footprint_blocks - shared),
        spread=_spread(workload),
    )


def prior_peak(workload: WorkloadSpec, *, block_size: int, max_tokens: int | None = None) -> int:
    """Blocks that a session of a class is expected to hold at its end."""
    priors = workload.priors
    output = mean_tokens(priors.output_tokens)
    end = mean_tokens(priors.prompt_tokens) + priors.turns * output + (priors.turns - 1) * priors.turn_tokens
    return blocks(min(end, max_tokens or math.inf), block_size)


def queue_share(waiting: int, capacity_blocks: int, pool_capacity_blocks: int) -> float:
    """One engine's part of a pool's queue: sessions waiting, in proportion to the engine's KV blocks."""
    return waiting * capacity_blocks / pool_capacity_blocks if pool_capacity_blocks > 0 else 0.0


def mean_tokens(prior: TokenPrior) -> float:
    """Mean of the lognormal distribution with this median and 95th percentile, in tokens."""
    sigma = math.log(prior.p95 / prior.p50) / Z95
    return prior.p50 * math.exp(sigma * sigma / 2)


def size_bias(prior: TokenPrior) -> float:
    """E[x^2] / E[x]^2 of the lognormal distribution with this median and 95th percentile."""
    sigma = math.log(prior.p95 / prior.p50) / Z95
    return math.exp(sigma * sigma)


def blocks(tokens: float, block_size: int) -> int:
    """KV blocks that hold this many tokens; at least 1."""
    return max(1, math.ceil(tokens / block_size))


def _spread(workload: WorkloadSpec) -> float:
    """Squared coefficient of variation of a session's residency."""
    priors = workload.priors
    of_outputs = (size_bias(priors.output_tokens) - 1) / priors.turns
    return of_outputs + (TURNS_SPREAD if priors.turns > 1 else 0.0)


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
