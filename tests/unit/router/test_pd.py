"""Prefill/decode: where a prompt is computed, and the bodies of the two legs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from rolloutpool_router.core.pd import (
    REQUEST_PREFILL,
    Local,
    PrefillEngine,
    Remote,
    choose_prefill,
    decode_leg,
    one_sequence,
    prefill_leg,
)


def engine(name: str, outstanding: int = 0, cached: int = 0, revision: str = "r1") -> PrefillEngine:
    return PrefillEngine(name, revision, outstanding, cached)


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        pytest.param([], None, id="none-is-up"),
        pytest.param([engine("p", revision="r0")], None, id="another-revision"),
        pytest.param([engine("p", 100), engine("q", 50)], "q", id="least-outstanding"),
        pytest.param([engine("p", 100, cached=90), engine("q", 50)], "p", id="cached-tokens-count"),
        pytest.param([engine("p", 100, revision="r0"), engine("q", 500)], "q", id="only-of-the-revision"),
    ],
)
def test_where_a_prompt_is_computed(engines: list[PrefillEngine], expected: str | None) -> None:
    choice = choose_prefill(engines, revision="r1", prompt_tokens=100, rng=Random(1))

    if expected is None:
        assert isinstance(choice, Local)
    else:
        assert isinstance(choice, Remote)
        assert choice.engine == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            {"model": "m", "stream": True, "max_tokens": 500, "stream_options": {"include_usage": True}},
            {"model": "m", "stream": False, "max_tokens": 1},
            id="stream",
        ),
        pytest.param(
            {"max_completion_tokens": 500, "min_tokens": 10, "seed": 1},
            {"stream": False, "max_tokens": 1, "max_completion_tokens": 1, "seed": 1},
            id="completion-tokens",
        ),
        pytest.param(
            {"unknown": [1]}, {"unknown": [1], "stream": False, "max_tokens": 1}, id="unknown-fields"
        ),
    ],
)
def test_the_first_leg_asks_for_one_token(body: dict[str, Any], expected: dict[str, Any]) -> None:
    before = dict(body)

    assert prefill_leg(body) == expected | {"kv_transfer_params": REQUEST_PREFILL}
    assert body == before


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"messages": []}, True, id="a chat"),
        pytest.param({"prompt": "a"}, True, id="a prompt"),
        pytest.param({"prompt": ["a"]}, True, id="a list of one prompt"),
        pytest.param({"prompt": [1, 2, 3]}, True, id="token ids"),
        pytest.param({"prompt": ["a", "b"]}, False, id="two prompts"),
        pytest.param({"prompt": [[1, 2], [3]]}, False, id="two prompts of token ids"),
        pytest.param({"messages": [], "n": 8}, False, id="a group of samples"),
        pytest.param({"prompt": "a", "best_of": 2}, False, id="best of two"),
        pytest.param({"prompt": "a", "n": None}, True, id="n left out"),
        pytest.param({"prompt": "a", "use_beam_search": True}, False, id="beams"),
    ],
)
def test_blocks_of_one_sequence_alone_are_handed_over(body: dict[str, Any], expected: bool) -> None:
    assert one_sequence(body) is expected


def test_the_second_leg_is_the_request_with_the_parameters_verbatim() -> None:
    body = {"stream": True, "max_tokens": 500, "min_tokens": 3}
    params = {"remote_engine_id": "p", "a_field_of_tomorrow": [[1, 2]]}

    assert decode_leg(body, params) == body | {"kv_transfer_params": params}
