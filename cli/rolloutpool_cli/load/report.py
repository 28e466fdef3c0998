"""What a load run measured: counts by class, and the report made from them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rolloutpool_cli.tables import columns

MAX_TIMES = 100_000
"""Most recent waits and latencies kept per class."""


@dataclass
class Tally:
    """Running counts of one class."""

    finished: int = 0
    """Sessions that ended with every turn answered, within the measured time."""
    drained: int = 0
    """Sessions that ended so after it."""
    unfinished: int = 0
    """Sessions cut off at the end of the run."""
    lost: int = 0
    """Sessions given up because a turn failed for good."""
    turns: int = 0
    """Answered requests."""
    errors: int = 0
    """Failed attempts."""
    retries: int = 0
    """Attempts after a failed one."""
    output_tokens: int = 0
    """Generated tokens of requests answered within the measured time."""
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_TIMES))
    """Time that the router held a session's first request before it let it in, in seconds."""
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_TIMES))
    """Time from sending a request to its complete answer, in seconds."""


@dataclass(frozen=True)
class ClassReport:
    """One class."""

    name: str
    target_percent: float
    share_percent: float
    finished: int
    samples_per_minute: float
    turns: int
    output_tokens: int
    errors: int
    retries: int
    lost: int
    drained: int
    unfinished: int
    wait_p50_seconds: float | None
    wait_p95_seconds: float | None
    latency_p50_seconds: float | None
    latency_p95_seconds: float | None


@dataclass(frozen=True)
class LoadReport:
    """A whole run."""

    elapsed_seconds: float
    classes: tuple[ClassReport, ...]
    drift_percentage_points: float
    """Total variation distance between the shares of finished samples and the target."""
    samples_per_minute: float
    output_tokens_per_second: float
    lost: int
    last_error: str

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest-rank percentile; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1).__int__())]


def build_report(
    shares: Mapping[str, float],
    tallies: Mapping[str, Tally],
    *,
    elapsed_seconds: float,
    last_error: str = "",
) -> LoadReport:
    """Sum up a run, or the part of it that is over.

    Args:
        shares: target shares by class, summing to 1.
        tallies: counts by class; all classes of `shares`.
        elapsed_seconds: measured time, in seconds.
        last_error: newest failure, for people.
    """
    minutes = max(elapsed_seconds, 1e-9) / 60
    total = sum(tally.finished for tally in tallies.values())
    consumed = {name: tallies[name].finished / total if total else 0.0 for name in shares}
    drift = sum(abs(consumed[name] - share) for name, share in shares.items()) / 2 if total else 0.0
    return LoadReport(
        elapsed_seconds=elapsed_seconds,
        classes=tuple(
            _class_report(name, share, consumed[name], tallies[name], minutes)
            for name, share in shares.items()
        ),
        drift_percentage_points=100 * drift,
        samples_per_minute=total / minutes,
        output_tokens_per_second=sum(tally.output_tokens for tally in tallies.values()) / (60 * minutes),
        lost=sum(tally.lost for tally in tallies.values()),
        last_error=last_error,
    )


def _class_report(name: str, share: float, consumed: float, tally: Tally, minutes: float) -> ClassReport:
    return ClassReport(
        name=name,
        target_percent=100 * share,
        share_percent=100 * consumed,
        finished=tally.finished,
        samples_per_minute=tally.finished / minutes,
        turns=tally.turns,
        output_tokens=tally.output_tokens,
        errors=tally.errors,
        retries=tally.retries,
        lost=tally.lost,
        drained=tally.drained,
        unfinished=tally.unfinished,
        wait_p50_seconds=percentile(tally.waits, 50),
        wait_p95_seconds=percentile(tally.waits, 95),
        latency_p50_seconds=percentile(tally.latencies, 50),
        latency_p95_seconds=percentile(tally.latencies, 95),
    )


def report_lines(report: LoadReport) -> list[str]:
    """The report as a table and a line of totals."""
    headers = (
        "Class",
        "Samples",
        "Per min",
        "Share",
        "Target",
        "Turns",
        "Errors",
        "Retries",
        "Lost",
        "Cut",
        "Wait p50",
        "Wait p95",
    )
    rows = [
        (
            item.name,
            str(item.finished),
            f"{item.samples_per_minute:.1f}",
            f"{item.share_percent:.1f}%",
            f"{item.target_percent:.1f}%",
            str(item.turns),
            str(item.errors),
            str(item.retries),
            str(item.lost),
            str(item.unfinished),
            _seconds(item.wait_p50_seconds),
            _seconds(item.wait_p95_seconds),
        )
        for item in report.classes
    ]
    totals = (
        f"{report.samples_per_minute:.0f} samples/min, "
        f"{report.output_tokens_per_second:.0f} output tokens/s, "
        f"drift {report.drift_percentage_points:.1f} pp, "
        f"{report.lost} lost, over {report.elapsed_seconds:.0f} s"
    )
    return [
        *columns(headers, rows),
        "",
        totals,
        *([f"Last error: {report.last_error}"] if report.last_error else []),
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}s"
