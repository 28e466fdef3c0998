"""The life table: survival and blocks by age, priors that fade, and nothing that grows."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.lifetable import BUCKETS, EDGES, MIDDLES, Life, LifeTable, PriorLife, bucket_of

PRIOR = PriorLife(residency_seconds=30.0, start_blocks=10.0, footprint_blocks=25.0)
WEIGHT = 8.0


def lived(table: LifeTable, age: float, *, blocks: float = 20.0, times: int = 1) -> None:
    """Sessions of this length, from beginning to end."""
    for _ in range(times):
        table.see(since=0.0, age=age, blocks=blocks)
        table.end(age=age)


def life_of(*ages: float, weight: float = 1e-3) -> Life:
    """What the table says after sessions of these lengths, with next to no prior."""
    table = LifeTable()
    for age in ages:
        lived(table, age)
    return table.life(PRIOR, weight)


@pytest.mark.parametrize(
    ("age", "bucket"),
    [
        pytest.param(0.0, 0, id="new"),
        pytest.param(0.49, 0, id="first"),
        pytest.param(0.5, 1, id="an-edge-begins-its-bucket"),
        pytest.param(EDGES[20], 20, id="any-edge"),
        pytest.param(1e9, BUCKETS - 1, id="older-than-all"),
    ],
)
def test_buckets_of_age(age: float, bucket: int) -> None:
    assert bucket_of(age) == bucket


def test_with_nothing_seen_it_is_the_prior() -> None:
    life = LifeTable().life(PRIOR, WEIGHT)

    assert life.residency_seconds == pytest.approx(30, rel=0.01)
    assert life.footprint_blocks == pytest.approx(25, rel=0.03)
    # lognormal with a deviation of its mean: half the lives are shorter than 30 s / sqrt(2)
    assert life.surviving(30 / math.sqrt(2)) == pytest.approx(0.5, abs=0.02)


def test_the_prior_fades_with_the_count_of_sessions() -> None:
    table, found = LifeTable(), [30.0]
    for step in (8, 24, 168, 800):
        lived(table, 100.0, times=step)
        found.append(table.life(PRIOR, WEIGHT).residency_seconds)

    assert found == sorted(found)
    assert found[1] == pytest.approx(65, abs=20), "as many as the prior counts for: about half"
    assert found[3] == pytest.approx(100, rel=0.02)
    assert found[4] == pytest.approx(100, rel=0.002)


def test_a_heavier_prior_fades_later() -> None:
    table = LifeTable()
    lived(table, 100.0, times=20)

    light, heavy = (table.life(PRIOR, weight).residency_seconds for weight in (4.0, 64.0))
    assert heavy < light


@pytest.mark.parametrize(
    ("ages", "residency"),
    [
        pytest.param((50.0,) * 20, 50, id="all-alike"),
        pytest.param((10.0, 90.0) * 10, 50, id="two-kinds"),
        pytest.param((1.0,) * 99 + (1000.0,), 10.99, id="one-in-a-hundred-is-long"),
        pytest.param((0.1,) * 20, 0.1, id="shorter-than-a-bucket"),
        pytest.param((300_000.0,) * 3, 300_000, id="longer-than-all-buckets"),
    ],
)
def test_residency_is_the_mean_of_sessions_that_were_seen_to_their_end(
    ages: tuple[float, ...], residency: float
) -> None:
    assert life_of(*ages).residency_seconds == pytest.approx(residency, rel=0.01)


def test_running_sessions_lengthen_what_finished_ones_say() -> None:
    """Of 20 sessions half ended at 10 s; the others are 80 s old and still there."""
    table = LifeTable()
    lived(table, 10.0, times=10)
    before = table.life(PRIOR, 1e-3)
    for _ in range(10):
        table.see(since=0.0, age=80.0, blocks=20)
    after = table.life(PRIOR, 1e-3)

    assert before.residency_seconds == pytest.approx(10, rel=0.01)
    assert after.surviving(50) == pytest.approx(0.5, abs=0.06)
    assert after.residency_seconds > 40


def test_new_sessions_say_nothing_of_ages_that_they_have_not_reached() -> None:
    table = LifeTable()
    lived(table, 40.0, times=20)
    before = table.life(PRIOR, WEIGHT)
    for _ in range(1000):
        table.see(since=0.0, age=3.0, blocks=20)
    after = table.life(PRIOR, WEIGHT)

    assert after.residency_seconds == pytest.approx(before.residency_seconds, rel=0.05)


def test_blocks_are_known_by_age_and_averaged_over_the_life() -> None:
    """10 blocks for 20 s, then 30 blocks for 60 s: (200 + 1800) / 80."""
    table = LifeTable()
    for _ in range(20):
        table.see(since=0.0, age=20.0, blocks=10)
        table.see(since=20.0, age=80.0, blocks=30)
        table.end(age=80.0)
    life = table.life(PRIOR, 1e-3)

    assert life.blocks[bucket_of(5)] == pytest.approx(10, rel=0.01)
    assert life.blocks[bucket_of(60)] == pytest.approx(30, rel=0.01)
    assert life.footprint_blocks == pytest.approx(25, rel=0.03)
    assert life.deviation_blocks == pytest.approx(math.sqrt(0.25 * 225 + 0.75 * 25), rel=0.1)


def test_growth_is_what_sessions_gained_at_that_age() -> None:
    """A block a second for 20 s, then a tool's answer of 30 blocks at once, then nothing more."""
    table = LifeTable()
    for _ in range(20):
        table.see(since=0.0, age=20.0, blocks=20, gained=20)
        table.gain(age=20.0, blocks=30)
        table.see(since=20.0, age=80.0, blocks=60)
        table.end(age=80.0)
    life = table.life(PRIOR, 1e-3)

    assert life.growth[bucket_of(10)] == pytest.approx(1, rel=0.01)
    assert life.growth[bucket_of(70)] == pytest.approx(0, abs=0.01)
    at = bucket_of(20)
    assert life.growth[at] * (EDGES[at + 1] - EDGES[at]) == pytest.approx(30, abs=5)


