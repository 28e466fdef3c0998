"""What the router expects to find in an engine's cache, against what the engine finds.

The router sees bytes or token ids and no blocks, and of answers nothing, so the two agree up to a bound: a
chunk of the router's, in which it does not know where the equal part ends, a block of the engine's, and the
answer or the words of the chat template.
"""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rolloutpool_router.core.prompts import read_prompt
from rolloutpool_router.testing import RunningRouter, running_router
from vllm_serving.asking import ENGINE_HEADER, cached_tokens, text, tokens, user
from vllm_serving.engines import BLOCK_SIZE, Engine
from vllm_serving.model import NAME
from vllm_serving.routing import AGENT, SAMPLES, pool_of

CHUNK_TOKENS, CHUNK_BYTES = 64, 256
"""What one key of the router's index stands for, in prompts of token ids and of text."""
TEMPLATE_TOKENS = 16
TURNS = 6
ANSWER = 16


@pytest.fixture
async def within(engines: list[Engine], tmp_path: Path) -> AsyncIterator[RunningRouter]:
    """A router in this process, so that its index can be looked at."""
    async with running_router(tmp_path / "pool.json", pool_of(engines)) as router:
        yield router


def expected_share(
    router: RunningRouter, body: Mapping[str, Any], engine: str, chunk: int, size: int
) -> float:
    """The part of a prompt of this size that the router expects on the engine."""
    fields = {name: json.dumps(value).encode() for name, value in body.items()}
    keys = read_prompt(fields, model=NAME, block_size=BLOCK_SIZE).prefix_keys()
    overlaps = router.router.gate.controller.fleet.prefixes.overlaps(keys)
    return overlaps[engine] * chunk / size


async def test_token_ids(within: RunningRouter, engines: list[Engine]) -> None:
    """Prompts of token ids that grow by each answer, as of trainers that name no session."""
    prompt: list[int] = tokens(60, 150)
    async with aiohttp.ClientSession() as client:
        for turn in range(TURNS):
            body = {"model": NAME, "prompt": prompt, "max_tokens": ANSWER, "return_token_ids": True}
            expected = {
                each.name: expected_share(within, body, each.name, CHUNK_TOKENS, len(prompt))
                for each in engines
            }
            async with client.post(f"{within.url}/v1/completions", json=body, headers=SAMPLES) as answer:
                said, engine = await answer.json(), answer.headers[ENGINE_HEADER]
            found = cached_tokens(said["usage"])
            assert abs(expected[engine] * len(prompt) - found) < CHUNK_TOKENS + BLOCK_SIZE + ANSWER
            assert expected[engine] == max(expected.values())
            assert turn == 0 or expected[engine] > 0
            prompt = [*prompt, *said["choices"][0]["token_ids"], *tokens(61 + turn, 120)]


async def test_chats_of_new_sessions(within: RunningRouter, engines: list[Engine]) -> None:
    """Sessions that share a long system prompt: the next is expected, and found, where that is cached."""
    async with aiohttp.ClientSession() as client:
        for number in range(8):
            messages = [{"role": "system", "content": text(70, 400)}, user(text(71 + number, 40))]
            body = {"model": NAME, "messages": messages, "max_tokens": ANSWER}
            size = sum(len(json.dumps(message)) for message in messages)
            expected = {
                each.name: expected_share(within, body, each.name, CHUNK_BYTES, size) for each in engines
            }
            session = f"agent-new-{number}"
            headers = {**AGENT, "X-Session-ID": session}
            async with client.post(f"{within.url}/v1/chat/completions", json=body, headers=headers) as answer:
                said, engine = await answer.json(), answer.headers[ENGINE_HEADER]
            usage = said["usage"]
            bound = CHUNK_BYTES * usage["prompt_tokens"] / size + BLOCK_SIZE + TEMPLATE_TOKENS
            assert abs(expected[engine] * usage["prompt_tokens"] - cached_tokens(usage)) < bound
            assert expected[engine] == max(expected.values())
            assert number == 0 or expected[engine] > 0.5
            await client.post(f"{within.url}/finish_session", params={"session_id": session})
