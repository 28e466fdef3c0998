"""What runs are measured with: drift, the blocks that residents need, series, and the truth of the oracle."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.estimates import Expectation, Method
from rolloutpool_router.core.lifetable import PriorLife
from rolloutpool_router.core.mixture import drift_percentage_points, shares
from rolloutpool_sim.fleet import drift
from rolloutpool_sim.fleet.opened import OpenSample
from rolloutpool_sim.fleet.oracle import Pace, estimator_of, full_pace, mean_cost, true_costs, typical
from rolloutpool_sim.fleet.residency import Residency
from rolloutpool_sim.fleet.run import run
from rolloutpool_sim.fleet.sampling import Group, Sample, Turn
from rolloutpool_sim.fleet.scenario import Scenario, parse_scenario
from rolloutpool_sim.fleet.simulation import Simulation
from rolloutpool_sim.leap import Segment

TARGET = {"a": 0.5, "b": 0.3, "c": 0.2}
SCENARIO: dict[str, Any] = {
    "name": "x",
    "fleet": {"engines": 1, "kvTokens": 50_000, "maxModelLen": 8192},
    "workloads": [
        {"name": "one", "share": 0.7, "promptTokens": 100, "outputTokens": {"exponential": {"mean": 300}}},
        {
            "name": "many",
            "share": 0.3,
            "systemTokens": 160,
            "promptTokens": 100,
            "outputTokens": 40,
            "turns": {"uniform": {"low": 1, "high": 6}},
            "turnTokens": 200,
            "toolGapSeconds": {"exponential": {"mean": 2}},
        },
    ],
    "trainer": {"outstanding": 40},
    "seconds": 300,
    "warmupSeconds": 60,
}


def randoms(name: str) -> Random:
    return Random(f"1/{name}")


def scenario(**fields: Any) -> Scenario:
    return parse_scenario(SCENARIO | fields)


@given(names=st.lists(st.sampled_from("abc"), max_size=120))
def test_drift_is_that_of_the_worst_window(names: list[str]) -> None:
    def of(part: list[str]) -> float:
        return drift_percentage_points(TARGET, shares(Counter(part)))

    under_test = drift.Drift(TARGET, window=40)
    for name in names:
        under_test.add(name)
    windows = [names[at : at + 40] for at in range(len(names) - 39)] or [names]
    if not names:
        assert under_test.now is under_test.worst is under_test.overall is None
        return
    assert under_test.worst == pytest.approx(max(of(window) for window in windows))
    assert under_test.now == pytest.approx(of(names[-40:]))
    assert under_test.overall == pytest.approx(of(names))


@given(seed=st.integers(0, 1000))
def test_residents_need_their_own_blocks_and_each_shared_prompt_once_an_engine(seed: int) -> None:
    rng, residency = Random(seed), Residency()
    groups = [
        Group(f"g{i}", b"", "a", (Segment("system", 64), Segment(i, 32)), 96, (), 0.0) for i in range(3)
    ]
    opened = [OpenSample(Sample(f"s{i}", groups[i % 3], ()), 0.0, 16) for i in range(9)]
    for now in range(60):
        one = rng.choice(opened)
        match rng.randrange(3):
            case 0:
                residency.enter(one, rng.choice("xy"), float(now))
            case 1:
                residency.leave(one, float(now))
            case 2:
                residency.resize(one, rng.randrange(1000), float(now))
        there = [each for each in opened if each.resident]
        held = {(each.engine, part) for each in there for part in each.sample.group.prompt}
        blocks = sum(each.own_blocks for each in there) + sum(part.tokens / 16 for _, part in held)
        assert residency.blocks == pytest.approx(blocks)


def test_a_session_counts_its_block_seconds_only_while_resident() -> None:
    residency = Residency()
    opened = OpenSample(Sample("s", Group("g", b"", "a", (), 0, (), 0.0), ()), 0.0, 16)
    residency.enter(opened, "x", 10.0)
    residency.resize(opened, 160, 10.0)
    residency.leave(opened, 14.0)
    residency.enter(opened, "y", 20.0)
    opened.count(21.0)
    assert opened.block_seconds == pytest.approx(50.0)
    assert opened.resident_seconds == pytest.approx(5.0)


@pytest.mark.parametrize("seconds", [10, 400, 401])
def test_a_series_has_at_most_400_points_and_covers_the_run(seconds: int) -> None:
    few = {"outstanding": 2}
    series = run(scenario(seconds=seconds, warmupSeconds=0, trainer=few), seed=1).series
    steps = {round(after - before, 6) for before, after in pairwise((0.0, *series.time))}
    assert len(series.time) <= 400
    assert len(steps) == 1
    assert series.time[-1] > seconds - steps.pop()


def test_the_mean_cost_of_a_session_is_that_of_its_course() -> None:
    turns = (Turn(0, 101, 0.0), Turn(59, 101, 5.0))
    group = Group("g", b"", "a", (Segment("g", 1000),), 1000, (), 0.0)
    cost = mean_cost([Sample("s", group, turns)], Pace(1.0, 0.1), block_size=1)
    # 11 s growing from 0 to 101 tokens, 5 s at 101, 11 s growing from 160 to 261.
    token_seconds = 11 * 101 / 2 + 5 * 101 + 11 * (160 + 261) / 2
    assert cost.residency_seconds == pytest.approx(27)
    assert cost.footprint_blocks == pytest.approx(token_seconds / 27)


def test_what_the_oracle_tells_is_the_mean_cost() -> None:
    method = Method(time_averaged=True, censoring=True, window_seconds=300)
    nothing = Expectation(life=PriorLife(1.0, 1.0, 1.0), peak_blocks=1.0, weight=1e-3)
    for name, samples in typical(scenario(), randoms).items():
        pace = Pace(0.5, 0.02)
        cost = mean_cost(samples, pace, block_size=16)
        estimator = estimator_of(samples, pace, block_size=16, now=0.0)
        told = estimator.cost(estimator.life(nothing, method, 0.0), nothing, method, 0.0)
        assert told.residency_seconds == pytest.approx(cost.residency_seconds, rel=0.02), name
        assert told.footprint_blocks == pytest.approx(cost.footprint_blocks, rel=0.1), name


def test_true_costs_are_those_that_a_run_without_scarcity_measures() -> None:
    found = Simulation(
        scenario(kv="Unlimited", admission={"policy": "None"}, oracle=True), randoms=randoms, seed=1
    )
    result = found.run()
    assert found.oracle is not None
    costs = true_costs(scenario(), randoms, pace=found.oracle.pace)
    for name, of in result.classes.items():
        assert of.residency_seconds == pytest.approx(costs[name].residency_seconds, rel=0.15), name
        assert of.footprint_blocks == pytest.approx(costs[name].footprint_blocks, rel=0.15), name


def test_the_pace_of_a_full_engine_is_slower_with_more_kv() -> None:
    small, large = (
        full_pace(of, typical(of, randoms))
        for of in (scenario(), scenario(fleet=SCENARIO["fleet"] | {"kvTokens": 100_000}))
    )
    assert small.itl_seconds < large.itl_seconds < 0.1


def test_the_oracle_tells_of_a_shift_at_once() -> None:
    change = {"class": "one", "replace": {"outputTokens": 3000}}

    def footprint(oracle: bool) -> float:
        shifted = scenario(
            oracle=oracle, events=[{"at": 59, "workload": change}], seconds=61, warmupSeconds=0
        )
        found = Simulation(shifted, randoms=randoms, seed=1)
        found.run()
        return found.routers.controllers[0].ledger.classes["one"].cost.footprint_blocks

    assert footprint(oracle=True) > 2 * footprint(oracle=False)
