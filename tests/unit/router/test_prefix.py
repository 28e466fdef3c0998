"""The prefix index: true to what it was told as long as it fits, and never larger than its bound."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rolloutpool_router.core.prefix import KEY_BYTES, MAX_BITS, PrefixIndex, PrefixKey

ENGINES = ["a", "b", "c", "d", "e"]


def test_the_index_counts_leading_chunks_only() -> None:
    index = PrefixIndex()
    index.record([1, 2, 3], "a")
    index.record([1], "b")
    index.record([3], "c")

    assert index.overlaps([1, 2, 3, 4]) == {"a": 3, "b": 1}
    index.forget("a")
    assert index.overlaps([1, 2, 3]) == {"b": 1}
    assert index.overlaps([]) == {}
    assert index.overlaps([9]) == {}


def test_what_was_evicted_ends_the_overlap() -> None:
    index = PrefixIndex()
    index.record([1, 2, 3], "a")
    index.record([1, 2, 3], "b")
    index.drop(2, "a")
    index.drop(3, "nobody")

    assert index.overlaps([1, 2, 3]) == {"a": 1, "b": 3}


def test_many_engines_may_hold_a_prefix() -> None:
    index = PrefixIndex()
    for number in range(200):
        index.record([1, 2, number + 10], f"e{number}")

    found = index.overlaps([1, 2, 15])
    assert found == {f"e{number}": 2 for number in range(200)} | {"e5": 3}


def test_what_nobody_recorded_lately_is_forgotten_first() -> None:
    index = PrefixIndex(max_keys=8)
    index.record([1, 2], "a")
    for key in range(10, 30):
        index.record([key], "a")
        index.record([1], "b")

    assert index.overlaps([1]) == {"b": 1}
    assert index.overlaps([2]) == {}
    assert len(index) <= 8


def test_engines_that_come_and_go_for_ever_cost_nothing() -> None:
    index = PrefixIndex()
    index.record([1], "stays")
    for number in range(5 * MAX_BITS):
        index.record([number, number + 1], f"e{number}")
        index.forget(f"e{number}")
        index.record([1], "stays")

    assert index.overlaps([1]) == {"stays": 1}
    assert max(mask.bit_length() for mask in index._young.values()) <= MAX_BITS


def test_a_key_takes_no_more_memory_than_it_says() -> None:
    rng = Random(1)
    prompts = [[rng.getrandbits(64) for _ in range(50)] for _ in range(400)]
    tracemalloc.start()
    index = PrefixIndex()
    before, _ = tracemalloc.get_traced_memory()
    for keys in prompts:
        for number in range(3):
            index.record(keys, f"e{rng.randrange(100)}-{number}")
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(index) == 20_000
    assert after - before <= len(index) * KEY_BYTES


def chain(pieces: list[int]) -> list[PrefixKey]:
    """Keys of a prompt with these pieces: each covers all before it, as `prompts` makes them."""
    return [hash(tuple(pieces[: at + 1])) for at in range(len(pieces))]


PROMPTS = st.lists(st.integers(0, 2), max_size=6).map(chain)


class IndexMachine(RuleBasedStateMachine):
    """The index against a set of pairs."""

    @initialize(max_keys=st.sampled_from([1, 2, 7, 20, 1000]))
    def start(self, max_keys: int) -> None:
        self.max_keys = max_keys
        self.index = PrefixIndex(max_keys)
        self.held: dict[str, set[PrefixKey]] = {name: set() for name in ENGINES}
        self.inserted = 0

    @rule(keys=PROMPTS, engine=st.sampled_from(ENGINES))
    def record(self, keys: list[PrefixKey], engine: str) -> None:
        self.index.record(keys, engine)
        self.held[engine].update(keys)
        self.inserted += len(keys)

    @rule(keys=PROMPTS, engine=st.sampled_from(ENGINES))
    def drop(self, keys: list[PrefixKey], engine: str) -> None:
        for key in keys[-1:]:
            self.index.drop(key, engine)
            self.held[engine].discard(key)

    @rule(engine=st.sampled_from(ENGINES))
    def forget(self, engine: str) -> None:
        self.index.forget(engine)
        self.held[engine].clear()

    @rule(keys=PROMPTS)
    def look_up(self, keys: list[PrefixKey]) -> None:
        found = self.index.overlaps(keys)
        true = Counter({name: depth for name in ENGINES if (depth := self.depth(keys, name))})
        if self.inserted <= self.max_keys // 2:
            assert found == true
        assert all(depth <= true[name] for name, depth in found.items())

    def depth(self, keys: list[PrefixKey], engine: str) -> int:
        return next((at for at, key in enumerate(keys) if key not in self.held[engine]), len(keys))

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.index) <= max(2, self.max_keys)


IndexMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestIndex = IndexMachine.TestCase


@pytest.mark.parametrize("engines", [1, 40])
@given(seed=st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_a_forgotten_engine_is_never_named(engines: int, seed: int) -> None:
    rng = Random(seed)
    index = PrefixIndex(max_keys=64)
    gone: set[str] = set()
    for _ in range(300):
        name = f"e{rng.randrange(engines)}"
        if rng.random() < 0.2:
            index.forget(name)
            gone.add(name)
        else:
            index.record([rng.randrange(40) for _ in range(rng.randrange(1, 6))], name)
            gone.discard(name)
        assert not gone & index.overlaps([rng.randrange(40)]).keys()
