"""The emulator's other APIs, asked by the clients that their users have."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest

from rolloutpool_sim.testing import running_emulator

STORY = "Tell me about the ships that came to the harbour in spring. " * 8
SCALE_OUT = "--enable-scale-out"


@asynccontextmanager
async def openai_client(*flags: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        running_emulator(*flags) as url,
        openai.DefaultAsyncHttpxClient(trust_env=False) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, http_client=http) as client,
    ):
        yield client


@asynccontextmanager
async def anthropic_client(*flags: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        running_emulator(*flags, environment={"EMULATOR_OUTPUT_TOKENS": "20"}) as url,
        anthropic.DefaultAsyncHttpxClient(trust_env=False) as http,
        anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0, http_client=http) as client,
    ):
        yield client


@asynccontextmanager
async def http_client(*flags: str) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running_emulator(*flags) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):
        yield client


async def posted(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


class TestResponses:
    async def test_whole_and_streamed_are_the_same(self) -> None:
        ask: dict[str, Any] = {"model": "emulated", "input": STORY, "max_output_tokens": 20, "temperature": 0}
        async with openai_client() as client:
            whole = await client.responses.create(**ask, extra_body={"ignore_eos": True})
            async with client.responses.stream(**ask, extra_body={"ignore_eos": True}) as stream:
                events = [event async for event in stream]
                final = await stream.get_final_response()
        assert whole.output_text == final.output_text
        assert whole.output_text
        assert (whole.status, final.status) == ("incomplete", "incomplete")
        assert whole.usage is not None
        assert final.usage is not None
        assert (whole.usage.output_tokens, whole.usage.input_tokens_details.cached_tokens) == (20, 0)
        assert (final.usage.output_tokens, final.usage.input_tokens_details.cached_tokens) == (20, 128)
        kinds = [event.type for event in events]
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert kinds[-1] == "response.completed"
        assert [event.sequence_number for event in events] == list(range(len(events)))

    async def test_the_next_turn_finds_the_last_one_cached(self) -> None:
        history: list[Any] = [{"role": "user", "content": STORY}]
        async with openai_client() as client:
            first = await client.responses.create(model="emulated", instructions="Be brief.", input=history)
            history += [item.model_dump() for item in first.output]
            history += [
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "a ship"},
                {"role": "user", "content": [{"type": "input_text", "text": "And then?"}]},
            ]
            second = await client.responses.create(model="emulated", instructions="Be brief.", input=history)
        assert first.status == "completed"
        assert first.usage is not None
        assert second.usage is not None
        seen = first.usage.total_tokens
        assert second.usage.input_tokens_details.cached_tokens == (seen - 1) // 16 * 16

    async def test_what_cannot_be_answered_says_why(self) -> None:
        async with openai_client() as client:
            with pytest.raises(openai.NotFoundError, match="resp_1' not found"):
                await client.responses.create(model="emulated", input="a", previous_response_id="resp_1")
            with pytest.raises(openai.NotFoundError, match="Valid aliases: emulated"):
                await client.responses.create(model="other", input="a")
            with pytest.raises(openai.BadRequestError, match="at least 1 item"):
                await client.responses.create(
                    model="emulated", input=[{"type": "reasoning", "id": "r", "summary": []}]
                )


class TestMessages:
    async def test_whole_and_streamed_are_the_same(self) -> None:
        ask: dict[str, Any] = {
            "model": "emulated",
            "max_tokens": 20,
            "system": "Be brief.",
            "messages": [{"role": "user", "content": STORY}],
            "extra_body": {"ignore_eos": True, "temperature": 0},
        }
        async with anthropic_client() as client:
            whole = await client.messages.create(**ask)
            async with client.messages.stream(**ask) as stream:
                streamed = await stream.get_final_message()
            counted = await client.messages.count_tokens(
                model="emulated", system="Be brief.", messages=ask["messages"]
            )
        assert [(block.type, block.text) for block in whole.content if block.type == "text"] == [
            (block.type, block.text) for block in streamed.content if block.type == "text"
        ]
        assert [block.type for block in whole.content] == ["text"]
        assert (whole.stop_reason, streamed.stop_reason) == ("max_tokens", "max_tokens")
        assert (whole.usage.input_tokens, whole.usage.cache_read_input_tokens) == (counted.input_tokens, 0)
        cached = (counted.input_tokens - 1) // 16 * 16
        assert streamed.usage.cache_read_input_tokens == cached
        assert streamed.usage.input_tokens == counted.input_tokens - cached
        assert whole.usage.output_tokens == streamed.usage.output_tokens == 20

    async def test_a_turn_with_tools_finds_the_last_one_cached(self) -> None:
        tools: Any = [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}]
        history: list[Any] = [{"role": "user", "content": [{"type": "text", "text": STORY}]}]
        async with anthropic_client() as client:

            async def turn() -> anthropic.types.Message:
                return await client.messages.create(
                    model="emulated", max_tokens=5000, tools=tools, messages=history
                )

            first = await turn()
            text = [block.model_dump() for block in first.content]
            use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
            result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "fog"}]}
            history += [{"role": "assistant", "content": text}, {"role": "user", "content": "Look out."}]
            second = await turn()
            history += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            third = await turn()
        assert first.stop_reason == "end_turn"
        assert second.usage.cache_read_input_tokens is not None
        assert third.usage.cache_read_input_tokens is not None
        assert second.usage.cache_read_input_tokens > first.usage.input_tokens - 16
        assert third.usage.cache_read_input_tokens >= second.usage.cache_read_input_tokens

    async def test_what_changes_with_every_request_is_taken_out(self) -> None:
        system: Any = [
            {"type": "text", "text": "x-anthropic-billing-header: 0a1b"},
            {"type": "text", "text": "Be brief."},
        ]
        messages: Any = [{"role": "user", "content": "hello"}]
        async with anthropic_client() as client:
            long = await client.messages.count_tokens(model="emulated", system=system, messages=messages)
            short = await client.messages.count_tokens(
                model="emulated", system="Be brief.", messages=messages
            )
        assert long.input_tokens == short.input_tokens

    async def test_errors_have_the_shape_of_anthropic(self) -> None:
        async with anthropic_client() as client:
            with pytest.raises(anthropic.NotFoundError) as found:
                await client.messages.create(
                    model="other", max_tokens=1, messages=[{"role": "user", "content": "a"}]
                )
        assert isinstance(found.value.body, dict)
        assert found.value.body["type"] == "error"
        assert "Valid aliases: emulated" in found.value.body["error"]["message"]


class TestTokens:
    async def test_a_rendered_chat_answers_as_the_chat_itself(self) -> None:
        chat = {
            "model": "emulated",
            "messages": [{"role": "user", "content": STORY}],
            "temperature": 0,
            "max_tokens": 16,
            "ignore_eos": True,
        }
        async with http_client(SCALE_OUT) as client:
            rendered = await posted(client, "/v1/chat/completions/render", **chat)
            generated = await posted(client, "/inference/v1/generate", **rendered)
            answered = await posted(client, "/v1/chat/completions", **chat, return_token_ids=True)
            text = await posted(client, "/detokenize", tokens=answered["choices"][0]["token_ids"])
        assert rendered["token_ids"] == answered["prompt_token_ids"]
        assert generated["choices"][0]["token_ids"] == answered["choices"][0]["token_ids"]
        assert generated["usage"] == answered["usage"] | {"prompt_tokens_details": {"cached_tokens": 0}}
        assert text["prompt"] == answered["choices"][0]["message"]["content"]

    async def test_prompts_are_rendered_one_by_one(self) -> None:
        async with http_client(SCALE_OUT) as client:
            bodies = await posted(client, "/v1/completions/render", prompt=[[1, 2], [3]], max_tokens=4)
        assert [body["token_ids"] for body in bodies] == [[1, 2], [3]]
        assert [body["sampling_params"]["max_tokens"] for body in bodies] == [4, 4]

    async def test_streamed_samples_with_what_a_trainer_asks_for(self) -> None:
        body = {
            "token_ids": [5, 6, 7],
            "sampling_params": {"max_tokens": 6, "n": 2, "ignore_eos": True, "logprobs": 1},
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "output_mode": "text",
        }
        async with (
            http_client(SCALE_OUT) as client,
            client.stream("POST", "/inference/v1/generate", json=body) as answer,
        ):
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert chunks[0]["prompt_token_ids"] == [5, 6, 7]
        assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        for index in (0, 1):
            mine = [choice for choice in choices if choice["index"] == index]
            tokens = [token for choice in mine for token in choice["token_ids"]]
            logged = [entry["token_id"] for choice in mine for entry in choice["logprobs"]["content"]]
            assert len(tokens) == 6
            assert logged == tokens
            assert mine[-1]["finish_reason"] == "length"
            assert len("".join(choice["text"] for choice in mine)) == 6 * 5
        assert chunks[-1]["usage"]["completion_tokens"] == 12

    async def test_without_the_flag_vllm_refuses_them(self) -> None:
        body = {"token_ids": [1], "sampling_params": {}}
        async with http_client() as client:
            answer = await client.post("/inference/v1/generate", json=body)
            rendered = await client.post("/v1/chat/completions/render", json={})
        assert (answer.status_code, rendered.status_code) == (403, 403)
        assert "--enable-scale-out" in answer.json()["error"]["message"]

    async def test_a_text_comes_back_from_its_tokens(self) -> None:
        async with http_client() as client:
            there = await posted(client, "/tokenize", prompt=STORY)
            back = await posted(client, "/detokenize", tokens=there["tokens"])
            refused = await client.post("/detokenize", json={"tokens": [-1]})
        assert back == {"prompt": STORY}
        assert refused.status_code == 400
