"""The forecast: what residents will hold, and the chance that it exceeds the pot."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.forecast import (
    HORIZON_PARTS,
    NOTHING,
    Outlay,
    Outlook,
    Pot,
    horizons,
    quantile,
    times,
)
from rolloutpool_router.core.lifetable import EDGES, MIDDLES, Life, LifeTable, PriorLife

SAFETY = 0.95
Z = quantile(SAFETY)
HORIZONS = len(HORIZON_PARTS)


class Truth:
    """Sessions that stay exponentially long and grow evenly, each at its own pace (gamma distributed)."""

    def __init__(self, *, residency: float, start: float, growth: float, spread: float = 0.0) -> None:
        self.residency = residency
        self.start = start
        self.growth = growth
        self.spread = spread

    def life(self) -> Life:
        """What a life table would say after very many of them."""
        prior = PriorLife(self.residency, self.start, self.start + self.growth * self.residency)
        return replace(
            LifeTable().life(prior, 8.0),
            residency_seconds=self.residency,
            footprint_blocks=prior.footprint_blocks,
            staying=tuple(math.exp(-edge / self.residency) for edge in EDGES),
            blocks=tuple(self.start + self.growth * age for age in MIDDLES),
            variance=tuple((self.spread * self.growth * age) ** 2 for age in MIDDLES),
            growth=(self.growth,) * len(EDGES),
        )

    def pace(self, rng: Random) -> float:
        if not self.spread:
            return self.growth
        return rng.gammavariate(1 / self.spread**2, self.spread**2 * self.growth)

    def outlook(self) -> tuple[tuple[float, ...], Outlook]:
        ahead = horizons({"one": self.life()})
        return ahead, Outlook(self.life(), ahead)


def put(pot: Pot, resident: Outlay) -> None:
    pot.replace(NOTHING, resident)


def filled(pot: Pot, newcomer: Outlay, *, blocks: float, z: float = Z) -> int:
    """Let newcomers enter while there is room; how many did."""
    entered = 0
    while pot.room(newcomer, blocks=blocks, z=z):
        put(pot, newcomer)
        entered += 1
    return entered


def overflows(held_then: Callable[[Random, float], float], ahead: tuple[float, ...], blocks: float) -> float:
    """Part of many futures that hold more than the pot, at the horizon where most do."""
    rng, runs = Random(1), 400
    return max(
        sum(held_then(rng, seconds) > blocks for _ in range(runs)) / runs for seconds in ahead if seconds
    )


TRUTHS = [
    pytest.param(Truth(residency=30, start=10, growth=1.0, spread=0.5), 2000, id="growing"),
    pytest.param(Truth(residency=300, start=5, growth=0.5, spread=0.7), 8000, id="from-nearly-nothing"),
    pytest.param(Truth(residency=60, start=5, growth=2.0), 8000, id="all-at-one-pace"),
]


@pytest.mark.parametrize(("truth", "blocks"), TRUTHS)
def test_a_batch_that_enters_at_once_keeps_the_chance_and_wastes_little(truth: Truth, blocks: float) -> None:
    """All are new, as at the start of a training step, and grow together."""
    ahead, ours = truth.outlook()
    entered = filled(Pot(), ours.of(age=0.0, blocks=truth.start), blocks=blocks)

    def held(sessions: int) -> Callable[[Random, float], float]:
        return lambda rng, seconds: sum(
            truth.start + truth.pace(rng) * seconds
            for _ in range(sessions)
            if rng.expovariate(1 / truth.residency) > seconds
        )

    assert overflows(held(entered), ahead, blocks) <= 1 - SAFETY + 0.04
    assert overflows(held(round(1.15 * entered)), ahead, blocks) > 1 - SAFETY


@pytest.mark.parametrize(("truth", "blocks"), TRUTHS)
def test_residents_of_all_ages_keep_the_chance_and_waste_little(truth: Truth, blocks: float) -> None:
    ahead, ours = truth.outlook()
    rng, pot = Random(7), Pot()
    residents: list[tuple[float, float]] = []
    newcomer = ours.of(age=0.0, blocks=truth.start)
    while pot.room(newcomer, blocks=blocks, z=Z):
        age, pace = rng.expovariate(1 / truth.residency), truth.pace(rng)
        residents.append((truth.start + pace * age, pace))
        put(pot, ours.of(age=age, blocks=residents[-1][0]))

    def held(futures: Random, seconds: float) -> float:
        return sum(
            blocks + pace * seconds
            for blocks, pace in residents
            if futures.expovariate(1 / truth.residency) > seconds
        )

    # The last may have been one too many: only a newcomer is asked for.
    assert overflows(held, ahead, blocks + truth.life().footprint_blocks) <= 1 - SAFETY + 0.04
    assert pot.held > 0.8 * blocks
    assert overflows(held, ahead, 0.9 * pot.held) > 1 - SAFETY


def test_counting_only_what_is_held_now_would_overflow() -> None:
    truth = Truth(residency=30, start=4, growth=1.0)
    _, ours = truth.outlook()
    new = ours.of(age=0.0, blocks=truth.start)
    flat = Outlay((new.mean[0],) * HORIZONS, NOTHING.variance)

    entered, at_once = filled(Pot(), new, blocks=2000), filled(Pot(), flat, blocks=2000)
    at_the_peak = math.exp(-26 / 30) * (4 + 26)
    assert at_once * at_the_peak > 2000
    assert entered * at_the_peak < 2000


@pytest.mark.parametrize(
    ("sigma", "most"),
    [
        pytest.param(1.2, 1.0, id="lengths-of-all-kinds"),
        pytest.param(0.5, 1.0, id="similar-lengths"),
        pytest.param(0.3, 1.0, id="nearly-one-length"),
        pytest.param(0.01, 1.15, id="one-length"),
    ],
)
def test_between_the_horizons_a_batch_does_not_outgrow_the_pot_either(sigma: float, most: float) -> None:
    """Lognormal lengths around 30 s: the peak of a batch lies anywhere, not just where the forecast looks."""
    lengths = NormalDist(math.log(30) - sigma * sigma / 2, sigma)

    def there(age: float) -> float:
        return 1 - lengths.cdf(math.log(age)) if age > 0 else 1.0

    truth = Truth(residency=30, start=10, growth=1.0)
    life = replace(truth.life(), staying=tuple(max(there(edge), 1e-9) for edge in EDGES))
    new = Outlook(life, horizons({"one": life})).of(age=0.0, blocks=truth.start)
    entered = filled(Pot(), new, blocks=4000)

    peak = max(there(age) * (truth.start + truth.growth * age) for age in range(120))
    assert 0.8 * 4000 < entered * peak <= most * 4000


def test_certainty_costs_room() -> None:
    truth = Truth(residency=30, start=10, growth=1.0, spread=0.5)
    _, ours = truth.outlook()
    found = [
        filled(Pot(), ours.of(age=0.0, blocks=10), blocks=2000, z=quantile(safety))
        for safety in (0.5, 0.9, 0.95, 0.999)
    ]

    assert found == sorted(found, reverse=True)
    assert found[0] > 1.1 * found[-1]


@pytest.mark.parametrize(
    ("confidence", "z"),
    [
        pytest.param(0.95, 1.645, id="usual"),
        pytest.param(0.5, 0.0, id="half"),
        pytest.param(0.1, 0.0, id="never-less-than-the-mean"),
        pytest.param(1.0, 3.719, id="never-endless"),
    ],
)
def test_the_margin(confidence: float, z: float) -> None:
    assert quantile(confidence) == pytest.approx(z, abs=0.001)


def test_it_looks_as_far_as_the_longest_class_stays() -> None:
    short, long = (Truth(residency=seconds, start=1, growth=0).life() for seconds in (10, 200))

    assert horizons({"short": short, "long": long}) == tuple(200 * part for part in HORIZON_PARTS)
    assert horizons({}) == (0.0,) * HORIZONS


def test_at_once_a_session_holds_what_it_holds() -> None:
    ahead, ours = Truth(residency=30, start=10, growth=1.0, spread=1.0).outlook()
    new, old = ours.of(age=0.0, blocks=7), ours.of(age=1000.0, blocks=7)

    assert ahead[0] == 0
    assert (new.mean[0], new.variance[0], old.mean[0], old.variance[0]) == (7, 0, 7, 0)


def test_a_session_that_will_be_gone_counts_less_the_further_ahead() -> None:
    _, ours = Truth(residency=30, start=10, growth=0.0).outlook()
    outlay = ours.of(age=5.0, blocks=10)

    assert list(outlay.mean) == sorted(outlay.mean, reverse=True)
    there = math.exp(-HORIZON_PARTS[-1])
    assert outlay.mean[-1] == pytest.approx(10 * there, rel=0.05)
    assert outlay.variance[-1] == pytest.approx(100 * there * (1 - there), rel=0.1)


def test_where_others_will_hold_too_much_a_short_one_may_still_enter() -> None:
    """It will be gone by then, and makes nothing worse."""
    pot, later = Pot(), [0.0] * HORIZONS
    later[-1] = 150.0
    put(pot, Outlay((50.0,) * (HORIZONS - 1) + (150.0,), NOTHING.variance))
    short = Outlay((5.0,) * (HORIZONS - 1) + (0.1,), NOTHING.variance)
    staying = Outlay((5.0,) * HORIZONS, NOTHING.variance)

    assert pot.room(short, blocks=100, z=Z)
    assert not pot.room(staying, blocks=100, z=Z)


numbers = st.lists(st.floats(0, 1e4), min_size=HORIZONS, max_size=HORIZONS).map(tuple)
outlays = st.builds(Outlay, mean=numbers, variance=numbers)
resident_lists = st.lists(outlays, max_size=6)


@given(residents=resident_lists, newcomer=outlays, blocks=st.floats(0, 1e5), z=st.floats(0, 4))
def test_more_blocks_or_less_caution_never_take_room_away(
    residents: list[Outlay], newcomer: Outlay, blocks: float, z: float
) -> None:
    pot = Pot()
    for resident in residents:
        put(pot, resident)

    if pot.room(newcomer, blocks=blocks, z=z):
        assert pot.room(newcomer, blocks=blocks * 1.01 + 1, z=z)
        assert pot.room(newcomer, blocks=blocks, z=z / 2)
        assert pot.held + newcomer.mean[0] <= blocks + 1e-6


@given(residents=resident_lists, newcomer=outlays, more=outlays, blocks=st.floats(0, 1e5))
def test_a_further_resident_never_makes_room(
    residents: list[Outlay], newcomer: Outlay, more: Outlay, blocks: float
) -> None:
    pot = Pot()
    for resident in residents:
        put(pot, resident)
    before = pot.room(newcomer, blocks=blocks, z=Z)
    put(pot, more)

    assert before or not pot.room(newcomer, blocks=blocks, z=Z)


@given(residents=resident_lists, order=st.randoms(use_true_random=False))
def test_taking_out_undoes_putting_in(residents: list[Outlay], order: Random) -> None:
    pot, alone = Pot(), Pot()
    kept = residents[::2]
    for resident in residents:
        put(pot, resident)
    leaving = residents[1::2]
    order.shuffle(leaving)
    for resident in leaving:
        pot.replace(resident, NOTHING)
    for resident in kept:
        put(alone, resident)

    assert pot.held == pytest.approx(alone.held, abs=1e-6)
    assert pot.expected() == pytest.approx(alone.expected(), abs=1e-6)
    for resident in kept:
        pot.replace(resident, NOTHING)
    assert pot.held == pytest.approx(0, abs=1e-6)


@given(one=outlays, sessions=st.integers(1, 20))
def test_several_alike_are_so_many_times_one(one: Outlay, sessions: int) -> None:
    pot, at_once = Pot(), Pot()
    for _ in range(sessions):
        put(pot, one)
    put(at_once, times(one, sessions))

    assert at_once.held == pytest.approx(pot.held, rel=1e-6)
    assert at_once.expected() == pytest.approx(pot.expected(), rel=1e-6)
