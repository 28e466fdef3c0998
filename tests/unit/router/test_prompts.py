"""Prompts as prefix keys: equal as far as they are equal, cheap, and nothing that a client sends raises."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.prompts import (
    CHUNK,
    CHUNK_TOKENS,
    MAX_CHUNKS,
    MAX_TOKEN_BYTES,
    TOKEN_BYTES,
    PrefixKey,
    Prompt,
    blocks_per_key,
    chained,
    read_prompt,
    token_bytes,
    token_space,
)

SYSTEM = {"role": "system", "content": "s" * 4 * CHUNK}
COMPACT, SPACED = (",", ":"), (", ", ": ")


def raw_fields(body: dict[str, Any], separators: tuple[str, str] = COMPACT) -> dict[str, msgspec.Raw]:
    """The fields of a body as the router splits them."""
    raw = json.dumps(body, separators=separators).encode()
    return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])


def read(body: dict[str, Any], **options: Any) -> Prompt:
    return read_prompt(raw_fields(body), **options)


def keys(body: dict[str, Any], **options: Any) -> tuple[PrefixKey, ...]:
    return read(body, **options).prefix_keys()


def chat(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [SYSTEM, {"role": "user", "content": question}], **fields}


def ids(count: int, first: int = 1000) -> list[int]:
    return list(range(first, first + count))


def test_prompts_share_keys_as_far_as_they_are_equal() -> None:
    one, other = keys(chat("x" * 3 * CHUNK)), keys(chat("y" * 3 * CHUNK))

    assert one[:4] == other[:4]
    assert len(one) == len(other) == 7
    assert not set(one[4:]) & set(other[4:])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(chat("q", cache_salt="step-2"), id="another-salt"),
        pytest.param(chat("q", model="lora"), id="another-model"),
        pytest.param(chat("q", tools=[{"type": "function"}]), id="tools-come-first"),
        pytest.param(chat("q", system="be brief"), id="system-of-messages-comes-first"),
        pytest.param(chat("q", instructions="be brief"), id="instructions-come-first"),
    ],
)
def test_what_the_cache_tells_apart_shares_nothing(other: dict[str, Any]) -> None:
    assert keys(chat("q"))
    assert not set(keys(chat("q"))) & set(keys(other))
    assert read(chat("q")).group() != read(other).group()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"prompt": "p" * 5 * CHUNK}, id="text"),
        pytest.param({"prompt": ["p" * 5 * CHUNK]}, id="list-of-texts"),
        pytest.param({"prompt": ["p" * 5 * CHUNK, "q"]}, id="several-texts"),
        pytest.param({"prompt": ids(5 * CHUNK_TOKENS)}, id="token-ids"),
        pytest.param({"prompt": [ids(5 * CHUNK_TOKENS)]}, id="list-of-token-ids"),
        pytest.param({"prompt": [ids(5 * CHUNK_TOKENS), [1]]}, id="several-of-token-ids"),
        pytest.param({"token_ids": ids(5 * CHUNK_TOKENS)}, id="generate"),
        pytest.param({"input": "p" * 5 * CHUNK}, id="responses-text"),
        pytest.param({"input": ids(5 * CHUNK_TOKENS)}, id="input-of-token-ids"),
        pytest.param({"input": [{"role": "user", "content": "p" * 5 * CHUNK}]}, id="responses-items"),
        pytest.param({"system": "s", "messages": [{"role": "u", "content": "p" * 5 * CHUNK}]}, id="messages"),
    ],
)
def test_every_kind_of_prompt_has_keys(body: dict[str, Any]) -> None:
    assert len(keys({"model": "m", **body})) == 5


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"messages": []}, id="no-messages"),
        pytest.param({"prompt": None, "messages": None}, id="null"),
        pytest.param({"prompt": 5}, id="a-number"),
        pytest.param({"prompt": ids(CHUNK_TOKENS - 1)}, id="less-than-a-chunk"),
    ],
)
def test_bodies_without_a_whole_chunk_have_none(body: dict[str, Any]) -> None:
    assert keys({"model": "m", **body}) == ()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"[" + b"9" * 100_000 + b"]", id="huge-number"),
        pytest.param(b"[1,-5," + b"7," * 999 + b"7]", id="negative-id"),
        pytest.param(b"[1,2.5," + b"7," * 999 + b"7]", id="fraction"),
        pytest.param(b"[1,NaN," + b"7," * 999 + b"7]", id="nan"),
        pytest.param(b'[1,"x",' + b"7," * 999 + b"7]", id="mixed"),
        pytest.param(b"[1," + str(2**40).encode() + b"," + b"7," * 999 + b"7]", id="id-of-40-bits"),
        pytest.param(b"[" * 100_000, id="deep-nesting"),
        pytest.param(b"[[[[[[1,2]]]]]]" * 1000, id="nested-numbers"),
        pytest.param(b"[1" + b" " * 300_000 + b",2]", id="spaces"),
        pytest.param(b"[1,,,,,," + b"," * 300_000, id="commas"),
        pytest.param(b"\xff\xfe" * 1000, id="no-text"),
    ],
)
@pytest.mark.parametrize(
    "field", ["prompt", "token_ids", "messages", "input", "tools", "model", "cache_salt"]
)
def test_odd_prompts_are_cut_like_text(raw: bytes, field: str) -> None:
    prompt = read_prompt({"model": b'"m"', field: raw})

    assert len(prompt.prefix_keys()) <= MAX_CHUNKS
    assert len(prompt.group()) == 8


@given(
    fields=st.dictionaries(
        st.sampled_from(
            ["model", "cache_salt", "prompt", "messages", "token_ids", "input", "tools", "features"]
        ),
        st.binary(max_size=2000) | st.sampled_from([b"[1,2", b"[[1],", b'"', b"[", b"null", b"[]"]),
    ),
    block_size=st.integers(1, 200),
)
def test_whatever_the_fields_hold_reading_them_never_raises(
    fields: dict[str, bytes], block_size: int
) -> None:
    prompt = read_prompt(fields, block_size=block_size)

    assert len(prompt.prefix_keys()) <= MAX_CHUNKS
    assert prompt.group() == read_prompt(fields, block_size=block_size).group()


messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=400)},
    ),
    min_size=1,
    max_size=6,
)


@given(
    earlier=messages,
    more=messages,
    separators=st.sampled_from([COMPACT, SPACED]),
    indent=st.sampled_from([None, 2]),
)
def test_a_later_turn_begins_with_all_keys_of_the_earlier_one(
    earlier: list[Any], more: list[Any], separators: tuple[str, str], indent: int | None
) -> None:
    one, other = (
        read_prompt({"messages": json.dumps(turns, separators=separators, indent=indent).encode()})
        for turns in (earlier, earlier + more)
    )

    assert other.prefix_keys()[: len(one.prefix_keys())] == one.prefix_keys()
    assert one.group() != other.group()


@pytest.mark.parametrize("count", [10, 1000, 7_000, 9_000, 30_000])
@pytest.mark.parametrize("separators", [COMPACT, SPACED], ids=["compact", "spaced"])
def test_more_token_ids_keep_the_keys(count: int, separators: tuple[str, str]) -> None:
    one, other = (
        read_prompt(raw_fields({"prompt": ids(length, 10_000)}, separators))
        for length in (count, count + 5000)
    )

    assert other.prefix_keys()[: len(one.prefix_keys())] == one.prefix_keys()
    assert len(one.prefix_keys()) == pytest.approx(min(count // CHUNK_TOKENS, MAX_CHUNKS), rel=0.25)


@pytest.mark.parametrize("block_size", [1, 7, 16, 32, 64, 128])
def test_token_ids_are_cut_into_the_blocks_of_the_engine(block_size: int) -> None:
    tokens = ids(1000)
    blocks = chained(token_space("m", "s"), token_bytes(tokens) or b"", block_size * TOKEN_BYTES)
    per_key = blocks_per_key(block_size)

    assert keys({"prompt": tokens, "cache_salt": "s"}, model="m", block_size=block_size) == tuple(
        blocks[per_key - 1 :: per_key]
    )


def test_white_space_between_token_ids_changes_nothing_of_what_is_parsed() -> None:
    body = {"model": "m", "token_ids": ids(5000)}

    assert read_prompt(raw_fields(body, SPACED)).prefix_keys() == read_prompt(raw_fields(body)).prefix_keys()


def test_images_beside_token_ids_tell_prompts_apart() -> None:
    body = {"model": "m", "token_ids": ids(500)}

    assert not set(keys(body)) & set(keys({**body, "features": {"image": "a"}}))
    assert keys({**body, "features": None}) == keys(body)


def test_a_body_without_a_model_means_the_pools() -> None:
    prompt = {"prompt": "p" * 5 * CHUNK}

    assert keys(prompt, model="m") == keys({"model": "m", **prompt})


def test_no_more_than_the_head_of_a_giant_prompt_is_read() -> None:
    giant = b'"' + b"x" * 5_000_000 + b'"'
    prompt = read_prompt({"prompt": msgspec.Raw(giant)})

    assert len(prompt.head) == CHUNK * MAX_CHUNKS
    assert len(prompt.prefix_keys()) == MAX_CHUNKS
    assert prompt.group() != read_prompt({"prompt": giant[:-2] + b'"'}).group()
    tokens = read_prompt({"prompt": b"[" + b"123," * 1_000_000 + b"1]"})
    assert len(tokens.prefix_keys()) == MAX_CHUNKS
    assert len(tokens.head) < 10 * MAX_TOKEN_BYTES
