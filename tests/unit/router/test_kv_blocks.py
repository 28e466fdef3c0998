"""KV events as prefix keys: the index says of prompts of token ids exactly what the engine holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_router.core.kv_blocks import BlockCounts, EngineBlocks
from rolloutpool_router.core.kv_events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KvEvent
from rolloutpool_router.core.prefix import PrefixIndex, PrefixKey
from rolloutpool_router.core.prompts import read_prompt

BLOCK = 16
TOKENS = list(range(500, 500 + 10 * BLOCK))


class Tracked:
    """One engine's blocks, and what the index says of a prompt."""

    def __init__(self, max_blocks: int = 1000, block_size: int = BLOCK) -> None:
        self.index = PrefixIndex()
        self.counts = BlockCounts()
        self.blocks = EngineBlocks(
            self.index, "e", model="m", block_size=block_size, counts=self.counts, max_blocks=max_blocks
        )

    def after(self, *events: KvEvent) -> Tracked:
        for event in events:
            self.blocks.apply(event)
        return self

    def held(self, tokens: Sequence[int] = TOKENS, **fields: Any) -> int:
        return self.index.overlaps(keys(tokens, **fields))["e"]


def keys(tokens: Sequence[int], **fields: Any) -> tuple[PrefixKey, ...]:
    body = {"model": "m", "prompt": list(tokens), **fields}
    return read_prompt({name: json.dumps(value).encode() for name, value in body.items()}).prefix_keys()


