"""The stream of KV events: losses, repetitions and restarts never leave the index saying what is not true."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_router.core.kv_blocks import EngineBlocks
from rolloutpool_router.core.kv_stream import KvCounts, KvStream
from rolloutpool_router.core.prefix import PrefixIndex
from rolloutpool_router.core.prompts import read_prompt

BLOCK = 64
PROMPTS = 12


def tokens(prompt: int) -> list[int]:
    return [prompt] * BLOCK


def stored(prompt: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [prompt],
        "parent_block_hash": None,
        "token_ids": tokens(prompt),
        "block_size": BLOCK,
        "medium": "GPU",
    }


KEYS = [
    read_prompt(
        {"model": b'"m"', "prompt": json.dumps(tokens(prompt)).encode()}, block_size=BLOCK
    ).prefix_keys()
    for prompt in range(PROMPTS)
]


@dataclass
class Engine:
    """A publisher with a cache of one block a prompt."""

    kept: deque[tuple[int, bytes]] = field(default_factory=deque)
    cached: set[int] = field(default_factory=set)
    next: int = 0

    def step(self, prompt: int, time: float) -> tuple[int, bytes]:
        event = stored(prompt)
        if prompt in self.cached:
            event = {"type": "BlockRemoved", "block_hashes": [prompt], "medium": "GPU"}
        self.cached ^= {prompt}
        message = (self.next, msgspec.msgpack.encode([time, [event]]))
        self.kept.append(message)
        self.next += 1
        return message


class Router:
    """What a follower does with what comes."""

    def __init__(self) -> None:
        self.counts = KvCounts()
        self.index = PrefixIndex()
        blocks = EngineBlocks(
            self.index, "e", model="m", block_size=BLOCK, counts=self.counts.blocks, max_blocks=100
        )
        self.stream = KvStream(blocks, self.counts)

    def live(self, message: tuple[int, bytes], kept: list[tuple[int, bytes]]) -> None:
        events = self.stream.live(*message)
        if events is None:
            self.replay(kept)
            events = self.stream.after_gap(*message)
        for event in events:
            self.stream.apply(event)

    def replay(self, kept: list[tuple[int, bytes]]) -> None:
        for seq, payload in kept:
            if seq >= self.stream.repeat_from:
                for event in self.stream.repeated(seq, payload):
                    self.stream.apply(event)

    def says(self) -> set[int]:
        return {prompt for prompt, keys in enumerate(KEYS) if self.index.overlaps(keys)}


def batch(*events: Any, time: float = 0.0) -> bytes:
    return msgspec.msgpack.encode([time, list(events)])


def test_a_gap_is_filled_by_the_repetition() -> None:
    engine, router = Engine(), Router()
    messages = [engine.step(prompt, prompt) for prompt in range(5)]
    router.live(messages[0], [])
    router.live(messages[4], list(engine.kept))
    router.live(engine.step(7, 5.0), [])

    assert router.says() == {0, 1, 2, 3, 4, 7}
    assert router.counts.resets == 0


@pytest.mark.parametrize("kept", [0, 2], ids=["nothing-repeated", "repetition-begins-too-late"])
def test_a_gap_that_cannot_be_filled_resets(kept: int) -> None:
    engine, router = Engine(), Router()
    messages = [engine.step(prompt, prompt) for prompt in range(6)]
    router.live(messages[0], [])
    router.live(messages[5], list(engine.kept)[6 - kept :])

    assert router.says() == ({4, 5} if kept else {5})
    assert router.counts.resets == 1


def test_a_publisher_that_began_anew_resets() -> None:
    old, new, router = Engine(), Engine(), Router()
    for prompt in range(4):
        router.live(old.step(prompt, 0.0), [])
    router.live(new.step(9, 1.0), [])

    assert router.says() == {9}
    assert router.counts.resets == 1


def test_a_publisher_that_began_anew_is_noticed_although_it_is_ahead() -> None:
    old, new, router = Engine(), Engine(), Router()
    for prompt in range(3):
        router.live(old.step(prompt, 0.0), [])
    messages = [new.step(prompt, 1.0) for prompt in range(6, 12)]
    router.live(messages[5], list(new.kept))

    assert router.says() <= {6, 7, 8, 9, 10, 11}
    assert {8, 9, 10, 11} <= router.says()


def test_what_came_before_is_repeated_to_a_router_that_starts() -> None:
    engine, router = Engine(), Router()
    for prompt in range(4):
        engine.step(prompt, prompt)
    router.replay(list(engine.kept))
    router.live(engine.kept[3], [])

    assert router.says() == {0, 1, 2, 3}
    assert router.counts.batches == 4


def test_what_is_malformed_is_counted_and_passed_over() -> None:
    router = Router()
    router.live((0, b"\xc1"), [])
    router.live((1, batch({"type": "BlockStored"}, stored(1), 7)), [])

    assert router.says() == {1}
    assert router.counts.malformed == 3


@given(
    seed=st.integers(0, 10_000), loss=st.sampled_from([0.0, 0.1, 0.5]), buffer=st.sampled_from([0, 3, 1000])
)
@settings(max_examples=60, deadline=None)
def test_the_index_never_says_what_an_engine_does_not_hold(seed: int, loss: float, buffer: int) -> None:
    rng = Random(seed)
    engine, router = Engine(), Router()
    restarted = False
    for time in range(80):
        if rng.random() < 0.03:
            engine, restarted = Engine(), True
        message = engine.step(rng.randrange(PROMPTS), float(time))
        # The first message of a new publisher comes: that nothing of it did is told by the engine's health.
        if rng.random() < loss and message[0] > 0:
            continue
        router.live(message, list(engine.kept)[-buffer:] if buffer else [])
        assert router.says() <= engine.cached
        if buffer == 1000 and not restarted:
            assert router.says() == engine.cached
