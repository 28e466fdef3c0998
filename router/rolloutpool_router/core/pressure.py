"""Pressure: what sessions may fill contracts when an engine evicts what they still need, and recovers slowly.

A falling prefix hit rate is only a sign (a new kind of prompt lowers it too), so it needs a confirmation:
preemptions, or a full KV cache. Contraction is multiplicative and recovery additive, as in AIMD.
"""

from __future__ import annotations

from dataclasses import dataclass

from rolloutpool_api.serving import PressureSpec

INTERVAL_SECONDS = 10.0
"""How often engines and answers are looked at for signs of pressure, in seconds."""
REFERENCE_FADE = 0.02
"""Part by which the healthy hit rate moves towards the present one per interval."""
MIN_TOKENS = 2_000
"""Prompt tokens below which an interval says nothing about the hit rate."""


@dataclass(frozen=True)
class Interval:
    """What an engine did since the last look."""

    queried_tokens: int
    """Prompt tokens that were looked up in the prefix cache, or were expected there."""
    hit_tokens: int
    """Those that were found."""
    preemptions: int = 0
    kv_usage: float = 0.0
    """Used part of the KV blocks, 0 to 1."""
    full: bool = False
    """Its sessions hold all that they may: nobody enters, so that contraction would only last too long."""
    proof: bool = False
    """The expected tokens were those of resident sessions: missing ones are evictions, which is proof."""


@dataclass(frozen=True)
class EngineTotals:
    """An engine's counters since it started, named as vLLM's, and how full it is."""

    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Those found."""
    preemptions: int = 0
    kv_usage: float = 0.0
    """Used part of the KV cache, 0 to 1."""


NO_TOTALS = EngineTotals()
"""Those of an engine that has just started."""


def interval(before: EngineTotals, after: EngineTotals, *, full: bool) -> Interval:
    """What happened between two looks; an engine that restarted in between counts from its start.

    Args:
        before: counters at the look before.
        after: counters now.
        full: see `Interval.full`.
    """
    if after.prefix_queries < before.prefix_queries or after.preemptions < before.preemptions:
        before = NO_TOTALS
    return Interval(
        queried_tokens=after.prefix_queries - before.prefix_queries,
        hit_tokens=after.prefix_hits - before.prefix_hits,
        preemptions=after.preemptions - before.preemptions,
        kv_usage=after.kv_usage,
        full=full,
    )


@dataclass(frozen=True)
class Pressure:
    """How far an engine's pot is contracted."""

    factor: float = 1.0
    """Part of the protected blocks that sessions may fill."""
    reference: float = 0.0
    """Recent healthy hit rate, 0 to 1."""

    @property
    def percent(self) -> int:
        """Contraction in percent."""
        return round(100 * (1 - self.factor))


CALM = Pressure()
"""No contraction."""


def step(state: Pressure, seen: Interval, spec: PressureSpec) -> Pressure:
    """Pressure after one more interval."""
    if not spec.enabled:
        return Pressure()
    if seen.queried_tokens < MIN_TOKENS:
        return Pressure(_recovered(state.factor, spec), state.reference)
    rate = min(1.0, seen.hit_tokens / seen.queried_tokens)
    reference = 1.0 if seen.proof else max(state.reference, rate)
    falling = rate < reference * (1 - spec.hit_rate_drop_percent / 100)
    confirmed = seen.proof or seen.preemptions > 0 or seen.kv_usage * 100 >= spec.kv_usage_percent
    faded = reference + REFERENCE_FADE * (rate - reference)
    if falling and confirmed and seen.full:
        return Pressure(state.factor, faded)
    if falling and confirmed:
        least = 1 - spec.max_percent / 100
        return Pressure(max(least, state.factor * (1 - spec.decrease_percent / 100)), faded)
    return Pressure(_recovered(state.factor, spec), faded)


def _recovered(factor: float, spec: PressureSpec) -> float:
    return min(1.0, factor + spec.increase_percent / 100)
