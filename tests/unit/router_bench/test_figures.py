"""The arithmetic of the benchmarks, and how their output is read."""

from __future__ import annotations

import math

import pytest

from router_bench import profiling, wrk
from router_bench.errors import BenchError
from router_bench.figures import at_least, at_most, growth, number, percentile


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        pytest.param([3.0, 1.0, 2.0], 0.5, 2.0, id="middle"),
        pytest.param([3.0, 1.0, 2.0], 0.99, 3.0, id="largest"),
        pytest.param([float(n) for n in range(1, 101)], 0.99, 99.0, id="of-a-hundred"),
        pytest.param([7.0], 0.01, 7.0, id="one"),
    ],
)
def test_percentiles(values: list[float], q: float, expected: float) -> None:
    assert percentile(values, q) == expected


def test_nothing_has_no_percentile() -> None:
    assert math.isnan(percentile([], 0.5))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([1.0, 5.0, 10.0, 10.0, 11.0], 0.1, id="from-the-middle-on"),
        pytest.param([10.0] * 20, 0.0, id="flat"),
        pytest.param([4.0], 0.0, id="one-look"),
    ],
)
def test_growth(values: list[float], expected: float) -> None:
    assert growth(values) == pytest.approx(expected)


def test_aims() -> None:
    assert at_least("rate", 1.5, 1.5, unit="x").met
    assert not at_least("rate", 1.49, 1.5).met
    assert at_most("latency", 2.0, 2.0).met
    missing = at_most("latency", math.nan, 2.0, unit=" ms")
    assert (missing.met, missing.got, missing.wanted) == (False, "- ms", "<= 2 ms")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12345.6, "12,346"), (99.94, "99.9"), (0.01234, "0.0123"), (math.nan, "-"), (0.0, "0")],
)
def test_numbers(value: float, shown: str) -> None:
    assert number(value) == shown


RESULT = (
    'result {"requests":100,"microseconds":2000000,"refused":%d,"broken":%d,"p50_us":1500,"p99_us":9000}\n'
)


def test_what_wrk_says() -> None:
    found = wrk.parse("Running 2s test\n" + RESULT % (0, 0))
    assert (found.rate, found.p50_ms, found.p99_ms) == (50.0, 1.5, 9.0)


@pytest.mark.parametrize(
    ("output", "errors", "told"),
    [
        pytest.param(RESULT % (3, 0), "", "3 were not answered 2xx", id="refused"),
        pytest.param(RESULT % (0, 2), "", "2 broke off", id="broken"),
        pytest.param("", "unable to connect", "unable to connect", id="no-result"),
    ],
)
def test_wrk_with_failures_is_no_measurement(output: str, errors: str, told: str) -> None:
    with pytest.raises(BenchError, match=told):
        wrk.parse(output, errors)


def test_stacks_are_ranked() -> None:
    file = "/x/router/rolloutpool_router/app.py"
    stacks = [f"main ({file}:1);serve ({file}:5);write ({file}:9) 30", f"main ({file}:1);serve ({file}:6) 10"]
    files, own, within = profiling.ranking(stacks)
    assert [list(row) for row in files.rows] == [["rolloutpool_router/app.py", "100.0%"]]
    assert [row[1] for row in own.rows] == ["75.0%", "25.0%"]
    assert own.rows[0][0] == "write (rolloutpool_router/app.py)"
    assert {row[0].split()[0]: row[1] for row in within.rows} == {
        "main": "100.0%",
        "serve": "100.0%",
        "write": "75.0%",
    }
