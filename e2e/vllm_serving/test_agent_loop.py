"""Agents of many turns, and groups of samples: where they go, and what the engines' caches find."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from vllm_serving.asking import EDGE_TOKENS, ENGINE_HEADER, text, whole_blocks
from vllm_serving.engines import Counters, Engine
from vllm_serving.model import NAME
from vllm_serving.routing import AGENT, SAMPLES

TURNS = 5
SESSIONS = 8
GROUPS = 6
SAMPLES_PER_GROUP = 8


@dataclass
class Loop:
    """One agent: asks, calls its tool, asks again with all that was said."""

    name: str
    engines: list[str] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)

    async def run(self, client: openai.AsyncOpenAI, seed: int) -> None:
        """All turns."""
        history: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": text(seed, 80)},
            {"role": "user", "content": text(seed + 1, 40)},
        ]
        for turn in range(TURNS):
            raw = await client.chat.completions.with_raw_response.create(
                model=NAME,
                messages=history,
                max_tokens=24,
                extra_headers={**AGENT, "X-Session-ID": self.name},
            )
            answer = raw.parse()
            assert answer.usage is not None
            details = answer.usage.prompt_tokens_details
            self.engines.append(raw.headers[ENGINE_HEADER])
            self.prompt_tokens.append(answer.usage.prompt_tokens)
            self.cached_tokens.append((details.cached_tokens or 0) if details else 0)
            history.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
            history.append({"role": "tool", "tool_call_id": f"call-{turn}", "content": text(turn, 30)})


@pytest.fixture
async def agents(router: str, engines: list[Engine]) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's asynchronous client."""
    async with openai.AsyncOpenAI(base_url=f"{router}/v1", api_key="none", max_retries=0) as client:
        yield client


async def run_loops(client: openai.AsyncOpenAI, prefix: str) -> list[Loop]:
    """All agents at once."""
    loops = [Loop(f"{prefix}-{number}") for number in range(SESSIONS)]
    await asyncio.gather(*(loop.run(client, 100 * number) for number, loop in enumerate(loops)))
    return loops


def totals(engines: list[Engine], before: list[Counters]) -> tuple[int, int]:
    """Prompt tokens looked for and found since, in all engines."""
    counted = [each.counters().since(earlier) for each, earlier in zip(engines, before, strict=True)]
    return sum(each.queries for each in counted), sum(each.hits for each in counted)


async def test_every_turn_of_a_session_goes_to_its_engine(
    agents: openai.AsyncOpenAI, router: str, engines: list[Engine]
) -> None:
    """... and finds there what the turn before left, while the sessions as a whole use both engines."""
    loops = await run_loops(agents, "agent-sticky")
    assert all(len(set(loop.engines)) == 1 for loop in loops)
    assert {loop.engines[0] for loop in loops} == {each.name for each in engines}
    for loop in loops:
        for turn in range(1, TURNS):
            assert loop.cached_tokens[turn] >= whole_blocks(loop.prompt_tokens[turn - 1] - EDGE_TOKENS)
    async with httpx.AsyncClient() as client:
        for loop in loops:
            ended = await client.post(f"{router}/finish_session", params={"session_id": loop.name})
            assert ended.status_code == 200


async def test_the_routers_tokens_are_the_engines(
    agents: openai.AsyncOpenAI, router: str, engines: list[Engine]
) -> None:
    """What the router counts as prompt and cached tokens is exactly what the engines' counters say."""
    before, told = [each.counters() for each in engines], await router_tokens(router)
    loops = await run_loops(agents, "agent-count")
    queries, hits = totals(engines, before)
    after = await router_tokens(router)
    assert (after[0] - told[0], after[1] - told[1]) == (queries, hits)
    assert queries == sum(sum(loop.prompt_tokens) for loop in loops)


async def router_tokens(router: str) -> tuple[float, float]:
    """Prompt tokens and cached ones in the router's metrics."""
    async with httpx.AsyncClient() as client:
        lines = (await client.get(f"{router}/metrics")).text.splitlines()
    prompt, cached = (
        sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith(f"rolloutpool_router_{name}_total")
        )
        for name in ("prompt_tokens", "cached_prompt_tokens")
    )
    return prompt, cached


async def test_samples_of_one_prompt_land_together(agents: openai.AsyncOpenAI, engines: list[Engine]) -> None:
    """All of a group go to one engine, where all but the first find the prompt; groups spread."""
    before = [each.counters() for each in engines]
    prompts = [text(1000 + group, 150) for group in range(GROUPS)]
    answers = await asyncio.gather(
        *(
            agents.chat.completions.with_raw_response.create(
                model=NAME,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=16,
                extra_headers={**SAMPLES, "X-Session-ID": f"group-{prompt[:4]}-{sample}"},
            )
            for sample in range(SAMPLES_PER_GROUP)
            for prompt in prompts
        )
    )
    homes = [{each.headers[ENGINE_HEADER] for each in answers[group::GROUPS]} for group in range(GROUPS)]
    assert [len(home) for home in homes] == [1] * GROUPS
    assert set.union(*homes) == {each.name for each in engines}
    queries, hits = totals(engines, before)
    usage = answers[0].parse().usage
    assert usage is not None
    most = (
        (SAMPLES_PER_GROUP - 1) / SAMPLES_PER_GROUP * whole_blocks(usage.prompt_tokens) / usage.prompt_tokens
    )
    assert hits / queries >= 0.95 * most
