"""Splits by largest remainder, and stages that never give out more than there is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.splitting import SLACK, Claim, Holding, apportion, split, stage

NAMES = st.sampled_from("abcdefgh")
CLAIMS = st.dictionaries(
    NAMES,
    st.builds(
        Claim,
        demand=st.one_of(st.integers(0, 50).map(float), st.floats(0, 1000)),
        part=st.integers(0, 60),
        oldest_wait=st.sampled_from([0.0, 1.0, 30.0]),
    ),
    min_size=1,
)
HOLDINGS = st.dictionaries(
    NAMES,
    st.builds(Holding, in_force=st.integers(0, 40), part=st.integers(0, 40), used=st.integers(0, 60)),
)


@pytest.mark.parametrize(
    ("total", "claims", "parts"),
    [
        pytest.param(
            9, {"a": Claim(10), "b": Claim(20), "c": Claim(60)}, {"a": 1, "b": 2, "c": 6}, id="exact"
        ),
        pytest.param(
            10, {"a": Claim(10), "b": Claim(10), "c": Claim(11)}, {"a": 3, "b": 3, "c": 4}, id="remainder"
        ),
        pytest.param(
            10, {"a": Claim(4), "b": Claim(0)}, {"a": 7, "b": 3}, id="what nobody asks for is shared alike"
        ),
        pytest.param(5, {"a": Claim(0), "b": Claim(0)}, {"a": 3, "b": 2}, id="no demand"),
        pytest.param(0, {"a": Claim(3, oldest_wait=1)}, {"a": 0}, id="nothing"),
        pytest.param(
            6, {"a": Claim(9, part=4), "b": Claim(9, part=2)}, {"a": 4, "b": 2}, id="near enough stays"
        ),
        pytest.param(6, {"a": Claim(9, part=5), "b": Claim(9, part=1)}, {"a": 3, "b": 3}, id="too far off"),
        pytest.param(
            7, {"a": Claim(9, part=1), "b": Claim(9, part=7)}, {"a": 3, "b": 4}, id="who had it keeps it"
        ),
        pytest.param(
            1,
            {"a": Claim(9, part=1, oldest_wait=2), "b": Claim(1, oldest_wait=8)},
            {"a": 0, "b": 1},
            id="the longest wait gets the only one",
        ),
        pytest.param(
            2,
            {"a": Claim(9, part=2), "b": Claim(9, oldest_wait=3), "c": Claim(9, oldest_wait=4)},
            {"a": 0, "b": 1, "c": 1},
            id="those who wait before those who only use",
        ),
    ],
)
def test_split(total: int, claims: dict[str, Claim], parts: dict[str, int]) -> None:
    assert split(total, claims) == parts


@given(total=st.integers(0, 200), claims=CLAIMS)
def test_a_split_is_whole_and_near_its_quotas(total: int, claims: dict[str, Claim]) -> None:
    for share in (split, apportion):
        parts = share(total, claims)
        assert sum(parts.values()) == total
        assert all(part >= 0 for part in parts.values())
        demand = sum(claim.demand for claim in claims.values())
        if share is split and demand < total:
            quotas = {n: c.demand + (total - demand) / len(claims) for n, c in claims.items()}
        else:
            quotas = {
                n: total * c.demand / demand if demand else total / len(claims) for n, c in claims.items()
            }
        for name, part in parts.items():
            assert abs(part - quotas[name]) <= max(1, SLACK * quotas[name]) + 1e-6


@given(total=st.integers(0, 200), claims=CLAIMS)
def test_a_split_that_was_made_stays(total: int, claims: dict[str, Claim]) -> None:
    parts = split(total, claims)
    settled = {
        name: Claim(claim.demand, parts[name], claim.oldest_wait if parts[name] else 0.0)
        for name, claim in claims.items()
    }
    assert split(total, settled) == parts


@given(claims=CLAIMS, total=st.integers(1, 8))
def test_whoever_waits_longest_has_a_part(claims: dict[str, Claim], total: int) -> None:
    waiting = {
        n: Claim(max(1.0, c.demand), c.part, c.oldest_wait) for n, c in claims.items() if c.oldest_wait
    }
    if not waiting:
        return
    longest = max(claim.oldest_wait for claim in waiting.values())
    parts = split(total, {**claims, **waiting})
    assert any(parts[name] for name, claim in waiting.items() if claim.oldest_wait == longest)


@given(total=st.integers(0, 100), claims=CLAIMS, holdings=HOLDINGS)
def test_a_stage_gives_out_no_more_than_there_is(
    total: int, claims: dict[str, Claim], holdings: dict[str, Holding]
) -> None:
    targets = split(total, claims)
    parts = stage(total, targets, holdings)
    names = targets.keys() | holdings.keys()
    before = {name: holdings[name].in_force or 0 if name in holdings else 0 for name in names}
    most = sum(max(before[name], parts.get(name, 0)) for name in names)
    assert most <= max(total, sum(before.values()))
    assert all(parts[name] <= target for name, target in targets.items())
    used = {name: holdings[name].used if name in holdings else 0 for name in names}
    sessions = sum(max(before[name], parts.get(name, 0), used[name]) for name in names)
    assert sessions <= max(total, sum(max(before[name], used[name]) for name in names))


@given(total=st.integers(0, 100), claims=CLAIMS)
def test_a_stage_without_obstacles_is_the_target(total: int, claims: dict[str, Claim]) -> None:
    targets = split(total, claims)
    settled = {name: Holding(in_force=math.floor(part / 2)) for name, part in targets.items()}
    assert stage(total, targets, settled) == targets


@given(total=st.integers(0, 100), claims=CLAIMS, holdings=HOLDINGS, unknown=NAMES)
def test_nobody_gets_more_while_somebody_is_unknown(
    total: int, claims: dict[str, Claim], holdings: dict[str, Holding], unknown: str
) -> None:
    parts = stage(total, split(total, claims), {**holdings, unknown: Holding(None, part=3)})
    known = {**holdings, unknown: Holding(None, part=3)}
    assert all(part <= (known[name].part if name in known else 0) for name, part in parts.items())
    assert sum(parts.values()) <= total
