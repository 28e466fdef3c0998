"""Pressure: a contraction needs a sign and its confirmation, is multiplicative, and is undone in steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_api.serving import PressureSpec
from rolloutpool_router.core.pressure import (
    INTERVAL_SECONDS,
    MIN_TOKENS,
    NO_TOTALS,
    EngineTotals,
    Interval,
    Pressure,
    step,
)
from rolloutpool_router.core.pressure import interval as counted
from rolloutpool_router.core.retention import Retention

SPEC = PressureSpec()
HEALTHY = Pressure(1.0, reference=0.8)
TOKENS = 10 * MIN_TOKENS


def interval(
    rate: float,
    *,
    preemptions: int = 0,
    usage: float = 0.0,
    proof: bool = False,
    full: bool = False,
    tokens: int = TOKENS,
) -> Interval:
    return Interval(tokens, round(rate * tokens), preemptions, usage, full=full, proof=proof)


@pytest.mark.parametrize(
    ("seen", "factor"),
    [
        pytest.param(interval(0.8), 1.0, id="healthy"),
        pytest.param(interval(0.8, preemptions=9, usage=1.0), 1.0, id="busy-but-nothing-was-evicted"),
        pytest.param(interval(0.3), 1.0, id="a-low-rate-alone-may-be-another-kind-of-prompt"),
        pytest.param(interval(0.3, preemptions=1), 0.9, id="confirmed-by-a-preemption"),
        pytest.param(interval(0.3, usage=0.95), 0.9, id="confirmed-by-a-full-cache"),
        pytest.param(interval(0.3, usage=0.94), 1.0, id="not-full-enough"),
        pytest.param(interval(0.65, preemptions=1), 1.0, id="above-four-fifths-of-the-reference"),
        pytest.param(interval(0.63, preemptions=1), 0.9, id="below-four-fifths-of-the-reference"),
        pytest.param(interval(0.7, proof=True), 0.9, id="what-residents-miss-is-proof"),
        pytest.param(interval(0.9, proof=True), 1.0, id="residents-found-nearly-all"),
        pytest.param(interval(0.3, preemptions=1, full=True), 1.0, id="nobody-enters-as-it-is"),
        pytest.param(interval(0.0, proof=True, tokens=MIN_TOKENS - 1), 1.0, id="too-little-to-tell"),
        pytest.param(interval(0.0, preemptions=9, tokens=0), 1.0, id="idle"),
    ],
)
def test_one_interval(seen: Interval, factor: float) -> None:
    assert step(HEALTHY, seen, SPEC).factor == pytest.approx(factor)


def test_it_contracts_by_parts_and_recovers_by_steps() -> None:
    state, factors = HEALTHY, []
    for _ in range(3):
        state = step(state, interval(0.1, preemptions=1), SPEC)
        factors.append(state.factor)
    assert factors == pytest.approx([0.9, 0.81, 0.729])
    assert state.percent == 27
    for _ in range(3):
        state = step(state, interval(0.8), SPEC)
        factors.append(state.factor)
    assert factors[3:] == pytest.approx([0.749, 0.769, 0.789])


@pytest.mark.parametrize("tokens", [0, TOKENS])
def test_it_recovers_fully_also_where_nothing_runs_any_more(tokens: int) -> None:
    state = Pressure(0.5, reference=0.8)
    for _ in range(25):
        state = step(state, interval(0.8, tokens=tokens), SPEC)

    assert (state.factor, state.percent) == (1.0, 0)


def test_while_nobody_enters_anyway_it_neither_contracts_nor_recovers() -> None:
    contracted = Pressure(0.7, reference=0.8)

    assert step(contracted, interval(0.1, preemptions=9, full=True), SPEC).factor == 0.7
    assert step(contracted, interval(0.8, full=True), SPEC).factor == pytest.approx(0.72)


def test_a_rate_that_stays_low_becomes_the_healthy_one() -> None:
    """Another kind of prompt came to stay: its rate is no sign of evictions for ever."""
    state = HEALTHY
    for _ in range(200):
        state = step(state, interval(0.3, usage=0.99), SPEC)
    assert state.reference == pytest.approx(0.3, abs=0.1)
    assert state.factor == 1.0


def test_switched_off_nothing_contracts() -> None:
    off = PressureSpec(enabled=False)

    assert step(Pressure(0.6, 0.9), interval(0.0, preemptions=9, usage=1), off) == Pressure()


@given(
    seen=st.lists(
        st.builds(
            interval,
            rate=st.floats(0, 1),
            preemptions=st.integers(0, 3),
            usage=st.floats(0, 1),
            proof=st.booleans(),
            full=st.booleans(),
            tokens=st.integers(0, 2 * MIN_TOKENS),
        ),
        max_size=60,
    ),
    spec=st.builds(
        PressureSpec,
        decrease_percent=st.integers(1, 90),
        increase_percent=st.integers(1, 100),
        max_percent=st.integers(1, 90),
    ),
)
def test_it_stays_between_its_bounds(seen: list[Interval], spec: PressureSpec) -> None:
    state = Pressure()
    for one in seen:
        after = step(state, one, spec)
        assert 1 - spec.max_percent / 100 - 1e-9 <= after.factor <= 1
        assert 0 <= after.reference <= 1
        assert after.factor >= state.factor * (1 - spec.decrease_percent / 100) - 1e-9
        assert after.factor <= state.factor + spec.increase_percent / 100 + 1e-9
        state = after


RAN = EngineTotals(1000, 600, 2, 0.5)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(RAN, EngineTotals(1500, 700, 3, 0.9), (500, 100, 1, 0.9), id="counted-on"),
        pytest.param(RAN, EngineTotals(300, 200, 0, 0.1), (300, 200, 0, 0.1), id="restarted"),
        pytest.param(
            EngineTotals(0, 0, 2), EngineTotals(300, 200, 0, 0.1), (300, 200, 0, 0.1), id="restarted-idle"
        ),
        pytest.param(NO_TOTALS, NO_TOTALS, (0, 0, 0, 0.0), id="nothing-yet"),
    ],
)
def test_an_interval_is_what_counters_grew_by(
    before: EngineTotals, after: EngineTotals, expected: tuple[int, int, int, float]
) -> None:
    seen = counted(before, after, full=False)

    assert (seen.queried_tokens, seen.hit_tokens, seen.preemptions, seen.kv_usage) == expected
    assert not seen.proof


class TestRetention:
    """The router's own loop: what residents found of what they should have."""

    def test_history_that_was_evicted_contracts_its_engine_alone(self) -> None:
        kept = Retention()
        kept.count("e0", expected=5000, found=1000)
        kept.count("e1", expected=5000, found=5000)
        kept.step(0, SPEC, ())

        assert (kept.factor("e0"), kept.factor("e1"), kept.factor("unknown")) == (0.9, 1.0, 1.0)

    def test_an_engine_that_is_full_stays_as_it_is(self) -> None:
        kept = Retention()
        for engine in ("e0", "e1"):
            kept.count(engine, expected=5000, found=1000)
        kept.step(0, SPEC, {"e0"})

        assert (kept.factor("e0"), kept.factor("e1")) == (1.0, 0.9)

    def test_it_looks_back_over_whole_intervals(self) -> None:
        kept = Retention()
        kept.step(0, SPEC, ())
        kept.count("e0", expected=5000, found=1000)
        kept.step(INTERVAL_SECONDS - 0.1, SPEC, ())
        assert kept.factor("e0") == 1.0
        kept.step(INTERVAL_SECONDS, SPEC, ())
        assert kept.factor("e0") == 0.9

    def test_more_found_than_expected_makes_up_for_nothing(self) -> None:
        kept = Retention()
        kept.count("e0", expected=4000, found=500)
        kept.count("e0", expected=100, found=9000)
        kept.step(0, SPEC, ())

        assert kept.factor("e0") == 0.9

    def test_caches_that_were_emptied_everywhere_are_no_eviction(self) -> None:
        kept = Retention()
        kept.count("e0", expected=5000, found=0)
        kept.count("e1", expected=5000, found=300)
        kept.step(0, SPEC, ())

        assert (kept.factor("e0"), kept.factor("e1")) == (1.0, 1.0)

    def test_it_recovers_while_nothing_is_said(self) -> None:
        kept = Retention()
        kept.count("e0", expected=5000, found=500)
        for at in range(6):
            kept.step(at * INTERVAL_SECONDS, SPEC, ())

        assert kept.factor("e0") == pytest.approx(1.0)

    def test_it_forgets_engines_that_are_gone(self) -> None:
        kept = Retention()
        kept.count("e0", expected=5000, found=0)
        kept.step(0, SPEC, ())
        kept.count("e0", expected=5000, found=0)
        kept.keep({"e1"})
        kept.step(INTERVAL_SECONDS, SPEC, ())

        assert kept.factor("e0") == 1.0
