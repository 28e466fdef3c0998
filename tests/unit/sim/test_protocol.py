"""Validation of API requests, and the sequences that they ask for."""

import json
from typing import Any

import pytest

from rolloutpool_sim.emulator.errors import ApiError
from rolloutpool_sim.emulator.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    chat_prompt,
    check_options,
    parse_body,
    prompts_of,
    sequences,
    transfer_of,
)
from rolloutpool_sim.emulator.tokenizer import encode
from rolloutpool_sim.engine import EngineRequest, Transfer

REMOTE = {"remote_engine_id": "e", "remote_request_id": "r", "remote_host": "h", "remote_port": 1}


def _completion(**fields: Any) -> CompletionRequest:
    return parse_body(CompletionRequest, json.dumps({"prompt": "hello there", **fields}).encode())


def _sequences(
    request: GenerationRequest, prompts: list[list[int]], sample_id: str = "x"
) -> list[EngineRequest]:
    return sequences(
        request,
        prompts,
        request_id="r",
        sample_id=sample_id,
        transfer=Transfer.NONE,
        max_model_len=100,
        server_seed=0,
        mean_output_tokens=20.0,
    )


def _output(request: EngineRequest, count: int = 8) -> list[int]:
    return [request.next_token(position) for position in range(count)]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param("hello there", [encode("hello there")], id="text"),
        pytest.param([1, 2, 3], [[1, 2, 3]], id="ids"),
        pytest.param(["a", "b c"], [encode("a"), encode("b c")], id="texts"),
        pytest.param([[1], [2, 3]], [[1], [2, 3]], id="lists of ids"),
    ],
)
def test_prompts(prompt: object, expected: list[list[int]]) -> None:
    assert prompts_of(_completion(prompt=prompt)) == expected


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["a", ""]])
def test_empty_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(ApiError, match="prompt must not be empty"):
        prompts_of(_completion(prompt=prompt))


@pytest.mark.parametrize(
    ("raw", "message", "param"),
    [
        pytest.param(b"{", "Invalid JSON", "body", id="not JSON"),
        pytest.param(b"", "1 validation error: body", "body", id="empty"),
        pytest.param(b"[]", "body", "body", id="not an object"),
        pytest.param(b"{}", "prompt: Field required", "prompt", id="no prompt"),
        pytest.param(b'{"prompt": [-1]}', "prompt", "prompt", id="negative id"),
        pytest.param(b'{"prompt": "a", "n": 0}', "greater than or equal to 1", "n", id="n"),
        pytest.param(b'{"prompt": "a", "temperature": -1}', "temperature", "temperature", id="temperature"),
        pytest.param(b'{"prompt": "a", "max_tokens": "many"}', "valid integer", "max_tokens", id="type"),
    ],
)
def test_bad_bodies_name_the_field(raw: bytes, message: str, param: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        parse_body(CompletionRequest, raw)
    info = caught.value.info
    assert (info.status, info.type) == (400, "BadRequestError")
    assert (info.param or "").startswith(param)
    assert info.body()["error"]["code"] == 400


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"stream_options": {"include_usage": True}}, "only be defined when `stream=True`", id="stream"
        ),
        pytest.param(
            {"min_tokens": 9, "max_tokens": 8}, "min_tokens must be less than or equal", id="min_tokens"
        ),
        pytest.param({"n": 2000}, "prompts times n must be at most 1024", id="n"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    request = _completion(**fields)
    with pytest.raises(ApiError, match=message):
        check_options(request, prompts_of(request))


def test_limits() -> None:
    chat = ChatRequest(messages=[{"role": "user", "content": "hi"}], max_tokens=9, max_completion_tokens=5)
    prompt = [1] * 98
    assert [one.max_tokens for one in _sequences(chat, [prompt[:50]])] == [5]
    assert [one.max_tokens for one in _sequences(_completion(), [prompt])] == [2]
    unlimited = ChatRequest(messages=[{"role": "user", "content": "hi"}])
    assert [one.max_tokens for one in _sequences(unlimited, [prompt[:40]])] == [60]
    with pytest.raises(ApiError, match="has no role"):
        chat_prompt(ChatRequest(messages=[{}]))


def test_the_model_stops_by_itself_unless_told_to_go_on() -> None:
    (free,) = _sequences(_completion(max_tokens=50), [[1]])
    (forced,) = _sequences(_completion(max_tokens=50, ignore_eos=True), [[1]])
    (late,) = _sequences(_completion(max_tokens=50, min_tokens=40), [[1]])
    assert free.stop_after is not None
    assert forced.stop_after is None
    assert late.stop_after is not None
    assert late.stop_after > 40


def test_samples_differ_and_can_be_repeated() -> None:
    request = _completion(n=3, ignore_eos=True)
    samples = _sequences(request, [[1, 2], [3]])
    assert [one.request_id for one in samples] == ["r-0", "r-1", "r-2", "r-3", "r-4", "r-5"]
    assert len({tuple(_output(one)) for one in samples}) == 6
    assert [_output(one) for one in _sequences(request, [[1, 2], [3]])] == [_output(one) for one in samples]
    assert _output(_sequences(request, [[1, 2]], "y")[0]) != _output(samples[0])


@pytest.mark.parametrize("fields", [{"seed": 4}, {"temperature": 0}])
def test_seeds_and_greedy_sampling_fix_the_output_whatever_the_request_id(fields: dict[str, Any]) -> None:
    request = _completion(ignore_eos=True, **fields)
    assert _output(_sequences(request, [[1]], "x")[0]) == _output(_sequences(request, [[1]], "y")[0])


@pytest.mark.parametrize(
    ("params", "transfer"),
    [
        pytest.param(None, Transfer.NONE, id="none"),
        pytest.param({}, Transfer.NONE, id="empty"),
        pytest.param(
            {"do_remote_decode": True, "do_remote_prefill": False}, Transfer.REMOTE_DECODE, id="prefill"
        ),
        pytest.param({"do_remote_prefill": True, **REMOTE}, Transfer.REMOTE_PREFILL, id="decode"),
    ],
)
def test_transfer_parameters(params: dict[str, Any] | None, transfer: Transfer) -> None:
    assert transfer_of(_completion(kv_transfer_params=params)) is transfer


def test_a_decode_must_say_where_the_kv_is() -> None:
    params = {"do_remote_prefill": True, **REMOTE, "remote_port": None}
    with pytest.raises(ApiError, match="do_remote_prefill needs remote_port"):
        transfer_of(_completion(kv_transfer_params=params))
