"""What a run of the fleet simulator yields: plain numbers, readable as JSON.

Seconds, tokens, blocks, samples per minute; drift in percentage points; None where there is nothing to say.
Unless said otherwise, everything speaks of the time after the warm-up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """One class."""

    submitted: int
    """Samples submitted, warm-up included."""
    completed: int
    """Samples completed."""
    per_minute: float
    """Samples completed by minute."""
    turns: int
    """Requests answered."""
    output_tokens: int
    """Tokens generated."""
    queue_wait_p50: float | None
    """Median wait of sessions that entered, from their submission to their first entry, in seconds."""
    queue_wait_p95: float | None
    """95th percentile of the same."""
    queue_wait_max: float | None
    """Largest of the same."""
    oldest_wait_max: float
    """Longest wait seen, of any session at any time, those included that never entered, in seconds."""
    ttft_p50: float | None
    """Median time to first token of all turns, from when the turn went to its engine, in seconds."""
    ttft_p95: float | None
    """95th percentile of the same."""
    footprint_blocks: float | None
    """Time-averaged blocks that a completed session held alone (shared prompts left out) while resident."""
    residency_seconds: float | None
    """Mean time that a completed session was resident, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One batch of mode Sync, or one batch's worth of completed samples in mode Async; warm-up included."""

    start: float
    """When it was submitted (began), in seconds."""
    end: float
    """When its last sample had completed, in seconds."""
    counts: Mapping[str, int]
    """Its samples by class."""
    finished: Mapping[str, float]
    """Seconds from its start to the last completed sample, by class."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The course of a run, warm-up included: one value for each interval or, where said, at its end."""

    time: tuple[float, ...]
    """End of the interval, in seconds."""
    completed: Mapping[str, tuple[int, ...]]
    """Samples completed in the interval, by class."""
    active: Mapping[str, tuple[int, ...]]
    """Resident sessions at its end, by class."""
    waiting: Mapping[str, tuple[int, ...]]
    """Waiting sessions at its end, by class."""
    caps: Mapping[str, tuple[int, ...]]
    """Cap over all engines at its end, by class; -1 where there is none."""
    used: tuple[float, ...]
    """Part of the KV blocks that running requests held, mean over the interval."""
    resident: tuple[float, ...]
    """Part of the KV blocks that resident sessions need, mean over the interval; may exceed 1."""
    drift: tuple[float, ...]
    """Drift of the last completed samples (at most 1,000) at its end, in percentage points."""
    hit_rate: tuple[float | None, ...]
    """Prefix cache hits over queries, in tokens, in the interval."""
    preemptions: tuple[int, ...]
    """Preemptions in the interval."""


@dataclass(frozen=True, kw_only=True)
class FleetResult:
    """One run."""

    scenario: str
    """Its scenario's name."""
    seed: int
    """Its seed."""
    seconds: float
    """Time measured: from the end of the warm-up to the end of the run, in seconds."""
    classes: Mapping[str, ClassResult]
    """By class, in the order of the scenario."""
    samples_per_minute: float
    """Samples completed by minute, all classes."""
    in_mixture_per_minute: float
    """Samples by minute that a trainer could use in the target mixture: least per_minute / share."""
    drift_max: float | None
    """Largest drift of any 1,000 consecutive completed samples (all, if fewer), in percentage points."""
    drift_end: float | None
    """Drift of the last 1,000 completed samples (all, if fewer), in percentage points."""
    drift_total: float | None
    """Drift of all completed samples together, in percentage points."""
    prefix_hit_rate: float | None
    """Prefix cache hits over queries, in tokens."""
    recomputed_tokens: int
    """Tokens computed again after preemptions."""
    loaded_tokens: int
    """Prompt tokens loaded from the second KV tier."""
    evicted_history_tokens: int
    """Tokens of a session's history that its next turn found in neither tier."""
    preemptions: int
    """Requests that lost their KV blocks to another while running."""
    used_fraction: float
    """Part of the KV blocks that running requests held, mean over time."""
    resident_fraction: float
    """Part of the KV blocks that resident sessions need, mean over time; may exceed 1."""
    failed_turns: int
    """Requests that failed with their engine."""
    open_at_end: int
    """Samples submitted and not completed at the end."""
    iterations: tuple[Iteration, ...]
    """Batches that completed."""
    series: Series
    """The course of the run; at most 400 points."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FleetResult:
        """From the values of `to_json`. Raises pydantic.ValidationError for others."""
        return _ADAPTER.validate_python(data)


_ADAPTER = TypeAdapter(FleetResult)
