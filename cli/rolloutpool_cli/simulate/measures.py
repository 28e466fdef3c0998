"""What is read off one run, by name, with units and how it is written. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rolloutpool_cli.simulate.experiment import Metric
from rolloutpool_cli.simulate.stats import Estimate
from rolloutpool_sim.fleet.result import ClassResult, FleetResult

NOTHING = "-"


@dataclass(frozen=True)
class Measure:
    """One figure of a run."""

    name: str
    title: str
    """Head of its column."""
    unit: str
    help: str
    """What it is, in a line."""


MEASURES = (
    Measure(
        "inMixture",
        "In mixture",
        "/min",
        "Samples per minute that a trainer can use: least over the classes of samples per minute / share.",
    ),
    Measure("samples", "Samples", "/min", "Completed samples per minute, of whatever class."),
    Measure(
        "driftMax",
        "Drift max",
        "pp",
        "Largest distance (total variation) of any 1,000 samples in a row from the target mixture.",
    ),
    Measure("driftTotal", "Drift", "pp", "The same distance of all completed samples together."),
    Measure("hitRate", "Hit rate", "%", "Prompt tokens found in the prefix cache."),
    Measure("preemptions", "Preempt.", "", "Running requests that lost their KV blocks to another."),
    Measure(
        "recomputed",
        "Recomputed",
        "Mtok",
        "Tokens computed again after preemption, or evicted between turns.",
    ),
    Measure("loaded", "Loaded", "Mtok", "Prompt tokens loaded from the second KV tier."),
    Measure("kvUsed", "KV used", "%", "Block-seconds that running requests held, of all there are."),
    Measure("kvResident", "KV resident", "%", "Block-seconds that admitted sessions need, of all there are."),
    Measure("waitP95", "Wait p95", "s", "95th percentile of the wait for admission; the worst class's."),
    Measure("waitMax", "Wait max", "s", "Longest that any sample waited, those included that never entered."),
    Measure(
        "ttftP95",
        "TTFT p95",
        "s",
        "95th percentile of the time to first token, once admitted; the worst class's.",
    ),
    Measure("iteration", "Iteration", "s", "Mean time of an iteration (a batch in the mixture)."),
)
"""Everything that is reported, in the order of the columns."""
BY_NAME: Mapping[str, Measure] = {measure.name: measure for measure in MEASURES}
METRICS = {Metric.IN_MIXTURE: BY_NAME["inMixture"], Metric.SAMPLES: BY_NAME["samples"]}


def measure(result: FleetResult) -> dict[str, float]:
    """The figures of one run by name; those that it has nothing to say of are left out."""
    classes = tuple(result.classes.values())
    found = {
        "inMixture": result.in_mixture_per_minute,
        "samples": result.samples_per_minute,
        "driftMax": result.drift_max,
        "driftTotal": result.drift_total,
        "hitRate": _percent(result.prefix_hit_rate),
        "preemptions": float(result.preemptions),
        "loaded": result.loaded_tokens / 1e6 if result.loaded_tokens else None,
        "recomputed": (result.recomputed_tokens + result.evicted_history_tokens) / 1e6,
        "kvUsed": _percent(result.used_fraction),
        "kvResident": _percent(result.resident_fraction),
        "waitP95": _worst(item.queue_wait_p95 for item in classes),
        "waitMax": _worst(item.oldest_wait_max for item in classes),
        "ttftP95": _worst(item.ttft_p95 for item in classes),
        "iteration": _mean([item.end - item.start for item in result.iterations]),
    }
    return {name: value for name, value in found.items() if value is not None}


CLASS_MEASURES = (
    Measure("perMinute", "Samples", "/min", "Completed samples per minute."),
    Measure("waitP50", "Wait p50", "s", "Median wait for admission."),
    Measure("waitP95", "Wait p95", "s", "95th percentile of the wait for admission."),
    Measure("waitMax", "Wait max", "s", "Longest wait seen, those included that never entered."),
    Measure("ttftP95", "TTFT p95", "s", "95th percentile of the time to first token, once admitted."),
    Measure("footprint", "Footprint", "blocks", "Blocks that a session held alone, over its time."),
    Measure("residency", "Residency", "s", "Time that a session was resident."),
    Measure("drain", "Drain", "s", "From the start of an iteration to the class's last sample."),
)
"""What is reported of each class."""
OF_BATCHES = ("iteration", "drain")
"""Measures of trainers that work in batches, of either list."""


def measure_class(result: FleetResult, name: str) -> dict[str, float]:
    """The figures of one class in one run."""
    item: ClassResult = result.classes[name]
    drains = [iteration.finished[name] for iteration in result.iterations if name in iteration.finished]
    found = {
        "perMinute": item.per_minute,
        "waitP50": item.queue_wait_p50,
        "waitP95": item.queue_wait_p95,
        "waitMax": item.oldest_wait_max,
        "ttftP95": item.ttft_p95,
        "footprint": item.footprint_blocks,
        "residency": item.residency_seconds,
        "drain": _mean(drains),
    }
    return {key: value for key, value in found.items() if value is not None}


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def format_number(value: float) -> str:
    """Three significant digits, and whole from 100 on."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"


def format_estimate(value: Estimate | None) -> str:
    """A mean and, where there is one, half of its interval: 412 ±18."""
    if value is None:
        return NOTHING
    if value.half_width is None:
        return format_number(value.mean)
    return f"{format_number(value.mean)} ±{format_number(value.half_width)}"
