"""Placement: prefix overlap, load, random ties; and the prefix index behind it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from rolloutpool_router.core.placement import EngineLoad, choose_engine
from rolloutpool_router.core.prefix import CHUNK, MAX_HOLDERS, PrefixIndex, read_prompt


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


SYSTEM = {"role": "system", "content": "s" * 4 * CHUNK}


def chat(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [SYSTEM, {"role": "user", "content": question}], **fields}


def test_prompts_share_keys_as_far_as_they_are_equal() -> None:
    one, other = (
        read_prompt(chat("x" * 3 * CHUNK)).prefix_keys(),
        read_prompt(chat("y" * 3 * CHUNK)).prefix_keys(),
    )

    assert one[:4] == other[:4]
    assert not set(one[4:]) & set(other[4:])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(chat("q", cache_salt="step-2"), id="another-salt"),
        pytest.param(chat("q", model="lora"), id="another-model"),
        pytest.param(chat("q", tools=[{"type": "function"}]), id="tools-come-first"),
    ],
)
def test_what_the_cache_tells_apart_shares_nothing(other: dict[str, Any]) -> None:
    assert not set(read_prompt(chat("q")).prefix_keys()) & set(read_prompt(other).prefix_keys())


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param("p" * 5 * CHUNK, id="text"),
        pytest.param(["p" * 5 * CHUNK], id="list-of-texts"),
        pytest.param(list(range(CHUNK)), id="token-ids"),
        pytest.param([list(range(CHUNK))], id="list-of-token-ids"),
        pytest.param([None] * CHUNK * 8, id="odd"),
    ],
)
def test_prompts_of_completions_have_keys(prompt: Any) -> None:
    assert len(read_prompt({"model": "m", "prompt": prompt}).prefix_keys()) >= 5


def test_bodies_without_a_prompt_have_none() -> None:
    assert read_prompt({}).prefix_keys() == ()
    assert read_prompt({"messages": []}).prefix_keys() == ()


def test_the_index_counts_leading_chunks_only() -> None:
    index = PrefixIndex()
    index.record([b"1", b"2", b"3"], "a")
    index.record([b"1"], "b")
    index.record([b"3"], "c")

    assert index.overlaps([b"1", b"2", b"3", b"4"]) == {"a": 3, "b": 1}
    index.forget("a")
    assert index.overlaps([b"1", b"2", b"3"]) == {"b": 1}


def test_the_index_remembers_the_latest_holders() -> None:
    index = PrefixIndex()
    for number in range(MAX_HOLDERS + 3):
        index.record([b"k"], f"e{number}")
    index.record([b"k"], "e3")
    assert sorted(index.overlaps([b"k"])) == sorted(["e3", *(f"e{n}" for n in range(4, MAX_HOLDERS + 3))])


def test_the_index_is_bounded_and_forgets_the_least_recent() -> None:
    index = PrefixIndex(max_keys=3)
    index.record([b"1", b"2"], "a")
    index.record([b"3"], "a")
    index.record([b"1"], "b")
    index.record([b"4"], "a")

    assert len(index) == 3
    assert index.overlaps([b"2"]) == {}
    assert index.overlaps([b"1"]) == {"a": 1, "b": 1}
