"""A router that follows the engines' KV events knows what they hold, whoever asked them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from rolloutpool_router.core.prompts import read_prompt
from rolloutpool_router.testing import RunningRouter, running_router
from vllm_serving.asking import ENGINE_HEADER, cached_tokens, tokens
from vllm_serving.engines import BLOCK_SIZE, MAX_MODEL_LEN, Engine
from vllm_serving.model import NAME
from vllm_serving.routing import SAMPLES, pool_of

CHUNK_TOKENS = 64
SECONDS = 20.0
PROMPT_TOKENS = 320


@pytest.fixture
async def follower(engines: list[Engine], tmp_path: Path) -> AsyncIterator[RunningRouter]:
    """A router in this process that follows both engines."""
    pool = pool_of(engines, engine={"kvEvents": {"enabled": True}})
    async with running_router(tmp_path / "pool.json", pool) as router:
        yield router


def completion(prompt: list[int], **fields: Any) -> dict[str, Any]:
    """A body of token ids."""
    return {"model": NAME, "prompt": prompt, "max_tokens": 2, "ignore_eos": True, **fields}


def ask_directly(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    """Ask an engine past the router."""
    answer: dict[str, Any] = httpx.post(f"{engine.url}/v1/completions", json=body, timeout=120).json()
    return answer


def known(router: RunningRouter, prompt: list[int], engine: Engine) -> int:
    """How many tokens of a prompt the router expects on the engine."""
    fields = {"prompt": json.dumps(prompt).encode()}
    keys = read_prompt(fields, model=NAME, block_size=BLOCK_SIZE).prefix_keys()
    return router.router.gate.controller.fleet.prefixes.overlaps(keys)[engine.name] * CHUNK_TOKENS


async def until_known(router: RunningRouter, prompt: list[int], engine: Engine, tokens: int) -> None:
    """Wait until the router expects so many tokens there. Raises AssertionError with what it expects."""
    until = time.monotonic() + SECONDS
    while (found := known(router, prompt, engine)) != tokens:
        assert time.monotonic() < until, f"{found} tokens are known, not {tokens}"
        await asyncio.sleep(0.05)


async def test_what_others_asked_is_known_and_used(follower: RunningRouter, engines: list[Engine]) -> None:
    """A prompt, and the answer to it, that one engine alone has seen: the next request goes there."""
    for number, engine in enumerate(engines):
        prompt = tokens(100 + number, PROMPT_TOKENS)
        asked = completion(prompt, max_tokens=70, return_token_ids=True)
        said = await asyncio.to_thread(ask_directly, engine, asked)
        whole = [*prompt, *said["choices"][0]["token_ids"]]
        await until_known(follower, whole, engine, (len(whole) - 1) // CHUNK_TOKENS * CHUNK_TOKENS)
        body = completion([*whole, 5])
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{follower.url}/v1/completions", json=body, headers=SAMPLES) as answer,
        ):
            assert answer.headers[ENGINE_HEADER] == engine.name
            assert cached_tokens((await answer.json())["usage"]) >= len(whole) - BLOCK_SIZE


async def test_a_router_that_starts_late_learns_what_was(engines: list[Engine], tmp_path: Path) -> None:
    """vLLM repeats its past events to one that asks."""
    prompt = tokens(110, PROMPT_TOKENS)
    await asyncio.to_thread(ask_directly, engines[1], completion(prompt))
    pool = pool_of(engines, engine={"kvEvents": {"enabled": True}})
    async with running_router(tmp_path / "late.json", pool) as late:
        await until_known(late, prompt, engines[1], PROMPT_TOKENS)


async def test_what_was_evicted_is_forgotten(follower: RunningRouter, engines: list[Engine]) -> None:
    """Prompts that fill the whole cache push out one that came before them."""
    prompt = tokens(120, PROMPT_TOKENS)
    await asyncio.to_thread(ask_directly, engines[0], completion(prompt))
    await until_known(follower, prompt, engines[0], PROMPT_TOKENS)
    for number in range(4):
        long = tokens(121 + number, MAX_MODEL_LEN - 100)
        await asyncio.to_thread(ask_directly, engines[0], completion(long))
    await until_known(follower, prompt, engines[0], 0)


async def test_a_reset_is_heard_of(follower: RunningRouter, engines: list[Engine]) -> None:
    """vLLM says so with its next step, not at once."""
    prompt = tokens(130, PROMPT_TOKENS)
    await asyncio.to_thread(ask_directly, engines[0], completion(prompt))
    await until_known(follower, prompt, engines[0], PROMPT_TOKENS)
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{engines[0].url}/reset_prefix_cache") as answer,
    ):
        assert answer.status == 200
    await asyncio.to_thread(ask_directly, engines[0], completion(tokens(131, 10)))
    await until_known(follower, prompt, engines[0], 0)
