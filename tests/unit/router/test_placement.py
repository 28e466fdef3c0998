"""Placement: prefix overlap, load, random ties."""

from __future__ import annotations

from random import Random

import pytest

from rolloutpool_router.core.placement import EngineLoad, choose_engine


def engine(name: str, occupied: float = 0, capacity: int = 1000) -> EngineLoad:
    return EngineLoad(name, capacity, capacity, {}, {}, occupied)


@pytest.mark.parametrize(
    ("engines", "overlap", "expected"),
    [
        pytest.param([engine("a", 500), engine("b", 100)], {}, "b", id="least-load"),
        pytest.param([engine("a", 500, 10_000), engine("b", 100)], {}, "a", id="load-relative-to-capacity"),
        pytest.param([engine("a", 54), engine("b", 50)], {"a": 3}, "a", id="prefix-before-load"),
        pytest.param([engine("a", 50), engine("b", 50)], {"a": 3, "b": 7}, "b", id="longest-prefix"),
        pytest.param([engine("a", 60), engine("b", 50)], {"a": 9}, "b", id="not-on-a-clearly-fuller-engine"),
        pytest.param([engine("a", 54), engine("b", 50)], {"a": 3, "b": 3}, "b", id="equal-prefix-least-load"),
        pytest.param([engine("a", 50, 0), engine("b", 40, 0)], {"a": 3}, "b", id="sizes-unknown"),
    ],
)
def test_where_a_new_session_goes(engines: list[EngineLoad], overlap: dict[str, int], expected: str) -> None:
    assert choose_engine(engines, overlap, Random(1)).name == expected


def test_ties_fall_at_random() -> None:
    engines = [engine("a"), engine("b"), engine("c")]
    rng = Random(1)

    assert {choose_engine(engines, {}, rng).name for _ in range(50)} == {"a", "b", "c"}
