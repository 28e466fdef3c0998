"""The emulator's endpoints for weight synchronisation, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rolloutpool_sim.emulator.server import Server
from rolloutpool_sim.testing import running_server

RECORDED = Path(__file__).parents[1] / "unit" / "router" / "data" / "vllm_0_32_weight_sync.json"
DEV = {"VLLM_SERVER_DEV_MODE": "1"}
TRANSFER = ("--weight-transfer-config", '{"backend":"nccl"}')
NCCL = (*TRANSFER, "--tensor-parallel-size", "2")
INIT = {"init_info": {"master_address": "h", "master_port": 1, "rank_offset": 1, "world_size": 3}}
LONG = {"prompt": "Tell me of the ships. " * 40, "max_tokens": 400, "ignore_eos": True}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as made:
        yield made


@pytest.fixture
async def engine() -> AsyncIterator[Server]:
    async with running_server(*NCCL, environment=DEV, time_scale=2.0) as server:
        yield server


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.005)


async def started(engine: Server) -> None:
    """Wait until the engine has output."""
    await until(lambda: engine.emulator.engine.counters.generation_tokens)


async def reason(request: asyncio.Task[httpx.Response]) -> tuple[str, int]:
    body: dict[str, Any] = (await request).json()
    return body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]


async def test_without_development_mode_there_are_no_such_endpoints(client: httpx.AsyncClient) -> None:
    async with running_server(*NCCL) as server:
        assert (await client.post(f"{server.url}/pause")).status_code == 404
        assert (await client.get(f"{server.url}/weight_info")).status_code == 404


async def test_abort_ends_what_runs_and_holds_what_comes(client: httpx.AsyncClient, engine: Server) -> None:
    running = asyncio.create_task(client.post(f"{engine.url}/v1/completions", json=LONG))
    await started(engine)
    assert (await client.post(f"{engine.url}/pause")).json() == {"status": "paused"}
    ended, tokens = await reason(running)
    assert (ended, tokens < 400) == ("abort", True)
    late = asyncio.create_task(client.post(f"{engine.url}/v1/completions", json=LONG | {"max_tokens": 5}))
    await until(lambda: engine.emulator.driver.in_flight)
    assert (await client.get(f"{engine.url}/is_paused")).json() == {"is_paused": True}
    assert (await client.get(f"{engine.url}/health")).status_code == 200
    assert not late.done()
    assert (await client.post(f"{engine.url}/resume")).json() == {"status": "resumed"}
    assert await reason(late) == ("length", 5)


async def test_wait_lets_what_runs_end(client: httpx.AsyncClient, engine: Server) -> None:
    running = asyncio.create_task(client.post(f"{engine.url}/v1/completions", json=LONG))
    await started(engine)
    await client.post(f"{engine.url}/pause", params={"mode": "wait"})
    assert engine.emulator.driver.in_flight == ()
    assert await reason(running) == ("length", 400)


async def test_keep_freezes_what_runs_until_resume(client: httpx.AsyncClient, engine: Server) -> None:
    running = asyncio.create_task(client.post(f"{engine.url}/v1/completions", json=LONG))
    await started(engine)
    await client.post(f"{engine.url}/pause", params={"mode": "keep"})
    frozen = engine.emulator.engine.counters.generation_tokens
    await asyncio.sleep(0.05)
    assert engine.emulator.engine.counters.generation_tokens == frozen < 400
    await client.post(f"{engine.url}/resume")
    assert await reason(running) == ("length", 400)


async def test_a_held_sequence_whose_client_leaves_is_dropped(
    client: httpx.AsyncClient, engine: Server
) -> None:
    await client.post(f"{engine.url}/pause")
    held = asyncio.create_task(client.post(f"{engine.url}/v1/completions", json=LONG))
    await until(lambda: engine.emulator.driver.in_flight)
    held.cancel()
    await until(lambda: not engine.emulator.driver.in_flight)
    assert engine.emulator.engine.running == engine.emulator.engine.waiting == 0


async def test_a_weight_update_sets_the_version(client: httpx.AsyncClient, engine: Server) -> None:
    async def post(path: str, body: Any = None) -> int:
        return (await client.post(f"{engine.url}{path}", json=body)).status_code

    async def version() -> str:
        return str((await client.get(f"{engine.url}/weight_info")).json()["weight_version"])

    assert (await client.get(f"{engine.url}/get_world_size")).json() == {"world_size": 2}
    assert await version() == "default"
    assert await post("/update_weights", {"update_info": {}}) == 500  # not begun
    assert await post("/init_weight_transfer_engine", {"init_info": {}}) == 400
    outside = {"init_info": {**INIT["init_info"], "rank_offset": 2}}
    assert await post("/init_weight_transfer_engine", outside) == 500
    assert await post("/init_weight_transfer_engine", INIT) == 200
    assert await post("/start_weight_update") == 200
    assert await post("/start_weight_update") == 500  # begun already
    assert await post("/shutdown_weight_transfer_engine") == 500
    assert await post("/update_weights", {"update_info": {"names": ["a"]}}) == 200
    assert await version() == "default"
    assert await post("/finish_weight_update", {"weight_version": "7"}) == 200
    assert await version() == "7"
    assert await post("/finish_weight_update") == 500
    assert await post("/update_weight_version", {"new_version": "8"}) == 200
    assert await version() == "8"
    assert engine.emulator.development.updates == [{"names": ["a"]}]
    assert engine.emulator.development.init_info == INIT["init_info"]
    assert await post("/shutdown_weight_transfer_engine") == 200


async def test_sleep_gives_memory_back_and_wakes_up_in_parts(
    client: httpx.AsyncClient, engine: Server
) -> None:
    pool = engine.emulator.engine.pool
    await client.post(f"{engine.url}/v1/completions", json=LONG | {"max_tokens": 1})
    assert pool.cached_blocks > 0
    assert (await client.post(f"{engine.url}/sleep")).json() == {"status": "sleeping", "level": 1}
    assert pool.cached_blocks == 0
    woken = await client.post(f"{engine.url}/wake_up", params={"tags": "weights"})
    assert woken.json() == {"status": "sleeping", "tags": ["weights"]}
    assert (await client.get(f"{engine.url}/is_sleeping")).json() == {"is_sleeping": True}
    assert (await client.post(f"{engine.url}/wake_up")).json() == {"status": "awake", "tags": None}
    assert (await client.get(f"{engine.url}/is_paused")).json() == {"is_paused": False}


async def test_the_prefix_cache_is_reset_unless_it_is_in_use(
    client: httpx.AsyncClient, engine: Server
) -> None:
    running = asyncio.create_task(client.post(f"{engine.url}/v1/completions", json=LONG))
    await started(engine)
    reset = f"{engine.url}/reset_prefix_cache"
    assert (await client.post(reset)).json() == {"success": False}
    assert (await client.post(reset, params={"reset_running_requests": "true"})).json() == {"success": True}
    await client.post(f"{engine.url}/abort_requests", json={})
    assert (await reason(running))[0] == "abort"
    assert (await client.post(reset)).json() == {"success": True}


async def test_answers_are_those_of_vllm(client: httpx.AsyncClient) -> None:
    """Held to what a real engine answered to the same calls in the same order."""
    recorded = json.loads(RECORDED.read_text())["answers"]
    async with running_server(*TRANSFER, environment=DEV) as server:
        for call in recorded:
            answer = await client.request(call["method"], server.url + call["target"], json=call["body"])
            assert answer.status_code == call["status"], call
            if call["target"] == "/weight_checker":
                assert answer.json().keys() == json.loads(call["answer"]).keys()
            elif call["status"] == 200:
                assert (
                    answer.text == "" if not call["answer"] else answer.json() == json.loads(call["answer"])
                )


async def test_the_rest_answers_as_vllm_does(client: httpx.AsyncClient, engine: Server) -> None:
    async def post(path: str, body: Any) -> Any:
        return (await client.post(f"{engine.url}{path}", json=body)).json()

    echo = await post("/collective_rpc", {"method": "f", "args": ["1"]})
    assert echo == {"results": [{"method": "f", "args": ["1"], "kwargs": {}}] * 2}
    sums = (await post("/weight_checker", {"action": "checksum"}))["checksums"]
    assert (await post("/weight_checker", {"action": "compare", "baseline": sums}))["match"] is True
    assert (await client.post(f"{engine.url}/pause", params={"mode": "no"})).status_code == 400
    assert (await client.post(f"{engine.url}/release_kv_cache_memory")).status_code == 500
    info = (await client.get(f"{engine.url}/server_info", params={"config_format": "json"})).json()
    assert info["vllm_config"]["model_config"]["dtype"] == "torch.bfloat16"


async def test_an_update_that_failed_begins_anew_with_a_start(
    client: httpx.AsyncClient, engine: Server
) -> None:
    """vLLM ends an update with its first failure: what is left of it is refused, and a new start is not."""

    async def post(path: str, body: Any = None) -> int:
        return (await client.post(engine.url + path, json=body)).status_code

    weights = {"update_info": {"names": ["w"]}}
    assert await post("/start_weight_update") == 200
    assert await post("/update_weights", weights) == 500, "no transfer engine is there"
    assert await post("/update_weights", weights) == 500
    assert await post("/finish_weight_update") == 500
    assert await post("/init_weight_transfer_engine", INIT) == 200
    assert await post("/start_weight_update") == 200
    assert await post("/update_weights", weights) == 200
    assert await post("/finish_weight_update", {"weight_version": "2"}) == 200


async def test_requests_of_every_api_are_aborted_by_the_id_of_their_answer(
    client: httpx.AsyncClient, engine: Server
) -> None:
    ask = {"input": "Tell me.", "max_output_tokens": 400, "ignore_eos": True}
    running = asyncio.create_task(
        client.post(f"{engine.url}/v1/responses", json=ask, headers={"X-Request-Id": "mine"})
    )
    await started(engine)
    aborted = await client.post(f"{engine.url}/abort_requests", json={"request_ids": ["resp_mine"]})
    assert aborted.json() == {"status": "aborted", "aborted": 1}
    assert (await running).json()["usage"]["output_tokens"] < 400
