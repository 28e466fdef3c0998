"""Shared prefixes: marked by a handful of keys, and charged once, however sessions come and go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.prefix import MAX_CHUNKS, PrefixKey
from rolloutpool_router.core.shared import MARKS, Mark, SharedPrefixes, marks

SYSTEM, TASK, OTHER = (1, 10), (2, 4), (3, 6)


def keys(count: int, branch: str = "") -> tuple[PrefixKey, ...]:
    """Keys of a prompt's chunks; prompts of two branches have none in common."""
    return tuple(hash((branch, chunk)) for chunk in range(count))


@pytest.mark.parametrize(
    ("came", "left", "blocks"),
    [
        pytest.param([[SYSTEM, TASK]], [], 14, id="one"),
        pytest.param([[SYSTEM, TASK], [SYSTEM, TASK]], [], 14, id="two-alike-are-charged-once"),
        pytest.param([[SYSTEM, TASK], [SYSTEM, OTHER]], [], 20, id="each-brings-what-it-does-not-share"),
        pytest.param([[SYSTEM, TASK], [SYSTEM, OTHER]], [[SYSTEM, TASK]], 16, id="the-first-leaves"),
        pytest.param([[SYSTEM, TASK], [SYSTEM, OTHER]], [[SYSTEM, OTHER]], 14, id="the-second-leaves"),
        pytest.param([[SYSTEM], [SYSTEM]], [[SYSTEM], [SYSTEM]], 0, id="all-leave"),
    ],
)
def test_what_is_charged(
    came: Sequence[Sequence[Mark]], left: Sequence[Sequence[Mark]], blocks: float
) -> None:
    held = SharedPrefixes()
    for pieces in came:
        held.add(pieces)
    for pieces in left:
        held.remove(pieces)

    assert held.blocks == blocks


def test_a_newcomer_adds_what_nobody_holds_yet() -> None:
    held = SharedPrefixes()
    assert held.missing([SYSTEM, TASK]) == 14
    held.add([SYSTEM, OTHER])
    assert held.missing([SYSTEM, TASK]) == 4
    held.remove([SYSTEM, OTHER])
    assert held.missing([SYSTEM, TASK]) == 14


@pytest.mark.parametrize(
    ("chunks", "tokens", "blocks"),
    [
        pytest.param(0, 900, 0, id="a-prompt-shorter-than-a-chunk-shares-nothing"),
        pytest.param(4, 0, 4 * 64 / 16, id="length-unknown"),
        pytest.param(4, 288, 4 * 64 / 16, id="length-known"),
        pytest.param(4, 576, 4 * 128 / 16, id="chunks-of-more-tokens-than-usual"),
        pytest.param(5, 352, 4 * 64 / 16, id="up-to-the-last-mark"),
        pytest.param(MAX_CHUNKS, 10**6, MAX_CHUNKS * 64 / 16, id="beyond-the-last-key-nothing-is-known"),
    ],
)
def test_what_the_marks_of_a_prompt_cover(chunks: int, tokens: int, blocks: float) -> None:
    found = marks(keys(chunks), prompt_tokens=tokens, block_size=16)

    assert sum(covered for _, covered in found) == pytest.approx(blocks)
    assert len(found) <= len(MARKS)


@given(chunks=st.integers(0, MAX_CHUNKS), tokens=st.integers(0, 100_000))
def test_marks_never_cover_more_than_the_prompt_and_are_few(chunks: int, tokens: int) -> None:
    tokens = max(tokens, 32 * chunks)
    found = marks(keys(chunks), prompt_tokens=tokens, block_size=16)

    if chunks < MAX_CHUNKS:
        assert sum(covered for _, covered in found) <= tokens / 16 + 1e-9
    assert len(found) <= 20
    assert len({key for key, _ in found}) == len(found)


@given(shared=st.integers(0, 300), one=st.integers(0, 100), other=st.integers(0, 100))
def test_prompts_share_marks_as_far_as_they_are_equal(shared: int, one: int, other: int) -> None:
    both = keys(shared)
    first = marks((*both, *keys(one, "a")), prompt_tokens=64 * (shared + one) + 32, block_size=16)
    second = marks((*both, *keys(other, "b")), prompt_tokens=64 * (shared + other) + 32, block_size=16)

    common = {key for key, _ in first} & {key for key, _ in second}
    assert len(common) == sum(1 for mark in MARKS if mark <= shared)


sessions = st.lists(
    st.lists(st.integers(0, 5), unique=True, max_size=4).map(sorted).map(tuple), min_size=1, max_size=8
)


@given(
    prompts=sessions,
    sizes=st.lists(st.integers(1, 40), min_size=8, max_size=8),
    order=st.lists(st.integers(0, 100), max_size=40),
)
def test_whatever_the_order_each_prefix_is_charged_while_anybody_holds_it(
    prompts: list[tuple[int, ...]], sizes: list[int], order: list[int]
) -> None:
    """Sessions estimate the length of a prefix that they share each on its own, so pieces differ."""
    pieces = [
        tuple((key, 0.1 * size) for key in prompt) for prompt, size in zip(prompts, sizes, strict=False)
    ]
    held, inside = SharedPrefixes(), [False] * len(pieces)
    charged: dict[PrefixKey, float] = {}
    for turn in order:
        at = turn % len(pieces)
        missing = held.missing(pieces[at])
        before = held.blocks
        (held.remove if inside[at] else held.add)(pieces[at])
        if not inside[at]:
            assert held.blocks == pytest.approx(before + missing)
        inside[at] = not inside[at]
        there = {key for mine, resident in zip(pieces, inside, strict=True) if resident for key, _ in mine}
        first = dict(pieces[at]) | charged
        charged = {key: first[key] for key in there}
        assert held.blocks == pytest.approx(sum(charged.values())), "as long as the first who came said"
        assert held.blocks >= 0
    for mine, resident in zip(pieces, inside, strict=True):
        if resident:
            held.remove(mine)
    assert held.blocks == 0
