"""Prompts computed on one engine and answered on another, the KV blocks moved by NIXL."""

from collections.abc import Iterator

import httpx
import pytest

from vllm_serving.asking import ENGINE_HEADER, text, tokens, user
from vllm_serving.engines import Engine, settings
from vllm_serving.model import NAME
from vllm_serving.routing import AGENT, SAMPLES, running

PROMPT_TOKENS = 300


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, started: list[Engine]) -> Iterator[list[Engine]]:
    """A prefill and a decode engine."""
    folder = tmp_path_factory.mktemp("pair")
    engines = [Engine(each, folder) for each in settings("prefill", "decode", nixl=True)]
    try:
        for engine in engines:
            engine.wait()
        yield engines
    finally:
        for engine in engines:
            engine.stop()


@pytest.fixture(scope="module")
def split(pair: list[Engine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a router that prefills on the one and decodes on the other."""
    roles = {"prefill": "prefill", "decode": "decode"}
    with (
        running(pair, tmp_path_factory.mktemp("split"), roles=roles) as router,
        httpx.Client(base_url=router.url, timeout=60) as client,
    ):
        yield client


def test_the_decode_engine_takes_the_prompt_from_the_prefill_engine(
    split: httpx.Client, pair: list[Engine], engines: list[Engine]
) -> None:
    """It computes none of it, and the answer is what one engine alone would say."""
    body = {"model": NAME, "prompt": tokens(50, PROMPT_TOKENS), "temperature": 0, "max_tokens": 16}
    body |= {"return_token_ids": True, "logprobs": 0}
    before = [each.counters() for each in pair]
    answer = split.post("/v1/completions", json=body, headers=SAMPLES)
    prefill, decode = (each.counters().since(old) for each, old in zip(pair, before, strict=True))
    assert answer.headers[ENGINE_HEADER] == "decode"
    assert (prefill.queries, prefill.generated) == (PROMPT_TOKENS, 1)
    assert (decode.fetched, decode.generated) == (PROMPT_TOKENS, 16)
    alone = httpx.post(f"{engines[0].url}/v1/completions", json=body, timeout=60).json()
    assert answer.json()["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]


def test_streams_too(split: httpx.Client) -> None:
    """A streamed answer comes from the decode engine alone, as long as was asked for."""
    body = {
        "model": NAME,
        "messages": [user(text(51, 80))],
        "max_tokens": 24,
        "ignore_eos": True,
        "stream": True,
    }
    with split.stream("POST", "/v1/chat/completions", json=body, headers=SAMPLES) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("data: {")]
        assert answer.headers[ENGINE_HEADER] == "decode"
    assert '"finish_reason":"length"' in events[-1]


def test_later_turns_fetch_what_the_decode_engine_lacks(split: httpx.Client, pair: list[Engine]) -> None:
    """A session's next turn finds its history on the decode engine and fetches no more than the rest."""
    prompt, headers = tokens(52, PROMPT_TOKENS), {**AGENT, "X-Session-ID": "agent-split"}
    body = {"model": NAME, "max_tokens": 16, "ignore_eos": True, "return_token_ids": True}
    first = split.post("/v1/completions", json={**body, "prompt": prompt}, headers=headers).json()
    before = pair[1].counters()
    longer = [*prompt, *first["choices"][0]["token_ids"], *tokens(53, 100)]
    assert split.post("/v1/completions", json={**body, "prompt": longer}, headers=headers).status_code == 200
    decode = pair[1].counters().since(before)
    assert decode.hits >= PROMPT_TOKENS - 32
    assert decode.hits + decode.fetched >= len(longer) - 32


def test_without_its_prefill_engine_the_decode_engine_does_it_all(
    split: httpx.Client, pair: list[Engine]
) -> None:
    """A dead prefill engine costs time, not answers. (Last in this file: it is not started again.)"""
    pair[0].kill()
    body = {"model": NAME, "prompt": tokens(54, PROMPT_TOKENS), "max_tokens": 4}
    for _ in range(2):
        answer = split.post("/v1/completions", json=body, headers=SAMPLES)
        assert (answer.status_code, answer.headers[ENGINE_HEADER]) == (200, "decode")
