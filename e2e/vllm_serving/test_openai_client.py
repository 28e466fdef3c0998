"""OpenAI's client against the router: as against one engine."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionToolParam

from rolloutpool_router import comments
from rolloutpool_router.testing import running_router
from vllm_serving.asking import ENGINE_HEADER, content, text, user
from vllm_serving.engines import MAX_MODEL_LEN, Engine
from vllm_serving.model import NAME
from vllm_serving.routing import SAMPLES, pool_of

TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    """A chat of one short message: an answer, or the chunks of a stream."""
    plain: dict[str, Any] = {"model": NAME, "messages": [user("solve it")], "max_tokens": 8}
    return client.chat.completions.create(**{**plain, "extra_headers": SAMPLES, **fields})


def test_chat(client: openai.OpenAI) -> None:
    """Message, finish reason and usage."""
    answer = ask(client, extra_body={"ignore_eos": True})
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_the_router_says_where_it_was(client: openai.OpenAI, engines: list[Engine]) -> None:
    """Its own headers reach the client."""
    raw = client.chat.completions.with_raw_response.create(
        model=NAME, messages=[{"role": "user", "content": "hi"}], max_tokens=2, extra_headers=SAMPLES
    )
    assert raw.headers[ENGINE_HEADER] in {each.name for each in engines}
    assert float(raw.headers["x-rolloutpool-queue-seconds"]) >= 0
    assert raw.parse().choices


def test_stream(client: openai.OpenAI) -> None:
    """The pieces of a stream are the whole answer, and its last one has the usage."""
    fields = {"temperature": 0, "max_tokens": 32, "extra_body": {"ignore_eos": True}}
    whole = ask(client, **fields)
    chunks = list(ask(client, **fields, stream=True, stream_options={"include_usage": True}))
    assert content(chunks) == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_several_samples_with_logprobs(client: openai.OpenAI) -> None:
    """`n` and `top_logprobs` reach the engine."""
    answer = ask(client, n=3, logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True})
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [len(token.top_logprobs) for token in choice.logprobs.content] == [2] * 8


def test_tools_reach_the_template(client: openai.OpenAI) -> None:
    """The prompt grows by the tools; the answer is no refusal."""
    plain, with_tools = ask(client), ask(client, tools=[TOOL])
    assert plain.usage is not None
    assert with_tools.usage is not None
    assert with_tools.usage.prompt_tokens > plain.usage.prompt_tokens + 50


def test_unknown_fields_reach_the_engine(client: openai.OpenAI) -> None:
    """vLLM's own fields come back as vLLM's own fields."""
    answer = ask(client, extra_body={"return_token_ids": True, "ignore_eos": True}).model_dump()
    assert len(answer["choices"][0]["token_ids"]) == 8
    assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])


def test_completions(client: openai.OpenAI) -> None:
    """Text completions, streamed and not."""
    whole = client.completions.create(
        model=NAME, prompt="the quick", max_tokens=8, temperature=0, logprobs=1, extra_headers=SAMPLES
    )
    stream = client.completions.create(
        model=NAME, prompt="the quick", max_tokens=8, temperature=0, stream=True, extra_headers=SAMPLES
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    assert whole.choices[0].logprobs is not None


def test_models(client: openai.OpenAI) -> None:
    """The engine's model with its longest context, which clients size their prompts by."""
    (model,) = client.models.list().data
    assert model.id == NAME
    assert model.model_dump()["max_model_len"] == MAX_MODEL_LEN


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"max_tokens": -4}, id="a bad field"),
        pytest.param({"messages": [user(text(0, 12_000))]}, id="a prompt beyond the context"),
        pytest.param({"messages": []}, id="no message"),
        pytest.param({"temperature": "hot"}, id="a wrong type"),
    ],
)
def test_errors_are_as_the_engine_gave_them(
    client: openai.OpenAI, engines: list[Engine], fields: dict[str, object]
) -> None:
    """Status and body of an error do not change on the way."""
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **fields)
    body = {"model": NAME, "messages": [user("solve it")], "max_tokens": 8, **fields}
    direct = httpx.post(f"{engines[0].url}/v1/chat/completions", json=body, timeout=30)
    assert (refused.value.status_code, refused.value.response.content) == (direct.status_code, direct.content)


def test_a_model_that_is_not_served(client: openai.OpenAI) -> None:
    """The error that clients know from OpenAI and vLLM."""
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        ask(client, model="other")


def test_a_client_that_gives_up_frees_the_engine(client: openai.OpenAI, engines: list[Engine]) -> None:
    """A client's own timeout ends the generation in the engine."""
    before = [each.counters() for each in engines]
    with pytest.raises(openai.APITimeoutError):
        ask(client, max_tokens=6000, extra_body={"ignore_eos": True}, timeout=0.5)
    for each in engines:
        each.wait_until_idle(seconds=5)
    after = [each.counters().since(earlier) for each, earlier in zip(engines, before, strict=True)]
    assert 0 < sum(each.generated for each in after) < 6000


async def test_many_at_once(router: str, engines: list[Engine]) -> None:
    """64 requests of the asynchronous client are all answered, and both engines work."""
    async with openai.AsyncOpenAI(base_url=f"{router}/v1", api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.with_raw_response.create(
                    model=NAME,
                    messages=[{"role": "user", "content": text(seed, 20)}],
                    max_tokens=16,
                    extra_headers=SAMPLES,
                )
                for seed in range(64)
            )
        )
    assert all(answer.parse().choices for answer in answers)
    assert {answer.headers[ENGINE_HEADER] for answer in answers} == {each.name for each in engines}


async def test_a_stream_that_waits_gets_comments(
    engines: list[Engine], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client passes over them, and gets its answer when the router lets it in."""
    monkeypatch.setattr(comments, "PERIOD_SECONDS", 0.1)
    async with (
        running_router(folder / "pool.json", pool_of(engines)) as router,
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client,
    ):
        router.router.pause.close()
        stream = await client.chat.completions.create(  # returns with the first comment
            model=NAME,
            messages=[{"role": "user", "content": "solve it"}],
            max_tokens=8,
            stream=True,
            extra_body={"ignore_eos": True},
            extra_headers=SAMPLES,
        )
        assert router.router.pause.waiting == 1
        router.router.pause.open()
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "length"
