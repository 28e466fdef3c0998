"""A body split into its fields without parsing the prompt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.bodies import (
    BUDGET_BYTES,
    KEPT_BODIES,
    KEPT_BYTES,
    SMALL_FIELD_BYTES,
    TIGHT_WINDOW_BYTES,
    WINDOW_BYTES,
    Body,
    Budget,
    Fields,
    Lately,
    Placing,
    split,
)
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.prompts import read_prompt

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def fields(**values: Any) -> Fields:
    found = split(json.dumps(values).encode())
    assert isinstance(found, Fields)
    return found


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@given(value=st.dictionaries(st.text(), JSON_VALUES, max_size=6))
def test_every_field_reads_as_it_was_sent(value: dict[str, Any]) -> None:
    assert dict(fields(**value)) == value


@given(raw=st.binary(max_size=200))
def test_no_bytes_break_the_split(raw: bytes) -> None:
    found = split(raw)
    if isinstance(found, Refusal):
        assert found.outcome is Outcome.INVALID_BODY
    else:
        assert isinstance(json.loads(raw), dict)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        pytest.param(b"", "no valid JSON", id="empty"),
        pytest.param(b'{"model": ', "no valid JSON", id="cut-off"),
        pytest.param(b"[1]", "must be a JSON object", id="array"),
        pytest.param(b'"x"', "must be a JSON object", id="string"),
        pytest.param(b"{'model': 'm'}", "no valid JSON", id="single-quotes"),
        pytest.param(b'{"a": ' + b"[" * 200_000, "no valid JSON", id="nested-without-end"),
    ],
)
def test_what_is_no_object_is_refused(raw: bytes, says: str) -> None:
    found = split(raw)
    assert isinstance(found, Refusal)
    assert says in found.message


def test_long_fields_are_not_parsed() -> None:
    body = fields(model="m" * (SMALL_FIELD_BYTES + 1), session_id="s")
    assert body["model"] is None
    assert body["session_id"] == "s"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"messages": [user("hi")]}, False, id="first-turn"),
        pytest.param({"messages": [user("hi"), {"role": "assistant", "content": "x"}]}, True, id="answered"),
        pytest.param({"messages": [user("hi"), {"role": "tool", "content": "x"}]}, True, id="tool"),
        pytest.param({"messages": "hi"}, False, id="no-list"),
        pytest.param({"messages": [1, None]}, False, id="no-messages"),
        pytest.param({"messages": [{"role": ["assistant"]}]}, False, id="role-is-a-list"),
        pytest.param({"prompt": "hi"}, False, id="completion"),
        pytest.param({"input": "hi"}, False, id="responses-text"),
        pytest.param({"input": [user("hi")]}, False, id="responses-first"),
        pytest.param({"input": [{"type": "function_call_output"}]}, True, id="responses-tool"),
        pytest.param({"input": "hi", "previous_response_id": "r1"}, True, id="responses-continued"),
    ],
)
def test_an_earlier_answer_is_seen(body: dict[str, Any], *, expected: bool) -> None:
    assert fields(**body).has_history() is expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param("text", 1, id="text"),
        pytest.param([1, 2, 3], 1, id="tokens"),
        pytest.param(["a"], 1, id="one-text"),
        pytest.param(["a", "b"], 2, id="two-texts"),
        pytest.param([[1], [2], [3]], 3, id="three-token-lists"),
        pytest.param([], 1, id="empty"),
    ],
)
def test_prompts_are_counted(prompt: Any, expected: int) -> None:
    assert fields(prompt=prompt).prompts() == expected


def test_replacing_a_field_leaves_the_others_byte_for_byte() -> None:
    body = split(b'{"prompt": "caf\\u00e9 \\/ ", "n":  1.0, "max_tokens": 7, "min_tokens": 3}')
    assert isinstance(body, Fields)
    changed = body.replaced({"max_tokens": 1}, drop=frozenset({"min_tokens"}))
    assert changed == b'{"prompt":"caf\\u00e9 \\/ ","n":1.0,"max_tokens":1}'


def body_of(text: str, **values: Any) -> bytes:
    return json.dumps({"messages": [user(text)], **values}).encode()


class TestBodiesSplitLately:
    @given(bodies=st.lists(st.sampled_from([body_of("a"), body_of("b"), b"{}", b"[]", b"{"]), max_size=20))
    def test_read_as_if_each_were_the_first(self, bodies: list[bytes]) -> None:
        lately = Lately()
        for raw in bodies:
            found, alone = lately.split(raw), split(raw)
            if isinstance(found, Fields) and isinstance(alone, Fields):
                assert dict(found) == dict(alone)
            else:
                assert found == alone

    def test_share_their_fields_if_they_are_equal(self) -> None:
        lately = Lately()
        first = lately.split(body_of("a"))
        assert lately.split(bytes(bytearray(body_of("a")))) is first
        assert lately.split(body_of("a", seed=1)) is not first

    def test_are_forgotten_after_some_others(self) -> None:
        lately = Lately()
        first = lately.split(body_of("a"))
        for number in range(KEPT_BODIES - 1):
            lately.split(body_of(str(number)))
        assert lately.split(body_of("a")) is first
        lately.split(body_of("another"))
        assert lately.split(body_of("a")) is not first

    def test_are_not_kept_if_they_are_long(self) -> None:
        lately, long = Lately(), body_of("a" * KEPT_BYTES)
        assert lately.split(long) is not lately.split(long)


class TestPlacing:
    def test_is_read_once(self) -> None:
        body = fields(messages=[user("hi " * 1000)])
        prompt = read_prompt(body.raw, model="m", block_size=16)
        placing = body.placing("m", 16)
        assert placing == Placing(prompt.prefix_keys(), prompt.group(), has_history=False)
        assert body.placing("m", 16) is placing

    def test_is_read_anew_for_another_model(self) -> None:
        body = fields(messages=[user("hi " * 1000)])
        assert body.placing("m", 16).keys != body.placing("other", 16).keys

    def test_tells_of_an_earlier_answer(self) -> None:
        assert (
            fields(messages=[user("hi"), {"role": "assistant", "content": "x"}]).placing("m", 16).has_history
        )


class NoSource:
    async def body_rest(self) -> AsyncIterator[bytes]:
        yield b"rest"


class TestABody:
    def test_counts_in_the_budget_until_it_is_released(self) -> None:
        budget = Budget()
        body = Body(b"x" * 100, complete=True, length=100, source=NoSource(), budget=budget)
        assert budget.held == 100
        body.release()
        body.release()
        assert budget.held == 0
        assert body.size == 100

    async def test_is_repeatable_until_some_of_its_rest_was_taken(self) -> None:
        body = Body(b"first", complete=False, length=None, source=NoSource(), budget=Budget())
        assert body.repeatable
        rest = body.rest()
        assert rest is not None
        assert body.repeatable
        assert [piece async for piece in rest] == [b"rest"]
        assert not body.repeatable

    def test_of_known_length_is_repeatable_for_ever(self) -> None:
        body = Body(b"all", complete=True, length=3, source=NoSource(), budget=Budget())
        assert body.rest() is None
        assert body.repeatable

    @pytest.mark.parametrize(
        ("length", "reserved"),
        [
            pytest.param(100, 100, id="short"),
            pytest.param(10 * WINDOW_BYTES, WINDOW_BYTES, id="long"),
            pytest.param(None, WINDOW_BYTES, id="of-unknown-length"),
        ],
    )
    def test_that_is_being_read_counts_as_what_it_may_become(self, length: int | None, reserved: int) -> None:
        budget = Budget()
        with budget.reserved(length) as window:
            assert (window, budget.held) == (WINDOW_BYTES, reserved)
        assert budget.held == 0

    def test_has_a_smaller_window_where_much_is_held(self) -> None:
        assert Budget().window == WINDOW_BYTES
        assert Budget(held=BUDGET_BYTES).window == TIGHT_WINDOW_BYTES
