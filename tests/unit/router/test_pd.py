"""Prefill/decode: where a prompt is computed, and the bodies of the two legs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from rolloutpool_router.core.pd import (
    PREFILL_LEG_DROPS,
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
        pytest.param(
            {"token_ids": [1], "sampling_params": {"max_tokens": 9, "min_tokens": 2, "seed": 1}},
            {"token_ids": [1], "stream": False, "sampling_params": {"max_tokens": 1, "seed": 1}},
            id="token-ids",
        ),
        pytest.param(
            {"input": "x", "max_output_tokens": 9},
            {"input": "x", "stream": False, "max_output_tokens": 1},
            id="responses",
        ),
        pytest.param(
            {"input": "x"}, {"input": "x", "stream": False, "max_output_tokens": 1}, id="unlimited responses"
        ),
    ],
)
def test_the_first_leg_asks_for_one_token(body: dict[str, Any], expected: dict[str, Any]) -> None:
    kept = {name: value for name, value in body.items() if name not in PREFILL_LEG_DROPS}

    assert kept | prefill_leg(body) == expected | {"kv_transfer_params": REQUEST_PREFILL}


@pytest.mark.parametrize(
    ("body", "prompts", "expected"),
    [
        pytest.param({"messages": []}, 1, True, id="a chat"),
        pytest.param({"prompt": "a"}, 1, True, id="a prompt"),
        pytest.param({"prompt": ["a", "b"]}, 2, False, id="two prompts"),
        pytest.param({"messages": [], "n": 8}, 1, False, id="a group of samples"),
        pytest.param({"prompt": "a", "best_of": 2}, 1, False, id="best of two"),
        pytest.param({"prompt": "a", "n": None}, 1, True, id="n left out"),
        pytest.param({"prompt": "a", "use_beam_search": True}, 1, False, id="beams"),
    ],
)
def test_blocks_of_one_sequence_alone_are_handed_over(
    body: dict[str, Any], prompts: int, expected: bool
) -> None:
    assert one_sequence(body, prompts=prompts) is expected


def test_the_second_leg_has_the_parameters_verbatim() -> None:
    params = {"remote_engine_id": "p", "a_field_of_tomorrow": [[1, 2]]}

    assert decode_leg(params) == {"kv_transfer_params": params}