def test_parked_sessions_leave_their_place_but_their_life_goes_on() -> None:
    """Half of the sessions are parked at 20 s, and all last 80 s in the end."""
    table = LifeTable()
    for number in range(40):
        table.see(since=0.0, age=80.0, blocks=20)
        if number % 2:
            table.park(age=20.0)
        table.end(age=80.0)
    life = table.life(PRIOR, 1e-3)

    assert life.residency_seconds == pytest.approx(80, rel=0.01)
    assert life.surviving(10) == pytest.approx(1, abs=0.01)
    assert life.surviving(60) == pytest.approx(0.5, abs=0.01)


def test_sessions_that_hold_different_amounts_at_one_age_have_a_variance() -> None:
    table = LifeTable()
    lived(table, 50.0, blocks=10, times=20)
    lived(table, 50.0, blocks=30, times=20)
    life = table.life(PRIOR, 1e-3)

    assert life.variance[bucket_of(10)] == pytest.approx(100, rel=0.01)
    assert life.footprint_blocks == pytest.approx(20, rel=0.01)


def test_what_was_seen_fades_with_half_the_window() -> None:
    table = LifeTable()
    table.fade(now=0, window_seconds=300)
    lived(table, 10.0, times=1000)
    table.fade(now=150, window_seconds=300)
    lived(table, 100.0, times=round(1000 / math.e))

    assert table.life(PRIOR, 1e-3).residency_seconds == pytest.approx(55, rel=0.01), "both weigh the same"
    assert table.finished == 1000 + round(1000 / math.e), "what they are is counted, not faded"


def test_its_memory_does_not_grow_with_the_sessions() -> None:
    table, sizes = LifeTable(), []
    for _ in range(2):
        for age in range(1, 500):
            lived(table, float(age))
        sizes.append(len(pickle.dumps(table)))
    assert sizes[1] == pytest.approx(sizes[0], abs=8)


ages = st.floats(0, 2e5)
looks = st.lists(st.tuples(ages, st.floats(0, 1000), st.floats(0, 1e5), st.booleans(), st.floats(0, 1e4)))


@given(
    looks=looks,
    prior=st.builds(
        PriorLife,
        residency_seconds=st.floats(0, 1e5),
        start_blocks=st.floats(1, 1e4),
        footprint_blocks=st.floats(1, 1e4),
    ),
    weight=st.floats(1e-6, 1e4),
)
def test_whatever_was_seen_it_is_a_life(
    looks: list[tuple[float, float, float, bool, float]], prior: PriorLife, weight: float
) -> None:
    table, now = LifeTable(), 0.0
    for age, seconds, blocks, ended, passed in looks:
        now += passed
        table.fade(now=now, window_seconds=300)
        table.see(since=age, age=age + seconds, blocks=blocks)
        if ended:
            table.end(age=age + seconds)
    life = table.life(prior, weight)

    assert life.staying[0] == 1
    assert all(0 <= after <= before for before, after in zip(life.staying, life.staying[1:], strict=False))
    assert all(0 <= life.surviving(age) <= 1 for age in MIDDLES)
    assert 0 < life.residency_seconds < math.inf
    assert 0 < life.footprint_blocks < math.inf
    assert min(life.variance) >= 0
    assert life.deviation_blocks >= 0
    assert min(life.blocks) >= 0


def test_what_is_gained_in_next_to_no_time_is_finite() -> None:
    table = LifeTable()
    table.see(since=0.0, age=5e-324, blocks=10.0, gained=10.0)
    assert all(math.isfinite(growth) for growth in table.life(PriorLife(10.0, 1.0, 10.0), 8.0).growth)
