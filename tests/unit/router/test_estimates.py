"""Estimates: unbiased under growth, quick after a shift, and the priors while little has been seen."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from statistics import mean

import pytest

from rolloutpool_router.core.estimates import (
    MAX_OBSERVATIONS,
    ClassEstimator,
    Expectation,
    Finished,
    Method,
    Source,
)
from rolloutpool_router.core.lifetable import PriorLife

WINDOW = 300.0
FULL = Method(time_averaged=True, censoring=True, window_seconds=WINDOW)
FINISHED_ALONE = replace(FULL, censoring=False)
EXPECTED = Expectation(PriorLife(90.0, 5.0, 60.0), peak_blocks=80.0, weight=8.0)
START = 10.0
STEP = 2.0
Draw = Callable[[Random], float]
"""Residency of one session, in seconds."""


def exponential(seconds: float) -> Draw:
    return lambda rng: rng.expovariate(1 / seconds)


def lognormal(seconds: float, sigma: float) -> Draw:
    return lambda rng: rng.lognormvariate(math.log(seconds) - sigma * sigma / 2, sigma)


def one_in_a_hundred_is_50_times_longer(seconds: float) -> Draw:
    return lambda rng: rng.expovariate(1 / seconds) * (50 if rng.random() < 0.01 else 1)


def always(seconds: float) -> Draw:
    return lambda _: seconds


@dataclass
class Running:
    began: float
    ends: float
    seen: float


class Population:
    """Sessions that come at random, grow by `growth` blocks a second, and end; looked at now and then."""

    def __init__(self, draw: Draw, *, seed: int, rate: Callable[[float], float], growth: float = 1.0) -> None:
        self.draw = draw
        self.rate = rate
        self.growth = growth
        self.rng = Random(seed)
        self.now = 0.0
        self.next = 0.0
        self.running: list[Running] = []
        self.estimator = ClassEstimator()

    def run(self, until: float) -> Population:
        while self.now < until:
            self.now += STEP
            while self.next <= self.now:
                self.running.append(Running(self.next, self.next + self.draw(self.rng), self.next))
                self.next += self.rng.expovariate(self.rate(self.next))
            for session in self.running:
                self.look(session)
            self.running = [session for session in self.running if session.ends > self.now]
            if self.now % 6 == 0:
                self.estimator.life(EXPECTED, FULL, self.now)
        return self

    def look(self, session: Running) -> None:
        until = min(self.now, session.ends)
        since, age = session.seen - session.began, until - session.began
        self.estimator.table.see(since=since, age=age, blocks=START + self.growth * (since + age) / 2)
        session.seen = until
        if session.ends <= self.now:
            average = START + self.growth * age / 2
            self.estimator.end(Finished(age, average, average + self.growth * age / 2), now=until)

    def residency(self, method: Method = FULL) -> float:
        return self.cost(method)[1]

    def footprint(self, method: Method = FULL) -> float:
        return self.cost(method)[0]

    def cost(self, method: Method) -> tuple[float, float]:
        life = self.estimator.life(EXPECTED, method, self.now)
        cost = self.estimator.cost(life, EXPECTED, method, self.now)
        return cost.footprint_blocks, cost.residency_seconds


def steady(_: float) -> float:
    return 2.0


def doubling(now: float) -> float:
    """Sessions per second, twice as many every 100 s."""
    return 0.25 * 2 ** (now / 100)


# A session that grows evenly by one block a second holds START + E[T^2] / 2 E[T] on average.
DISTRIBUTIONS = [
    pytest.param(exponential(30), 30, START + 30, 0.07, id="exponential"),
    pytest.param(lognormal(30, 0.9), 30, START + 15 * math.exp(0.81), 0.07, id="lognormal"),
    pytest.param(always(30), 30, START + 15, 0.02, id="all-alike"),
]


@pytest.mark.parametrize("rate", [steady, doubling])
@pytest.mark.parametrize(("draw", "residency", "footprint", "error"), DISTRIBUTIONS)
def test_estimates_are_unbiased_in_steady_times_and_under_growth(
    draw: Draw, residency: float, footprint: float, error: float, rate: Callable[[float], float]
) -> None:
    found = [Population(draw, seed=seed, rate=rate).run(500) for seed in range(3)]

    assert mean(one.residency() for one in found) == pytest.approx(residency, rel=error)
    assert mean(one.footprint() for one in found) == pytest.approx(footprint, rel=2 * error)


def test_a_heavy_tail_is_seen_in_full() -> None:
    """1 % of the sessions stay 50 times as long: they are a third of all residency."""
    draw = one_in_a_hundred_is_50_times_longer(10)
    found = [Population(draw, seed=seed, rate=steady, growth=0.1).run(2000) for seed in range(4)]

    assert mean(one.residency() for one in found) == pytest.approx(14.9, rel=0.15)


@pytest.mark.parametrize(("draw", "residency"), [(exponential(30), 30), (lognormal(30, 0.9), 30)])
def test_finished_sessions_alone_are_biased_short_under_growth(draw: Draw, residency: float) -> None:
    """Why running sessions must count: of those that began lately only the short ones have ended."""
    found = [Population(draw, seed=seed, rate=doubling).run(500) for seed in range(3)]

    assert mean(one.residency(FINISHED_ALONE) for one in found) < 0.87 * residency
    assert mean(one.footprint(FINISHED_ALONE) for one in found) < mean(one.footprint() for one in found)


@pytest.mark.parametrize("kind", [exponential, lambda seconds: lognormal(seconds, 0.9), always])
def test_an_abrupt_shift_shows_before_the_first_long_session_has_ended(kind: Callable[[float], Draw]) -> None:
    found = [Population(kind(20), seed=seed, rate=steady).run(600) for seed in range(3)]
    both: list[tuple[float, float]] = []
    for after in (0, 60, 300, 600):
        for one in found:
            one.draw = kind(60)
            one.run(600 + after)
        both.append(
            (mean(one.residency() for one in found), mean(one.residency(FINISHED_ALONE) for one in found))
        )
    censored, finished = zip(*both, strict=True)

    assert censored[0] == pytest.approx(20, rel=0.07)
    assert censored[1] > 24, "a minute after the shift"
    assert finished[1] < 23
    assert censored[2] > 48, "a window after it"
    assert censored[3] == pytest.approx(60, rel=0.1)


def test_shorter_sessions_show_as_well() -> None:
    found = Population(exponential(60), seed=1, rate=steady).run(600)
    before = found.residency()
    found.draw = exponential(20)
    found.run(1300)

    assert before == pytest.approx(60, rel=0.15)
    assert found.residency() == pytest.approx(20, rel=0.15)


def test_the_paper_counts_peaks() -> None:
    found = Population(always(30), seed=1, rate=steady).run(500)
    peaks = replace(FULL, time_averaged=False)

    assert found.footprint() == pytest.approx(START + 15, rel=0.02)
    assert found.footprint(peaks) == pytest.approx(START + 30, rel=0.02)
    assert found.residency(peaks) == found.residency()


def test_with_nothing_seen_every_method_says_the_priors() -> None:
    fresh = Population(always(30), seed=1, rate=steady)

    assert fresh.cost(FULL) == pytest.approx((60, 90), rel=0.03)
    assert fresh.cost(FINISHED_ALONE) == (60, 90)
    assert fresh.cost(replace(FULL, time_averaged=False)) == pytest.approx((80, 90), rel=0.03)


@pytest.mark.parametrize(
    ("finished", "weight", "source"),
    [
        pytest.param(0, 8.0, Source.PRIORS, id="none-has-ended"),
        pytest.param(1, 8.0, Source.BLEND, id="one-has"),
        pytest.param(31, 8.0, Source.BLEND, id="not-enough-yet"),
        pytest.param(32, 8.0, Source.OBSERVED, id="four-times-the-priors-weight"),
        pytest.param(32, 9.0, Source.BLEND, id="a-heavier-prior"),
    ],
)
def test_where_an_estimate_comes_from(finished: int, weight: float, source: Source) -> None:
    estimator = ClassEstimator()
    for _ in range(finished):
        estimator.end(Finished(10.0, 5.0, 5.0), now=0.0)

    assert estimator.source(replace(EXPECTED, weight=weight)) is source


def test_finished_sessions_count_for_the_window_only() -> None:
    estimator = ClassEstimator()
    for now, seconds in ((0.0, 10.0), (250.0, 50.0)):
        for _ in range(1000):
            estimator.end(Finished(seconds, 5.0, 5.0), now=now)
    light = replace(EXPECTED, weight=1e-6)
    life = estimator.life(light, FINISHED_ALONE, 400.0)

    assert estimator.cost(life, light, FINISHED_ALONE, 299.0).residency_seconds < 50
    assert estimator.cost(life, light, FINISHED_ALONE, 301.0).residency_seconds == pytest.approx(50)


def test_its_memory_is_bounded() -> None:
    estimator, sizes = ClassEstimator(), []
    for _ in range(2):
        for number in range(2 * MAX_OBSERVATIONS):
            estimator.end(Finished(10.0 + number, 5.0, 5.0), now=float(number))
        sizes.append(len(pickle.dumps(estimator)))

    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)
