"""Means and intervals against values from tables."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_cli.simulate.measures import format_estimate, format_number
from rolloutpool_cli.simulate.stats import Estimate, estimate, paired_ratio, t_quantile


@pytest.mark.parametrize(
    ("degrees", "confidence", "expected"),
    [
        pytest.param(1, 0.95, 12.706, id="1"),
        pytest.param(2, 0.95, 4.303, id="2"),
        pytest.param(3, 0.95, 3.182, id="3"),
        pytest.param(4, 0.95, 2.776, id="4"),
        pytest.param(9, 0.95, 2.262, id="9"),
        pytest.param(10, 0.95, 2.228, id="10"),
        pytest.param(30, 0.95, 2.042, id="30"),
        pytest.param(120, 0.95, 1.980, id="120"),
        pytest.param(1, 0.90, 6.314, id="1-at-90"),
        pytest.param(5, 0.99, 4.032, id="5-at-99"),
    ],
)
def test_students_t(degrees: int, confidence: float, expected: float) -> None:
    assert t_quantile(degrees, confidence) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("degrees", "confidence"), [(0, 0.95), (3, 1.0), (3, 0.0)])
def test_no_quantile(degrees: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(degrees, confidence)


def test_the_interval_of_five_values() -> None:
    # mean 12, sample standard deviation sqrt(2.5), t = 2.776: 2.776 * 1.5811 / sqrt(5) = 1.963
    found = estimate([10, 11, 12, 13, 14])
    assert found is not None
    assert found.mean == 12
    assert found.half_width == pytest.approx(1.963, abs=1e-3)
    assert found.low == pytest.approx(10.037, abs=1e-3)
    assert found.high == pytest.approx(13.963, abs=1e-3)


def test_one_value_has_no_interval_and_none_has_nothing() -> None:
    assert estimate([3.0]) == Estimate(3.0, None, 1)
    assert estimate([]) is None


def test_pairs_cancel_what_a_seed_does_to_both() -> None:
    baseline = [100.0, 200.0, 400.0]
    ratio = paired_ratio([2 * value for value in baseline], baseline)
    assert ratio is not None
    assert (ratio.mean, ratio.half_width) == (2.0, 0.0)


def test_no_ratio_to_nothing() -> None:
    assert paired_ratio([1.0, 2.0], [0.0, 1.0]) is None
    assert paired_ratio([], []) is None
    with pytest.raises(ValueError, match="not pairs"):
        paired_ratio([1.0], [1.0, 2.0])


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = random.Random(1)
    inside = 0
    for _ in range(2000):
        found = estimate([rng.gauss(5.0, 2.0) for _ in range(4)])
        assert found is not None
        inside += found.low <= 5.0 <= found.high
    assert inside / 2000 == pytest.approx(0.95, abs=0.015)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_the_mean_is_within_its_values_and_its_interval(values: list[float]) -> None:
    found = estimate(values)
    assert found is not None
    assert min(values) - 1e-6 <= found.mean <= max(values) + 1e-6
    assert found.low <= found.mean <= found.high
    assert math.isfinite(found.high)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(0.0, "0", id="zero"),
        pytest.param(0.123, "0.12", id="small"),
        pytest.param(12.34, "12.3", id="tens"),
        pytest.param(1234.5, "1,234", id="thousands"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    assert format_number(value) == shown


def test_estimates() -> None:
    assert format_estimate(Estimate(412.3, 18.2, 5)) == "412 ±18.2"
    assert format_estimate(Estimate(412.3, None, 1)) == "412"
    assert format_estimate(None) == "-"
