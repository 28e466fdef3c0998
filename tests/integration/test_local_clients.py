"""A local pool as the clients of OpenAI and Anthropic meet it: real processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import yaml

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_cli.render import ready
from rolloutpool_operator.local.events import EventRecord
from rolloutpool_operator.local.options import LocalOptions
from rolloutpool_operator.local.ports import free_port
from rolloutpool_operator.local.runtime import LocalPool
from rolloutpool_router.testing import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed-rollouts.yaml"
JUDGE = "judge-of-answers"


class Listener:
    """Knows whether the pool is ready."""

    def __init__(self) -> None:
        self.ready = False

    def status_changed(self, body: Any) -> None:
        self.ready = ready(parse_pool(body))

    def event(self, record: EventRecord) -> None:
        """Not looked at."""


def disaggregated() -> dict[str, Any]:
    """The example on a prefill and a decode engine, with a class that requests name by a model of its own."""
    manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    spec = manifest["spec"]
    spec["gpus"]["budget"] = 2
    replicas = [{"role": "prefill", "replicas": 1}, {"role": "decode", "replicas": 1}]
    spec["planning"] = {"mode": "Manual", "replicas": replicas}
    spec.pop("slo", None)
    spec["engine"]["env"] = [{"name": "EMULATOR_TIME_SCALE", "value": "20"}]
    spec["engine"]["terminationGraceSeconds"] = 2
    spec["workloads"][1]["match"] = {"models": [JUDGE]}
    return manifest


@asynccontextmanager
async def running(folder: Path, manifest: dict[str, Any]) -> AsyncIterator[str]:
    """Base URL of a local pool that is ready."""
    path = folder / "pool.yaml"
    path.write_text(yaml.safe_dump(manifest))
    (folder / "logs").mkdir()
    port = free_port()
    options = LocalOptions(manifest=path, folder=folder, router_port=port, python=sys.executable)
    listener, stop = Listener(), asyncio.Event()
    pool = asyncio.create_task(LocalPool(options, listener=listener).run(stop))
    try:
        await until(lambda: listener.ready, timeout=60)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        await pool


@pytest.mark.timeout(90)
async def test_every_client_finds_its_api(tmp_path: Path) -> None:
    headers = {"X-Rollout-Class": "rlvr"}
    messages: list[Any] = [{"role": "user", "content": "Tell me about the ships."}]
    async with (
        running(tmp_path, disaggregated()) as url,
        openai.DefaultAsyncHttpxClient(trust_env=False) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", http_client=http) as gpt,
        anthropic.DefaultAsyncHttpxClient(trust_env=False) as other,
        anthropic.AsyncAnthropic(base_url=url, api_key="x", http_client=other) as claude,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as plain,
    ):
        model = (await gpt.models.list()).data[0].id
        ask: dict[str, Any] = {"model": model, "input": messages, "extra_headers": headers}
        assert (await gpt.responses.create(**ask)).output_text
        async with gpt.responses.stream(**ask) as stream:
            assert (await stream.get_final_response()).output_text

        talk: dict[str, Any] = {"model": model, "max_tokens": 20, "messages": messages}
        answer = await claude.messages.create(**talk, extra_headers=headers)
        assert answer.usage.output_tokens > 0
        async with claude.messages.stream(**talk, extra_headers=headers) as spoken:
            assert (await spoken.get_final_message()).content
        assert (await claude.messages.count_tokens(model=model, messages=messages)).input_tokens > 3

        chat = {"model": model, "messages": messages, "max_tokens": 9}
        rendered = (await plain.post("/v1/chat/completions/render", json=chat)).json()
        made = (await plain.post("/inference/v1/generate", json=rendered)).json()
        assert made["usage"]["prompt_tokens"] == len(rendered["token_ids"])
        text = await plain.post("/detokenize", json={"tokens": made["choices"][0]["token_ids"]})
        assert text.json()["prompt"]


@pytest.mark.timeout(90)
async def test_a_class_may_be_named_by_a_model(tmp_path: Path) -> None:
    """Requests without a class, for the model name of a `match` rule; engines know it too."""
    async with (
        running(tmp_path, disaggregated()) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):
        body = {"model": JUDGE, "prompt": "Is this right?", "max_tokens": 4}
        answer = await client.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["model"]) == (200, JUDGE)
        snapshot = (await client.get("/admission/snapshot")).json()
        finished = {item["name"]: item.get("finishedTotal", 0) for item in snapshot["classes"]}
        assert finished == {"rlvr": 0, "rlhf": 1, "agentic": 0}
