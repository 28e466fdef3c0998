"""The emulator over real sockets: the API, streaming, disconnects, KV transfer between two, and draining."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from rolloutpool_sim.emulator.server import Server
from rolloutpool_sim.profile import load_builtin, prefill_seconds
from rolloutpool_sim.testing import running_emulator, running_server

SMALL = ("--num-gpu-blocks-override", "65", "--max-model-len", "1000")
STORY = "Tell me about the ships that came to the harbour in spring. " * 8


def _nixl(**fields: Any) -> tuple[str, str]:
    return "--kv-transfer-config", json.dumps(
        {"kv_connector": "NixlConnector", "kv_role": "kv_both", **fields}
    )


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as made:
        yield made


async def _complete(client: httpx.AsyncClient, url: str, request_id: str = "", **body: Any) -> dict[str, Any]:
    headers = {"X-Request-Id": request_id} if request_id else {}
    fields = {"prompt": STORY, "max_tokens": 8, "ignore_eos": True, **body}
    response = await client.post(f"{url}/v1/completions", json=fields, headers=headers)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def _events(client: httpx.AsyncClient, url: str, **body: Any) -> list[dict[str, Any]]:
    """Parsed events of a stream, which must end with [DONE]."""
    async with client.stream("POST", url, json={"stream": True, **body}) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def _metrics(client: httpx.AsyncClient, url: str) -> dict[str, float]:
    """Samples of the metrics by name and labels other than model and engine."""
    text = (await client.get(f"{url}/metrics")).text
    samples: dict[str, float] = {}
    for name, labels, value in re.findall(r"^(vllm:[^{ ]+)\{([^}]*)\} (\S+)$", text, re.MULTILINE):
        kept = [label for label in labels.split(",") if not label.startswith(("model_name=", "engine="))]
        samples[name + "".join(f"{{{label}}}" for label in kept)] = float(value)
    return samples


async def test_completions_whole_and_streamed_are_the_same(client: httpx.AsyncClient) -> None:
    async with running_emulator(model="m") as url:
        whole = await _complete(client, url, model="m", seed=1)
        assert whole["object"] == "text_completion"
        assert whole["choices"][0]["finish_reason"] == "length"
        events = await _events(
            client,
            f"{url}/v1/completions",
            prompt=STORY,
            max_tokens=8,
            ignore_eos=True,
            seed=1,
            stream_options={"include_usage": True},
        )
    assert "".join(one["text"] for event in events for one in event["choices"]) == whole["choices"][0]["text"]
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert [event["choices"] for event in events[-1:]] == [[]]
    assert whole["usage"] == {
        "prompt_tokens": 129,
        "completion_tokens": 8,
        "total_tokens": 137,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert events[-1]["usage"] == {**whole["usage"], "prompt_tokens_details": {"cached_tokens": 128}}


async def test_every_turn_of_a_chat_finds_the_last_one_cached(client: httpx.AsyncClient) -> None:
    async with running_emulator() as url:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": STORY}]
        seen = 0
        for turn in range(4):
            body = {"messages": messages, "max_completion_tokens": 30, "model": "emulated"}
            if turn % 2:
                events = await _events(
                    client, f"{url}/v1/chat/completions", **body, stream_options={"include_usage": True}
                )
                assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
                text = "".join(event["choices"][0]["delta"]["content"] for event in events[:-1])
                usage = events[-1]["usage"]
            else:
                answer = (await client.post(f"{url}/v1/chat/completions", json=body)).json()
                assert answer["object"] == "chat.completion"
                text, usage = answer["choices"][0]["message"]["content"], answer["usage"]
            # All computed tokens of the turn before are found, down to its last full block.
            assert usage["prompt_tokens_details"]["cached_tokens"] == max(seen - 1, 0) // 16 * 16
            seen = usage["total_tokens"]
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]


async def test_several_prompts_and_samples(client: httpx.AsyncClient) -> None:
    async with running_emulator() as url:
        answer = await _complete(client, url, prompt=[[1, 2, 3], [4, 5]], n=2, return_token_ids=True)
        events = await _events(
            client, f"{url}/v1/completions", prompt="hello", n=3, max_tokens=4, ignore_eos=True
        )
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [[1, 2, 3]] * 2 + [[4, 5]] * 2
    assert all(len(choice["token_ids"]) == 8 for choice in answer["choices"])
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 32)
    assert {event["choices"][0]["index"] for event in events} == {0, 1, 2}


async def test_outputs_repeat_with_the_seed_and_request_id(client: httpx.AsyncClient) -> None:
    texts = []
    for seed, request_id in (("1", "a"), ("1", "a"), ("1", "b"), ("2", "a")):
        async with running_emulator(environment={"EMULATOR_SEED": seed}) as url:
            answer = await _complete(client, url, request_id, ignore_eos=False, max_tokens=500)
            assert answer["id"] == f"cmpl-{request_id}"
            texts.append(answer["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "message"),
    [
        pytest.param(
            "completions", {"model": "x", "prompt": "a"}, 404, "NotFoundError", "does not exist", id="model"
        ),
        pytest.param("completions", b"{", 400, "BadRequestError", "Invalid JSON", id="JSON"),
        pytest.param(
            "completions",
            {"prompt": [7] * 1200},
            400,
            "BadRequestError",
            "length is 1000 .* 1200 input",
            id="long",
        ),
        pytest.param(
            "chat/completions", {"messages": []}, 400, "BadRequestError", "at least 1 item", id="empty"
        ),
        pytest.param(
            "completions",
            {"prompt": "a", "stream_options": {}},
            400,
            "BadRequestError",
            "stream=True",
            id="options",
        ),
        pytest.param("nothing", {}, 404, "Not Found", "Not Found", id="path"),
    ],
)
async def test_errors_have_the_shape_of_vllm(
    path: str, body: dict[str, Any] | bytes, status: int, kind: str, message: str, client: httpx.AsyncClient
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with running_emulator(*SMALL) as url:
        response = await client.post(f"{url}/v1/{path}", content=content)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, status, kind)
    assert re.search(message, error["message"])
    assert error.keys() == {"message", "type", "param", "code"}


async def test_the_other_endpoints(client: httpx.AsyncClient) -> None:
    async with running_emulator("--served-model-name", "a", "b", *SMALL, model="hub/model") as url:
        models = (await client.get(f"{url}/v1/models")).json()["data"]
        assert [(card["id"], card["root"], card["max_model_len"]) for card in models] == [
            ("a", "hub/model", 1000),
            ("b", "hub/model", 1000),
        ]
        assert (await client.get(f"{url}/health")).status_code == 200
        assert (await client.get(f"{url}/ping")).status_code == 200
        assert (await client.get(f"{url}/version")).json()["version"].startswith("0.32")
        tokens = (await client.post(f"{url}/tokenize", json={"prompt": "some words"})).json()
        assert (tokens["count"], tokens["max_model_len"], len(tokens["tokens"])) == (3, 1000, 3)
        chat = {"messages": [{"role": "user", "content": "some words"}]}
        assert (await client.post(f"{url}/tokenize", json=chat)).json()["count"] > 3
        assert (await client.post(f"{url}/tokenize", json={})).status_code == 400
        assert (await client.get(f"{url}/v1/completions")).headers["Allow"] == "POST"


async def test_metrics_count_as_vllm_does(client: httpx.AsyncClient) -> None:
    async with running_emulator(*SMALL) as url:
        for _ in range(2):
            await _complete(client, url)
        samples = await _metrics(client, url)
    expected = {
        "prefix_cache_queries_total": 258,
        "prefix_cache_hits_total": 128,
        "prompt_tokens_total": 258,
        "generation_tokens_total": 16,
        'request_success_total{finished_reason="length"}': 2,
        "inter_token_latency_seconds_count": 14,
        "time_to_first_token_seconds_count": 2,
        "kv_cache_usage_perc": 0,
        "iteration_tokens_total_sum": 129 + 1 + 2 * 7,
    }
    assert {name: samples[f"vllm:{name}"] for name in expected} == expected
    # Durations are those of the modelled GPU, however fast the emulator runs.
    speed = load_builtin("emulated-8b-h100").at(1)
    prefill = prefill_seconds(speed, uncached_tokens=129)
    prefill += prefill_seconds(speed, uncached_tokens=1, cached_tokens=128)
    assert samples["vllm:request_prefill_time_seconds_sum"] == pytest.approx(prefill)


async def test_without_a_connector_transfer_parameters_are_ignored(client: httpx.AsyncClient) -> None:
    async with running_emulator() as url:
        answer = await _complete(client, url, kv_transfer_params={"do_remote_decode": True})
        samples = await _metrics(client, url)
    assert answer["kv_transfer_params"] is None
    assert not any("nixl" in name or "kv_fetch" in name for name in samples)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(stream: bool) -> None:
    body = json.dumps({"prompt": STORY, "max_tokens": 800, "ignore_eos": True, "stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: e\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with running_server(*SMALL, time_scale=1.0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head + body)
        if stream:
            await reader.readuntil(b"data: ")
        else:
            await _until_running(server)
        assert server.emulator.engine.pool.used_blocks > 0
        writer.close()
        await asyncio.wait_for(server.emulator.driver.empty(), 20)
        assert server.emulator.engine.pool.used_blocks == 0
        assert server.emulator.engine.counters.generation_tokens < 800


async def _until_running(server: Server) -> None:
    async with asyncio.timeout(20):
        while not server.emulator.engine.running:  # noqa: ASYNC110  # the engine has no event for its first step
            await asyncio.sleep(0.005)


async def test_overload_preempts_and_every_request_is_answered(client: httpx.AsyncClient) -> None:
    async with running_emulator(*SMALL) as url:
        answers = await asyncio.gather(
            *(_complete(client, url, prompt=f"{number} {STORY}", max_tokens=100) for number in range(16))
        )
        samples = await _metrics(client, url)
    assert all(answer["usage"]["completion_tokens"] == 100 for answer in answers)
    assert samples["vllm:num_preemptions_total"] > 0
    assert samples["vllm:kv_cache_usage_perc"] == 0


async def _prefill(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    params = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    params |= {"do_remote_decode": True, "do_remote_prefill": False}
    answer = await _complete(client, url, "one-id", max_tokens=1, kv_transfer_params=params)
    handover: dict[str, Any] = answer["kv_transfer_params"]
    return handover


async def test_prefill_on_one_emulator_and_decode_on_another(client: httpx.AsyncClient) -> None:
    async with running_server(*_nixl()) as prefill, running_server(*_nixl()) as decode:
        alone = await _complete(client, prefill.url, "one-id", max_tokens=12)
        handover = await _prefill(client, prefill.url)
        assert (handover["do_remote_prefill"], handover["do_remote_decode"]) == (True, False)
        assert (handover["remote_host"], handover["remote_port"]) == ("127.0.0.1", prefill.port)
        assert (handover["remote_num_tokens"], handover["tp_size"]) == (129, 1)
        assert len(handover["remote_block_ids"][0]) == 9
        answer = await _complete(client, decode.url, "one-id", max_tokens=12, kv_transfer_params=handover)
        assert answer["choices"][0]["text"] == alone["choices"][0]["text"]
        assert answer["kv_transfer_params"] is None
        # What the prefill engine found cached is reported, not that the decode engine had to compute nothing.
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 128}
        samples = await _metrics(client, decode.url)
        assert samples["vllm:external_prefix_cache_hits_total"] == 129
        assert samples['vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'] == 129
        assert samples["vllm:iteration_tokens_total_sum"] == 12, "only the last prompt token was computed"
        assert samples["vllm:nixl_xfer_time_seconds_count"] == 1
        await _until_free(prefill)
        assert prefill.emulator.engine.counters.expired_leases == 0
        again = await client.post(
            f"{decode.url}/v1/completions", json={"prompt": STORY * 3, "kv_transfer_params": handover}
        )
        assert again.status_code == 500, "a lease is read once"


async def _until_free(server: Server) -> None:
    async with asyncio.timeout(20):
        while server.emulator.engine.pool.used_blocks:  # noqa: ASYNC110  # leases end without an event
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("lost", ["expired", "gone"])
async def test_lost_kv_fails_or_is_recomputed(policy: str, lost: str, client: httpx.AsyncClient) -> None:
    short = _nixl(kv_connector_extra_config={"kv_lease_duration": 0.5})
    async with running_server(*_nixl(kv_load_failure_policy=policy)) as decode:
        async with running_server(*short) as prefill:
            handover = await _prefill(client, prefill.url)
            await _until_free(prefill)
            assert prefill.emulator.engine.counters.expired_leases == 1
            if lost == "expired":
                responses = await _decode_both_ways(client, decode.url, handover)
        if lost == "gone":
            responses = await _decode_both_ways(client, decode.url, handover)
        assert decode.emulator.engine.pool.used_blocks == 0
        assert decode.emulator.engine.counters.failed_loads == 2
    whole, streamed = responses
    if policy == "recompute":
        assert whole.status_code == 200
        assert whole.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert streamed[-1]["choices"][0]["finish_reason"] == "length"
    else:
        assert whole.status_code == 500
        assert whole.json()["error"]["type"] == "InternalServerError"
        assert streamed[-1]["error"]["code"] == 500


async def _decode_both_ways(
    client: httpx.AsyncClient, url: str, handover: dict[str, Any]
) -> tuple[httpx.Response, list[dict[str, Any]]]:
    body = {"prompt": STORY, "max_tokens": 3, "ignore_eos": True, "kv_transfer_params": handover}
    whole = await client.post(f"{url}/v1/completions", json=body)
    # Another prompt, lest the first one's recomputed prefix serves it.
    return whole, await _events(client, f"{url}/v1/completions", **{**body, "prompt": STORY.upper()})


async def test_heartbeats_keep_the_kv_while_the_decode_is_queued(client: httpx.AsyncClient) -> None:
    lease = _nixl(kv_connector_extra_config={"kv_lease_duration": 6})
    async with (
        running_server(*lease, time_scale=10) as prefill,
        running_server(*lease, "--max-num-seqs", "1", time_scale=10) as decode,
    ):
        busy = asyncio.create_task(_complete(client, decode.url, prompt="first", max_tokens=1300))
        await _until_running(decode)
        handover = await _prefill(client, prefill.url)
        answer = await _complete(client, decode.url, kv_transfer_params=handover)
        assert (await busy)["usage"]["completion_tokens"] == 1300
        assert answer["usage"]["completion_tokens"] == 8
        assert decode.emulator.engine.counters.failed_loads == 0
        # It waited for about 1300 steps of 7 ms, longer than the lease.
        samples = await _metrics(client, decode.url)
        assert samples["vllm:request_queue_time_seconds_sum"] > 6


async def test_a_queued_decode_that_is_given_up_lets_the_kv_go(client: httpx.AsyncClient) -> None:
    async with (
        running_server(*_nixl()) as prefill,
        running_server(*_nixl(), "--max-num-seqs", "1", time_scale=1) as decode,
    ):
        busy = asyncio.create_task(_complete(client, decode.url, prompt="first", max_tokens=5000))
        await _until_running(decode)
        handover = await _prefill(client, prefill.url)
        queued = asyncio.create_task(_complete(client, decode.url, kv_transfer_params=handover))
        async with asyncio.timeout(20):
            while not decode.emulator.engine.waiting:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.005)
        queued.cancel()
        await _until_free(prefill)
        assert prefill.emulator.engine.counters.expired_leases == 0
        busy.cancel()
        await asyncio.gather(busy, queued, return_exceptions=True)


async def test_a_decode_that_is_refused_lets_the_kv_go(client: httpx.AsyncClient) -> None:
    async with (
        running_server(*_nixl()) as prefill,
        running_server(*_nixl(), "--max-model-len", "64") as decode,
    ):
        body = {"prompt": STORY, "kv_transfer_params": await _prefill(client, prefill.url)}
        assert (await client.post(f"{decode.url}/v1/completions", json=body)).status_code == 400
        await _until_free(prefill)
        assert prefill.emulator.engine.counters.expired_leases == 0


@asynccontextmanager
async def _process(*flags: str, time_scale: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """An emulator as a process of its own, and its URL once it listens."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "rolloutpool_sim.emulator",
            "serve",
            "m",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
        ),
        *flags,
        stderr=asyncio.subprocess.PIPE,
        env={"EMULATOR_TIME_SCALE": time_scale},
    )
    try:
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        port = re.search(r"serving m as m on 127\.0\.0\.1:(\d+): profile emulated-8b-h100", line)
        assert port is not None, line
        yield process, f"http://127.0.0.1:{port[1]}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    ("timeout", "reason"),
    [pytest.param("30", "length", id="finished"), pytest.param("0", "abort", id="aborted")],
)
async def test_sigterm_drains(timeout: str, reason: str, client: httpx.AsyncClient) -> None:
    async with _process("--shutdown-timeout", timeout, time_scale="5") as (process, url):
        body = {"prompt": STORY, "max_tokens": 400, "ignore_eos": True, "stream": True}
        kept = httpx.AsyncClient(trust_env=False)
        async with kept, client.stream("POST", f"{url}/v1/completions", json=body) as response:
            assert (await kept.get(f"{url}/health")).status_code == 200
            lines = response.aiter_lines()
            await anext(lines)
            process.send_signal(signal.SIGTERM)
            events = [json.loads(line[6:]) async for line in lines if line and line != "data: [DONE]"]
        assert events[-1]["choices"][0]["finish_reason"] == reason
        assert await asyncio.wait_for(process.wait(), 20) == 0
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/health")


async def test_a_draining_server_takes_nothing_new(client: httpx.AsyncClient) -> None:
    async with running_server("--shutdown-timeout", "60", time_scale=20) as server:
        busy = asyncio.create_task(_complete(client, server.url, max_tokens=2000))
        await _until_running(server)
        assert (await client.get(f"{server.url}/health")).status_code == 200  # leaves a connection open
        draining = asyncio.create_task(server.drain())
        async with asyncio.timeout(20):
            while not server.emulator.generator.draining:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0)
        refused = await client.post(f"{server.url}/v1/completions", json={"prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "ServiceUnavailableError")
        assert (await busy)["choices"][0]["finish_reason"] == "length"
        await draining
