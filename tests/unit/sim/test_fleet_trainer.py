"""The trainer: what it submits when, in whole groups and in the mixture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_sim.fleet.scenario import parse_scenario
from rolloutpool_sim.fleet.trainer import Order, Trainer

SIZES = {"a": 16, "b": 4, "c": 1}
SHARES = {"a": 0.5, "b": 0.3, "c": 0.2}


def trainer(**fields: Any) -> Trainer:
    return Trainer(
        parse_scenario(
            {
                "name": "x",
                "workloads": [
                    {
                        "name": name,
                        "share": share,
                        "groupSize": SIZES[name],
                        "promptTokens": 10,
                        "outputTokens": 10,
                    }
                    for name, share in SHARES.items()
                ],
                "trainer": fields,
            }
        )
    )


def ordered(orders: list[Order]) -> dict[str, int]:
    return {order.class_name: order.groups * SIZES[order.class_name] for order in orders}


def test_per_class_each_class_keeps_its_share_open() -> None:
    under_test = trainer(outstanding=320)
    assert ordered(under_test.start()) == {"a": 160, "b": 96, "c": 64}
    for _ in range(3):
        assert under_test.completed("b", 1.0) == ([], False)
    assert under_test.completed("b", 1.0) == ([Order("b", 1)], False)
    assert under_test.completed("c", 2.0) == ([Order("c", 1)], False)


def test_a_class_whose_share_is_less_than_a_group_keeps_one_group_open() -> None:
    assert ordered(trainer(outstanding=10).start()) == {"a": 16, "b": 4, "c": 2}


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"outstanding": 500}, id="in-all"),
        pytest.param({"outstandingPerEngine": 31.25}, id="each"),
    ],
)
def test_mixture_refill_follows_the_shares_whichever_class_finishes(sizes: Mapping[str, Any]) -> None:
    under_test = trainer(refill="Mixture", **sizes)
    under_test.start()
    for _ in range(2000):
        fastest = "b" if under_test.open["b"] else "a"
        under_test.completed(fastest, 1.0)
    assert under_test.open.total() > 500 - max(SIZES.values())
    total = under_test.submitted.total()
    for name, share in SHARES.items():
        assert under_test.submitted[name] == pytest.approx(share * total, abs=max(SIZES.values()))


@given(seed=st.integers(0, 1000), batch=st.integers(1, 400))
def test_sync_waits_for_its_whole_batch_and_submits_the_next(seed: int, batch: int) -> None:
    under_test, rng = trainer(mode="Sync", batch=batch, iterations=3), Random(seed)
    submitted = Counter(ordered(under_test.start()))
    assert batch <= submitted.total() < batch + max(SIZES.values())
    for number in range(1, 4):
        left = [name for name, count in submitted.items() for _ in range(count)]
        rng.shuffle(left)
        for name in left[:-1]:
            assert under_test.completed(name, float(number)) == ([], False)
        orders, iterated = under_test.completed(left[-1], float(number))
        assert iterated
        assert under_test.iterations[-1].counts == submitted
        assert under_test.iterations[-1].end == number
        submitted = Counter(ordered(orders))
        assert under_test.done is (number == 3)
        assert bool(orders) is (number < 3)


def test_a_sync_batch_is_in_the_mixture() -> None:
    submitted = ordered(trainer(mode="Sync", batch=320).start())
    assert submitted == {"a": 160, "b": 96, "c": 64}


def test_an_iteration_says_when_each_class_was_done() -> None:
    under_test = trainer(mode="Sync", batch=32)
    batch = ordered(under_test.start())
    for at, name in enumerate(("b", "c", "a"), start=1):
        for _ in range(batch[name]):
            under_test.completed(name, 10.0 * at)
    assert under_test.iterations[0].finished == {"b": 10.0, "c": 20.0, "a": 30.0}


def test_async_iterations_are_batches_of_completed_samples() -> None:
    under_test = trainer(outstanding=320, batch=100)
    under_test.start()
    iterated = [under_test.completed("c", float(at))[1] for at in range(250)]
    assert [at for at, ended in enumerate(iterated) if ended] == [99, 199]


@pytest.mark.parametrize("refill", ["PerClass", "Mixture"])
def test_a_silent_class_is_not_submitted_until_it_speaks_again(refill: str) -> None:
    under_test = trainer(outstanding=320, refill=refill)
    under_test.start()
    before = under_test.submitted["b"]
    under_test.silence("b")
    for _ in range(96):
        under_test.completed("b", 1.0)
    assert under_test.submitted["b"] == before
    assert any(order.class_name == "b" for order in under_test.unsilence("b")) is (refill == "PerClass")
    for _ in range(64):
        under_test.completed("a", 1.0)
    assert under_test.submitted["b"] > before


def test_sync_with_every_class_silent_waits_for_one_to_speak() -> None:
    under_test = trainer(mode="Sync", batch=32)
    batch = ordered(under_test.start())
    for name in SHARES:
        under_test.silence(name)
    orders = [under_test.completed(name, 1.0)[0] for name, count in batch.items() for _ in range(count)]
    assert not any(orders)
    assert ordered(under_test.unsilence("c")) == {"c": 32}


def test_a_burst_comes_on_top_in_whole_groups() -> None:
    under_test = trainer(outstanding=320)
    under_test.start()
    assert under_test.burst("a", 50) == [Order("a", 4)]
    assert under_test.open["a"] == 160 + 64
    for _ in range(64):
        assert under_test.completed("a", 1.0)[0] == []
    assert under_test.open["a"] == 160