def stored(first: int, last: int, tokens: Sequence[int] = TOKENS, **fields: Any) -> BlockStored:
    """Blocks `first` up to `last` of a prompt; their hashes are 1, 2, ..."""
    parent: BlockHash | None = first if first else None
    made = BlockStored(
        block_hashes=list(range(first + 1, last + 1)),
        parent_block_hash=parent,
        token_ids=list(tokens[first * BLOCK : last * BLOCK]),
        block_size=BLOCK,
        medium="GPU",
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def removed(*hashes: int, **fields: Any) -> BlockRemoved:
    return BlockRemoved(list(hashes), "GPU", **fields)


@pytest.mark.parametrize(
    ("events", "held"),
    [
        pytest.param([stored(0, 10)], 2, id="two-whole-keys-of-four-blocks"),
        pytest.param([stored(0, 3)], 0, id="less-than-a-key"),
        pytest.param([stored(0, 2), stored(2, 3), stored(3, 8)], 2, id="step-by-step"),
        pytest.param([stored(4, 10)], 0, id="beginning-unknown"),
        pytest.param([stored(0, 10), removed(10), removed(9)], 2, id="tail-of-no-whole-key-evicted"),
        pytest.param([stored(0, 10), removed(10, 9, 8)], 1, id="end-of-a-key-evicted"),
        pytest.param(
            [stored(0, 8), removed(8), removed(7), stored(6, 8)], 2, id="evicted-and-computed-again"
        ),
        pytest.param([stored(0, 8), stored(0, 8), removed(8, 7)], 2, id="another-copy-stays"),
        pytest.param([stored(0, 8), stored(0, 8), removed(8), removed(8)], 1, id="both-copies-evicted"),
        pytest.param([stored(0, 8), AllBlocksCleared()], 0, id="cleared"),
        pytest.param(
            [stored(0, 4), AllBlocksCleared(), stored(4, 8)], 0, id="nothing-follows-what-was-cleared"
        ),
        pytest.param([stored(0, 8), removed(77)], 2, id="unknown-block-evicted"),
        pytest.param([stored(0, 8, medium="CPU")], 0, id="in-cpu-memory"),
        pytest.param([stored(0, 8), BlockRemoved([8], "CPU")], 2, id="evicted-from-cpu-memory"),
        pytest.param([stored(0, 8, medium=None)], 2, id="an-old-version-names-no-memory"),
        pytest.param([stored(0, 8, group_idx=1)], 0, id="another-group"),
        pytest.param(
            [stored(0, 8, group_idx=0), removed(8, group_idx=1)], 2, id="evicted-from-another-group"
        ),
        pytest.param([stored(0, 8, kv_cache_spec_kind="full_attention")], 2, id="full-attention"),
        pytest.param([stored(0, 8, kv_cache_spec_kind="sliding_window")], 0, id="sliding-window"),
        pytest.param([stored(0, 8, block_size=32)], 0, id="another-block-size"),
        pytest.param([stored(0, 8, token_ids=[1, 2])], 0, id="tokens-missing"),
        pytest.param([stored(0, 8, token_ids=[2**40] * 8 * BLOCK)], 0, id="no-token-ids"),
        pytest.param([stored(0, 8, extra_keys=[["salt"], *[None] * 7])], 0, id="another-salt"),
        pytest.param([stored(0, 8, lora_name="lora", extra_keys=[["lora"]] * 8)], 0, id="an-adapter"),
        pytest.param([stored(0, 8, extra_keys=[*[None] * 5, [["image", 3]], None, None])], 1, id="an-image"),
        pytest.param([stored(0, 8, extra_keys=[[["image", 0]], *[None] * 7])], 0, id="begins-with-an-image"),
        pytest.param([stored(0, 8, extra_keys=[["a", "b"], *[None] * 7])], 0, id="image-and-salt"),
        pytest.param([stored(0, 8, extra_keys=[])], 2, id="fewer-extra-keys-than-blocks"),
    ],
)
def test_how_much_of_a_prompt_an_engine_holds(events: list[KvEvent], held: int) -> None:
    assert Tracked().after(*events).held() == held


def test_salts_and_adapters_are_told_apart() -> None:
    salted = stored(0, 8, extra_keys=[["s1"], *[None] * 7])
    adapted = stored(0, 8, lora_name="lora", extra_keys=[["lora", "s1"], *[["lora"]] * 7])
    adapted.block_hashes = list(range(101, 109))
    tracked = Tracked().after(salted, adapted)

    assert tracked.held(cache_salt="s1") == 2
    assert tracked.held(cache_salt="s1", model="lora") == 2
    assert tracked.held(cache_salt="s2") == tracked.held(model="lora") == tracked.held() == 0


def test_hashes_may_be_bytes() -> None:
    first, second = stored(0, 4), stored(4, 8)
    first.block_hashes = [bytes([n]) * 32 for n in range(1, 5)]
    second.parent_block_hash = bytes([4]) * 32

    assert Tracked().after(first, second).held() == 2


def test_the_routers_own_record_ends_with_the_eviction() -> None:
    tracked = Tracked()
    tracked.index.record(keys(TOKENS), "e")
    tracked.after(stored(0, 8))
    assert tracked.held() == 2
    tracked.after(removed(8, 7, 6, 5))
    assert tracked.held() == 1


def test_blocks_beyond_the_bound_push_out_the_oldest() -> None:
    tracked = Tracked(max_blocks=40)
    prompts = [[7 * number + 1] * 8 * BLOCK for number in range(20)]
    for number, tokens in enumerate(prompts):
        event = stored(0, 8, tokens)
        event.block_hashes = [1000 * number + place for place in range(8)]
        tracked.after(event)
        assert len(tracked.blocks) <= 40

    assert tracked.held(prompts[-1]) == 2
    assert tracked.held(prompts[0]) == 0
    assert tracked.counts.stored == 160


hashes = st.integers(-5, 40) | st.binary(max_size=9)
events = st.one_of(
    st.builds(
        BlockStored,
        block_hashes=st.lists(hashes, max_size=6),
        parent_block_hash=st.none() | hashes,
        token_ids=st.lists(st.integers(-1, 3) | st.just(2**33), max_size=12)
        | st.integers(0, 6).map(lambda count: [1] * 2 * count),
        block_size=st.sampled_from([2, 2, 2, 0, -1, 16]),
        extra_keys=st.none()
        | st.lists(st.none() | st.lists(st.none() | st.text(max_size=2), max_size=2), max_size=6),
        lora_name=st.none() | st.text(max_size=2),
        group_idx=st.sampled_from([None, None, 0, 1]),
    ),
    st.builds(BlockRemoved, block_hashes=st.lists(hashes, max_size=6)),
    st.just(AllBlocksCleared()),
)


@given(st.lists(events, max_size=60))
@settings(deadline=None)
def test_whatever_is_in_an_event_nothing_is_raised_and_the_bound_holds(made: list[KvEvent]) -> None:
    tracked = Tracked(max_blocks=9, block_size=2)
    for event in made:
        tracked.after(event)
        assert len(tracked.blocks) <= 9 + 6
        assert len(tracked.blocks._copies) <= len(tracked.blocks)


class Cache:
    """An engine's prefix cache: blocks by hash, with the block before each."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.parents: dict[int, int | None] = {}

    def chain(self, tokens: Sequence[int]) -> list[int]:
        made: list[int] = []
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            before = made[-1] if made else None
            made.append(hash((before, *tokens[end - self.block_size : end])))
        return made

    def store(self, tokens: Sequence[int]) -> BlockStored | None:
        chain = self.chain(tokens)
        known = next((at for at, block in enumerate(chain) if block not in self.parents), len(chain))
        if known == len(chain):
            return None
        for before, block in zip([None, *chain], chain, strict=False):
            self.parents[block] = before
        return BlockStored(
            block_hashes=list[BlockHash](chain[known:]),
            parent_block_hash=chain[known - 1] if known else None,
            token_ids=list(tokens[known * self.block_size : len(chain) * self.block_size]),
            block_size=self.block_size,
        )

    def evict(self, rng: Random) -> BlockRemoved:
        leaves = self.parents.keys() - set(self.parents.values())
        block = rng.choice(sorted(leaves))
        del self.parents[block]
        return BlockRemoved([block])

    def held(self, tokens: Sequence[int], per_key: int) -> int:
        ends = self.chain(tokens)[per_key - 1 :: per_key]
        return next((at for at, end in enumerate(ends) if end not in self.parents), len(ends))


@pytest.mark.parametrize("block_size", [16, 64, 128])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_the_index_says_exactly_what_the_engine_holds(block_size: int, seed: int) -> None:
    """Prompts that branch are stored and evicted from their ends, as an engine does it."""
    rng = Random(seed)
    tracked, cache = Tracked(max_blocks=10_000, block_size=block_size), Cache(block_size)
    prompts: list[list[int]] = []
    for _ in range(15):
        base = rng.choice(prompts) if prompts and rng.random() < 0.6 else []
        kept = base[: rng.randrange(len(base) + 1)]
        prompts.append(kept + [rng.randrange(9) for _ in range(rng.randrange(400))])
        if (event := cache.store(prompts[-1])) is not None:
            tracked.after(event)
        for _ in range(min(rng.randrange(9), len(cache.parents))):
            tracked.after(cache.evict(rng))
    for tokens in prompts:
        body = {"model": b'"m"', "prompt": json.dumps(tokens).encode()}
        found = tracked.index.overlaps(read_prompt(body, block_size=block_size).prefix_keys())
        assert found["e"] == cache.held(tokens, per_key=max(1, 64 // block_size))
