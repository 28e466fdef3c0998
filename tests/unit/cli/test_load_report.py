"""The numbers of a load run, and when a failed turn is sent again."""

from __future__ import annotations

import json

import pytest

from rolloutpool_cli.load.report import Tally, build_report, percentile, report_lines
from rolloutpool_cli.load.retry import RETRY_DELAYS_SECONDS, retry_delay, retryable

SHARES = {"rlvr": 0.5, "agentic": 0.5}


def test_rates_shares_and_drift() -> None:
    tallies = {"rlvr": Tally(finished=60, output_tokens=6000), "agentic": Tally(finished=40, drained=9)}
    report = build_report(SHARES, tallies, elapsed_seconds=120)
    assert [item.samples_per_minute for item in report.classes] == [30, 20]
    assert [item.share_percent for item in report.classes] == [60, 40]
    assert report.drift_percentage_points == pytest.approx(10)
    assert report.output_tokens_per_second == 50
    assert report.samples_per_minute == 50


def test_nothing_finished_is_no_drift() -> None:
    report = build_report(SHARES, {"rlvr": Tally(), "agentic": Tally()}, elapsed_seconds=0)
    assert report.drift_percentage_points == 0
    assert report.classes[0].wait_p50_seconds is None


def test_lost_sessions_and_the_last_error_are_shown() -> None:
    tallies = {"rlvr": Tally(lost=2, errors=20, retries=18), "agentic": Tally(finished=1, turns=7)}
    tallies["agentic"].waits.extend([0.1, 0.2, 4.0])
    report = build_report(SHARES, tallies, elapsed_seconds=60, last_error="HTTP 503: no")
    text = "\n".join(report_lines(report))
    assert report.lost == 2
    assert "2 lost" in text
    assert "Last error: HTTP 503: no" in text
    assert "0.20s" in text
    assert "4.00s" in text
    assert json.loads(json.dumps(report.to_wire()))["classes"][1]["turns"] == 7


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        pytest.param([], 50, None, id="nothing"),
        pytest.param([3.0], 95, 3.0, id="one"),
        pytest.param([4.0, 1.0, 3.0, 2.0], 50, 2.0, id="median-of-four"),
        pytest.param([float(n) for n in range(1, 101)], 95, 95.0, id="p95-of-hundred"),
    ],
)
def test_percentile(values: list[float], percent: int, expected: float | None) -> None:
    assert percentile(values, percent) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(429, True, id="overload"),
        pytest.param(503, True, id="unavailable"),
        pytest.param(500, True, id="fault"),
        pytest.param(400, False, id="bad-request"),
        pytest.param(404, False, id="unknown-model"),
    ],
)
def test_what_is_worth_another_attempt(status: int, expected: bool) -> None:
    assert retryable(status) is expected


def test_a_turn_is_given_up_after_ten_attempts_over_a_minute() -> None:
    delays = [retry_delay(failures) for failures in range(1, 11)]
    assert delays[:-1] == list(RETRY_DELAYS_SECONDS)
    assert delays[-1] is None
    assert sum(RETRY_DELAYS_SECONDS) >= 60


def test_retry_after_lengthens_a_wait_up_to_a_minute() -> None:
    assert retry_delay(1, retry_after=7) == 7
    assert retry_delay(5, retry_after=1) == RETRY_DELAYS_SECONDS[4]
    assert retry_delay(1, retry_after=3600) == 60
