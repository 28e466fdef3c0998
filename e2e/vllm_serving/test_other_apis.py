"""What vLLM serves besides OpenAI's chats and completions."""

import anthropic
import httpx
import openai

from vllm_serving.asking import same_answer, text, tokens, user
from vllm_serving.engines import Engine
from vllm_serving.model import NAME
from vllm_serving.routing import AGENT, SAMPLES

PROMPT = text(1, 60)


def test_messages(claude: anthropic.Anthropic) -> None:
    """Anthropic's client, whole and streamed."""
    whole = claude.messages.create(
        model=NAME,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=16,
        extra_body={"temperature": 0},
        extra_headers=SAMPLES,
    )
    with claude.messages.stream(
        model=NAME,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=16,
        extra_body={"temperature": 0},
        extra_headers=SAMPLES,
    ) as stream:
        streamed = stream.get_final_message()
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    assert [block.type for block in whole.content] == [block.type for block in streamed.content] == ["text"]
    assert streamed.usage.output_tokens == whole.usage.output_tokens == 16


def test_count_tokens(claude: anthropic.Anthropic, http: httpx.Client) -> None:
    """Counting needs no class and enters no queue; it agrees with what the engine makes of the prompt."""
    counted = claude.messages.count_tokens(model=NAME, messages=[{"role": "user", "content": PROMPT}])
    rendered = http.post("/v1/chat/completions/render", json={"model": NAME, "messages": [user(PROMPT)]})
    assert counted.input_tokens == len(rendered.json()["token_ids"])


def test_messages_of_a_session_find_its_cache(claude: anthropic.Anthropic) -> None:
    """An agent that speaks Anthropic's protocol keeps its engine and its cache."""
    headers = {**AGENT, "X-Claude-Code-Session-Id": "agent-claude"}
    ask = {"model": NAME, "max_tokens": 8, "extra_headers": headers}
    history: list[anthropic.types.MessageParam] = [{"role": "user", "content": text(2, 100)}]
    first = claude.messages.create(**ask, messages=history)  # type: ignore[call-overload]
    history += [{"role": "assistant", "content": "done"}, {"role": "user", "content": "go on"}]
    second = claude.messages.create(**ask, messages=history)  # type: ignore[call-overload]
    assert first.usage.cache_read_input_tokens == 0
    assert second.usage.cache_read_input_tokens > 32


def test_responses(client: openai.OpenAI) -> None:
    """OpenAI's responses, whole and streamed."""
    whole = client.responses.create(
        model=NAME, input=PROMPT, max_output_tokens=16, temperature=0, extra_headers=SAMPLES
    )
    stream = client.responses.create(
        model=NAME, input=PROMPT, max_output_tokens=16, temperature=0, stream=True, extra_headers=SAMPLES
    )
    events = list(stream)
    assert events[0].type == "response.created"
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == whole.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens == 16


def test_tokenize_and_back(http: httpx.Client) -> None:
    """What NeMo Gym and SkyRL ask between two turns."""
    there = http.post("/tokenize", json={"model": NAME, "prompt": PROMPT}).json()
    back = http.post("/detokenize", json={"model": NAME, "tokens": there["tokens"]}).json()
    assert back["prompt"] == PROMPT


def test_render_then_generate_is_the_chat(http: httpx.Client, engines: list[Engine]) -> None:
    """A chat rendered to tokens and generated from them answers as the chat itself, through any engine."""
    chat = {
        "model": NAME,
        "messages": [user(PROMPT)],
        "temperature": 0,
        "max_tokens": 16,
        "return_token_ids": True,
    }
    rendered = http.post("/v1/chat/completions/render", json=chat).json()
    generated = http.post(
        "/inference/v1/generate",
        json={
            "model": NAME,
            "token_ids": rendered["token_ids"],
            "sampling_params": {"temperature": 0, "max_tokens": 16},
        },
        headers=SAMPLES,
    ).json()
    answered = http.post("/v1/chat/completions", json=chat, headers=SAMPLES).json()
    assert answered["prompt_token_ids"] == rendered["token_ids"]
    assert generated["choices"][0]["token_ids"] == answered["choices"][0]["token_ids"]


def test_answers_are_the_engines_own(http: httpx.Client, engines: list[Engine]) -> None:
    """Through the router as from the engine, field by field."""
    body = {"model": NAME, "prompt": tokens(3, 90), "temperature": 0, "max_tokens": 8, "logprobs": 2}
    through = http.post("/v1/completions", json=body, headers=SAMPLES).json()
    direct = httpx.post(f"{engines[0].url}/v1/completions", json=body, timeout=60).json()
    assert same_answer(through, direct)
