"""Trainers that send token ids and take token ids with logprobs: prime-rl, SkyRL, TRL, AReaL."""

import json
from typing import Any

import httpx
import pytest

from vllm_serving.asking import ENGINE_HEADER, cached_tokens, tokens, whole_blocks
from vllm_serving.engines import Engine
from vllm_serving.model import NAME
from vllm_serving.routing import AGENT, SAMPLES

OUTPUT = 24


def completion(prompt: list[int], **fields: Any) -> dict[str, Any]:
    """A body for /v1/completions as TRL sends it."""
    asked = {"n": 1, "return_token_ids": True, "logprobs": 0, "max_tokens": OUTPUT, "ignore_eos": True}
    return {"model": NAME, "prompt": prompt, **asked, **fields}


def generation(prompt: list[int], **fields: Any) -> dict[str, Any]:
    """A body for /inference/v1/generate as prime-rl sends it."""
    sampling = {"max_tokens": OUTPUT, "logprobs": 1, "ignore_eos": True, "skip_special_tokens": False}
    return {"model": NAME, "token_ids": prompt, "sampling_params": sampling, **fields}


def test_completions_by_token_ids(http: httpx.Client) -> None:
    """The prompt's ids come back, and a logprob for each id of the answer."""
    prompt = tokens(10, 70)
    answer = http.post("/v1/completions", json=completion(prompt), headers=SAMPLES).json()
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == prompt
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == OUTPUT
    assert answer["usage"]["prompt_tokens"] == len(prompt)


def test_generate(http: httpx.Client) -> None:
    """A logprob for each id, and the version of the weights that made it."""
    answer = http.post("/inference/v1/generate", json=generation(tokens(11, 70)), headers=SAMPLES).json()
    (choice,) = answer["choices"]
    assert [each["token_id"] for each in choice["logprobs"]["content"]] == choice["token_ids"]
    assert len(choice["token_ids"]) == OUTPUT
    assert choice["weight_versions"] == [{"version": "default", "start": 0, "end": OUTPUT}]


def test_generate_streams(http: httpx.Client) -> None:
    """Each event has new ids; together they are the whole answer."""
    body = generation(tokens(12, 70), stream=True)
    ids: list[int] = []
    with http.stream("POST", "/inference/v1/generate", json=body, headers=SAMPLES) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    ids += choice["token_ids"]
    assert len(ids) == OUTPUT


@pytest.mark.parametrize(("path", "seed"), [("/v1/completions", 30), ("/inference/v1/generate", 40)])
def test_turns_find_the_last_answer_in_the_cache(http: httpx.Client, path: str, seed: int) -> None:
    """Of a later turn's prompt all whole blocks of the turn before are found, its answer's included.

    The last token of an answer has no KV yet, so the block that it fills is not cached.
    """
    make = completion if path == "/v1/completions" else generation
    headers = {**AGENT, "X-Session-ID": f"agent-tito-{path}"}
    prompt, seen = tokens(seed, 100), set()
    held = 0
    for turn in range(4):
        answer = http.post(path, json=make(prompt), headers=headers)
        seen.add(answer.headers[ENGINE_HEADER])
        assert cached_tokens(answer.json()["usage"]) == whole_blocks(held)
        (choice,) = answer.json()["choices"]
        held = len(prompt) + OUTPUT - 1
        prompt = [*prompt, *choice["token_ids"], *tokens(seed + 1 + turn, 40)]
    assert len(seen) == 1


def test_a_salt_keeps_caches_apart(http: httpx.Client) -> None:
    """`cache_salt`, which stands for the weights' version, reaches the engine: no hit across versions."""
    prompt = tokens(13, 200)
    headers = {**AGENT, "X-Session-ID": "agent-salt"}
    cached = [
        cached_tokens(
            http.post(
                "/inference/v1/generate", json=generation(prompt, cache_salt=salt), headers=headers
            ).json()["usage"]
        )
        for salt in ("1", "1", "2")
    ]
    assert cached == [0, whole_blocks(199), 0]


def test_an_abort_is_an_answer(http: httpx.Client, engines: list[Engine]) -> None:
    """Trainers that pause with abort take `finish_reason: abort` with status 200 and go on from there."""
    body = completion(tokens(14, 50), max_tokens=4000, stream=True)
    reasons = []
    with http.stream("POST", "/v1/completions", json=body, headers=SAMPLES) as answer:
        engine = next(each for each in engines if each.name == answer.headers[ENGINE_HEADER])
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                reasons.append(json.loads(line.removeprefix("data: "))["choices"][0]["finish_reason"])
                if len(reasons) == 1:
                    httpx.post(f"{engine.url}/abort_requests", json={}, timeout=30).raise_for_status()
    assert answer.status_code == 200
    assert reasons[-1] == "abort"
