"""Weight synchronisation through the router: real sockets, engines that fail in every phase, and trainers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from rolloutpool_router.core.weights import MISSED, UNFINISHED
from rolloutpool_router.testing import pool_object, until
from rolloutpool_router.weights.listener import MAX_BODY_BYTES
from rolloutpool_router.weights.testing import CAPS, TOKEN, FakeTrainable, Pool, running_pool

INIT = {"init_info": {"master_address": "h", "master_port": 1, "rank_offset": 1, "world_size": 7}}
CHAT = "/v1/chat/completions"
PHASES = ("/start_weight_update", "/update_weights", "/finish_weight_update")


@asynccontextmanager
async def three(
    folder: Path, *, limit: float = 3600.0, settled: bool = True, **fields: Any
) -> AsyncIterator[tuple[Pool, list[FakeTrainable]]]:
    """A router before three engines with 1, 2 and 3 workers."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(FakeTrainable(world_size=n, **fields).running())
            for n in (1, 2, 3)
        ]
        urls = {f"e-{number}": engine.url for number, engine in enumerate(engines)}
        pool = await stack.enter_async_context(running_pool(folder, urls, limit=limit, settled=settled))
        yield pool, engines


async def update(pool: Pool, version: str | None = None) -> list[int]:
    """Statuses of a whole weight update."""
    finish = {"weight_version": version} if version else {}
    bodies: list[Any] = [None, {"update_info": {"names": ["w"]}}, finish]
    return [(await pool.call(path, body))[0] for path, body in zip(PHASES, bodies, strict=True)]


def served(engines: list[FakeTrainable]) -> list[int]:
    return [engine.generations for engine in engines]


async def test_a_trainer_with_one_url_synchronises_all_engines(tmp_path: Path) -> None:
    """What TRL's asynchronous trainer does with a single vLLM server, word for word."""
    async with three(tmp_path) as (pool, engines):
        assert (await pool.get("/health"))[0] == 200
        assert (await pool.get("/v1/models"))[1]["data"][0]["max_model_len"] == 4096
        assert await pool.get("/get_world_size") == (200, {"world_size": 6})
        assert (await pool.call("/init_weight_transfer_engine", INIT))[0] == 200
        assert await pool.call("/pause", mode="keep") == (200, {"status": "/pause"})
        assert await update(pool, "step-1") == [200, 200, 200]
        assert await pool.call("/resume") == (200, {"status": "/resume"})
        assert (await pool.generate(url=pool.url))[1]["model"] == "step-1"
        offsets = [
            body["init_info"]["rank_offset"]
            for engine in engines
            for path, body in engine.calls
            if path == "/init_weight_transfer_engine"
        ]
        assert offsets == [1, 2, 4]
        assert [engine.calls[1] for engine in engines] == [("/pause?mode=keep", None)] * 3
        assert all(engine.authorizations == [] for engine in engines)
        assert pool.sync.describe()["version"] == "step-1"
        told = pool.sync.snapshot()
        assert (told.version, told.paused_seconds, told.stale_engines) == ("step-1", 0.0, [])


async def test_trainers_that_know_every_engine_are_understood(tmp_path: Path) -> None:
    """SkyRL and prime-rl find the engines by /workers, and pause and update them one by one."""
    async with three(tmp_path) as (pool, engines):
        workers = [worker["url"] for worker in (await pool.get("/workers"))[1]["workers"]]
        assert workers == [engine.url for engine in engines]
        for url in workers:
            await pool.client.post(f"{url}/pause")
        await until(lambda: not pool.router.router.pause.is_open)
        for url in workers:
            await pool.client.post(f"{url}/start_weight_update")
            await pool.client.post(f"{url}/finish_weight_update", json={"weight_version": "9"})
            await pool.client.post(f"{url}/resume")
        await until(lambda: pool.router.router.pause.is_open and pool.sync.state.wanted == "9")
        assert pool.sync.stale() == {}


async def test_requests_wait_while_the_pool_is_paused(tmp_path: Path) -> None:
    async with three(tmp_path) as (pool, engines):
        before = await pool.generate("s")
        await pool.call("/pause")
        waiting = [asyncio.create_task(pool.generate(session)) for session in ("s", "t", "u")]
        await until(lambda: pool.router.router.pause.waiting == 3)
        assert sum(engine.arrived for engine in engines) == 1
        metrics = (await pool.router.router.metrics.exposition()).decode()
        assert (await pool.get("/is_paused")) == (200, {"is_paused": True})
        await pool.call("/resume")
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200, 200, 200]
        assert before[0] == 200
        assert metrics


async def test_the_wait_for_new_weights_is_told(tmp_path: Path) -> None:
    async with three(tmp_path) as (pool, _):
        await pool.call("/pause")
        sending = asyncio.create_task(
            pool.client.post(
                f"{pool.router.url}/v1/chat/completions",
                json={"model": "m", "messages": [{"role": "user", "content": "hi"}]},
                headers={"X-Rollout-Class": "rlvr"},
            )
        )
        await until(lambda: pool.router.router.pause.waiting == 1)
        await asyncio.sleep(0.01)  # what is told is rounded to milliseconds
        await pool.call("/resume")
        answer = await sending
        assert answer.status == 200
        assert float(answer.headers["X-RolloutPool-Queue-Seconds"]) >= 0.01


async def test_the_gate_closes_before_the_engines_are_paused(tmp_path: Path) -> None:
    async with three(tmp_path) as (pool, engines):
        engines[1].go["/pause"] = asyncio.Event()
        pausing = asyncio.create_task(pool.call("/pause"))
        await until(lambda: all("/pause" in engine.paths() for engine in engines))
        assert not pool.router.router.pause.is_open
        engines[1].go["/pause"].set()
        assert (await pausing)[0] == 200


@pytest.mark.parametrize("fault", [0, 500], ids=["broken connection", "error"])
async def test_a_pause_that_fails_on_one_engine_is_undone(tmp_path: Path, fault: int) -> None:
    async with three(tmp_path) as (pool, engines):
        engines[2].faults["/pause"] = fault
        status, body = await pool.call("/pause")
        assert (status, body["error"]["code"]) == (fault or 502, "engine_call_failed")
        assert [item["ok"] for item in body["results"]] == [True, True, False]
        assert [item["engine"] for item in body["undone"]] == ["e-0", "e-1"]
        assert [engine.paused for engine in engines] == [False, False, False]
        assert (await pool.generate())[0] == 200
        # A pause that was there before goes on.
        del engines[2].faults["/pause"]
        await pool.call("/pause")
        engines[2].faults["/pause"] = 500
        assert (await pool.call("/pause"))[0] == 500
        assert [engine.paused for engine in engines] == [True, True, True]
        assert not pool.router.router.pause.is_open


async def test_the_pool_stays_paused_while_an_engine_does_not_resume(tmp_path: Path) -> None:
    async with three(tmp_path) as (pool, engines):
        await pool.call("/pause")
        engines[0].faults["/resume"] = 500
        assert (await pool.call("/resume"))[0] == 500
        assert not pool.router.router.pause.is_open
        engines[0].faults.clear()
        assert (await pool.call("/resume"))[0] == 200
        assert pool.router.router.pause.is_open


@pytest.mark.parametrize("phase", PHASES)
async def test_an_engine_on_which_an_update_failed_gets_no_requests(tmp_path: Path, phase: str) -> None:
    async with three(tmp_path) as (pool, engines):
        engines[1].faults[phase] = 0
        statuses = await update(pool, "1")
        assert (
            statuses
            == {
                "/start_weight_update": [502, 500, 500],  # without a start the engine refuses the rest
                "/update_weights": [200, 502, 200],
                "/finish_weight_update": [200, 200, 502],
            }[phase]
        )
        assert all(engine.paths().count("/update_weights") == 1 for engine in engines)  # never sent twice
        assert list(pool.sync.stale()) == ["e-1"]
        for _ in range(20):
            assert (await pool.generate())[0] == 200
        assert (served(engines)[1], sum(served(engines))) == (0, 20)
        engines[1].faults.clear()
        assert await update(pool, "2") == [200, 200, 200]
        assert pool.sync.stale() == {}


async def test_calls_out_of_order_do_no_harm(tmp_path: Path) -> None:
    """As against one vLLM server: 500, and its answer word for word."""
    async with three(tmp_path) as (pool, _):
        for path in ("/update_weights", "/finish_weight_update"):
            assert await pool.call(path, {"update_info": {}}) == (500, {"error": f"{path} fails"})
        assert pool.sync.stale() == {}
        assert (await pool.generate())[0] == 200


async def test_a_restarted_engine_gets_no_requests_until_it_has_the_weights(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        steady = await stack.enter_async_context(FakeTrainable().running())
        fragile = FakeTrainable()
        first_life = fragile.running()
        await first_life.__aenter__()
        urls = {"e-0": steady.url, "e-1": fragile.url}
        pool = await stack.enter_async_context(running_pool(tmp_path, urls))
        await update(pool, "5")
        await pool.generate("on-1")
        await first_life.__aexit__(None, None, None)
        await until(lambda: "e-1" in pool.sync.stale())
        fragile.version, fragile.generations = "default", 0
        await stack.enter_async_context(fragile.running())
        await until(lambda: pool.sync.state.engines["e-1"].version == "default")
        assert pool.sync.stale() == {"e-1": MISSED}
        for number in range(10):
            assert (await pool.generate(f"s{number}"))[0] == 200
        assert (await pool.generate("on-1"))[1]["model"] == "5"
        assert fragile.generations == 0
        await pool.client.post(f"{fragile.url}/update_weight_version", json={"new_version": "5"})
        await until(lambda: pool.sync.stale() == {})


async def test_an_update_is_not_sent_to_a_group_that_lost_an_engine(tmp_path: Path) -> None:
    async with three(tmp_path) as (pool, engines):
        assert (await pool.call("/init_weight_transfer_engine", INIT))[0] == 200
        urls = {"e-0": engines[0].url, "e-2": engines[2].url}
        pool.router.write(pool_object(urls, caps=CAPS, revision=2))
        await until(lambda: len(pool.router.router.gate.controller.fleet.engines) == 2)
        status, body = await pool.call("/update_weights", {"update_info": {}})
        assert status == 409
        assert body["error"]["code"] == "weight_group_broken"
        assert "e-1 is not there" in body["error"]["message"]
        assert all("/update_weights" not in engine.paths() for engine in engines)


async def test_an_engine_that_joins_a_group_later_is_stale_until_a_new_one(tmp_path: Path) -> None:
    async with three(tmp_path) as (pool, engines), FakeTrainable().running() as late:
        assert (await pool.call("/init_weight_transfer_engine", INIT))[0] == 200
        urls = {f"e-{number}": engine.url for number, engine in enumerate([*engines, late])}
        pool.router.write(pool_object(urls, caps=CAPS, revision=2))
        await until(lambda: "e-3" in pool.sync.stale())
        assert await update(pool, "1") == [200, 200, 200]
        assert "/update_weights" not in late.paths()
        async with pool.client.post(pool.url + "/pause") as answer:
            assert answer.headers["X-RolloutPool-Stale-Engines"] == "e-3"
            assert int(answer.headers["X-RolloutPool-Membership-Epoch"]) > pool.sync.state.group.epoch  # type: ignore[union-attr]
        bigger = {"init_info": {**INIT["init_info"], "world_size": 8}}
        assert (await pool.call("/init_weight_transfer_engine", INIT))[0] == 400  # no room for the fourth
        assert (await pool.call("/init_weight_transfer_engine", bigger))[0] == 200
        assert await update(pool, "2") == [200, 200, 200]
        assert pool.sync.stale() == {}


async def test_a_trainer_that_leaves_half_way_leaves_no_engine_behind(tmp_path: Path) -> None:
    """Its call goes on, and the one behind it is not sent at all."""
    async with three(tmp_path) as (pool, engines):
        for engine in engines:
            engine.go["/update_weights"] = asyncio.Event()
        await pool.call("/start_weight_update")
        sent = asyncio.create_task(pool.call("/update_weights", {"update_info": {}}))
        await until(lambda: all("/update_weights" in engine.paths() for engine in engines))
        behind = asyncio.create_task(pool.call("/finish_weight_update"))
        pausing = asyncio.create_task(pool.call("/pause"))
        await until(lambda: not pool.router.router.pause.is_open)
        for task in (sent, behind, pausing):
            task.cancel()
        await until(lambda: pool.router.router.pause.is_open)
        for engine in engines:
            engine.go["/update_weights"].set()
        await until(lambda: pool.sync.calls["/update_weights", True] == 1)
        assert all(engine.paths() == ["/start_weight_update", "/update_weights"] for engine in engines)


async def test_a_dead_trainer_does_not_hold_the_pool_for_ever(tmp_path: Path) -> None:
    async with three(tmp_path, limit=0.2) as (pool, engines):
        await update(pool, "1")
        await pool.call("/pause")
        waiting = asyncio.create_task(pool.generate())
        assert (await waiting)[0] == 200
        assert [engine.paused for engine in engines] == [False] * 3
        assert pool.sync.pauses_given_up == 1
        assert pool.sync.stale() == {}
        # Half-way through an update nobody knows what the weights are: no request goes there.
        await pool.call("/pause")
        await pool.call("/start_weight_update")
        await until(lambda: pool.sync.pauses_given_up == 2)
        assert pool.sync.stale() == {f"e-{number}": UNFINISHED for number in range(3)}
        assert await update(pool, "2") == [200, 200, 200]
        assert (await pool.generate())[0] == 200


async def test_a_router_that_starts_during_a_pause_finds_it(tmp_path: Path) -> None:
    async with three(tmp_path, settled=False, paused=True, version="4") as (pool, _):
        await until(lambda: pool.sync.state.wanted == "4")
        assert not pool.router.router.pause.is_open
        assert pool.sync.describe()["pausedBy"] == "found"
        waiting = asyncio.create_task(pool.generate())
        await until(lambda: pool.router.router.pause.waiting == 1)
        await pool.call("/resume")
        assert (await waiting)[0] == 200


async def test_sleep_holds_requests_until_all_is_awake(tmp_path: Path) -> None:
    async with three(tmp_path) as (pool, engines):
        assert (await pool.call("/sleep", level="1"))[0] == 200
        assert not pool.router.router.pause.is_open
        assert (await pool.get("/is_sleeping")) == (200, {"is_sleeping": True})
        assert (await pool.call("/wake_up"))[0] == 200
        assert pool.router.router.pause.is_open
        assert [engine.paths() for engine in engines] == [["/sleep", "/wake_up"]] * 3


@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param(None, id="none"),
        pytest.param("Bearer wrong", id="wrong"),
        pytest.param(f"Bearer {TOKEN}x", id="longer"),
        pytest.param("Bearer ", id="empty"),
        pytest.param(f"Token {TOKEN}", id="another scheme"),
        pytest.param("Basic !!!", id="no base64"),
        pytest.param("Bearer \u00e9", id="not ASCII"),
    ],
)
async def test_nobody_gets_in_without_the_token(tmp_path: Path, authorization: str | None) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    async with three(tmp_path) as (pool, engines), aiohttp.ClientSession(headers=headers) as stranger:
        for method, path in (("POST", "/pause"), ("GET", "/weights"), ("POST", "/v1/chat/completions")):
            async with stranger.request(method, pool.url + path) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
                assert (await answer.json())["error"]["code"] == "unauthorized"
        async with stranger.get(pool.url + "/health") as answer:
            assert answer.status == 200
        assert all(engine.calls == [] for engine in engines)


async def test_the_token_may_be_a_password_and_may_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with three(tmp_path) as (pool, _), aiohttp.ClientSession() as client:

        async def status(token: str) -> int:
            url = pool.url.replace("http://", f"http://rl:{quote(token)}@")
            async with client.get(url + "/weights") as answer:
                return answer.status

        assert await status(TOKEN) == 200
        (tmp_path / "token").write_text("another one")
        assert [await status(TOKEN), await status("another one")] == [401, 200]
        (tmp_path / "token").write_text("")
        assert await status("") == 401
        (tmp_path / "token").unlink()
        assert [await status(""), await status("another one")] == [401, 401]
        (tmp_path / "token").write_text(TOKEN)
        assert await status(TOKEN) == 200
    assert TOKEN not in caplog.text
    assert "another one" not in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        pytest.param("GET", "/pause", None, (405, "method_not_allowed"), id="wrong method"),
        pytest.param("POST", "/init_weight_transfer_engine", [], (400, "invalid_call"), id="no object"),
        pytest.param(
            "POST", "/update_weights", {"update_info": [{}]}, (400, "invalid_call"), id="a list by worker"
        ),
        pytest.param("POST", "/no_such_call", {}, (404, "not_found"), id="unknown"),
        pytest.param("GET", CHAT, None, (405, "method_not_allowed"), id="data"),
        pytest.param("POST", CHAT, {"model": "m"}, (400, "class_missing"), id="data without a class"),
    ],
)
async def test_bad_calls_reach_no_engine_and_their_errors_have_one_shape(
    tmp_path: Path, method: str, path: str, body: Any, expected: tuple[int, str]
) -> None:
    async with three(tmp_path) as (pool, engines):
        status, answer = await pool.call(path, body, method=method)
        assert (status, answer["error"]["code"]) == expected
        assert answer["error"].keys() == {"message", "type", "param", "code"}
        assert answer["error"]["type"] == "invalid_request_error"
        assert all(engine.calls == [] for engine in engines)
        assert all(engine.arrived == 0 for engine in engines)


async def test_lora_adapters_and_other_calls_reach_all_engines(tmp_path: Path) -> None:
    async with three(tmp_path) as (pool, engines):
        lora = {"lora_name": "step-3", "lora_path": "/adapters/3"}
        assert (await pool.call("/v1/load_lora_adapter", lora))[0] == 200
        assert (await pool.call("/collective_rpc", {"method": "f"}))[0] == 200
        assert (await pool.call("/abort_requests", {}))[0] == 200
        expected = [
            ("/v1/load_lora_adapter", lora),
            ("/collective_rpc", {"method": "f"}),
            ("/abort_requests", {}),
        ]
        assert [engine.calls for engine in engines] == [expected] * 3


async def test_health_waits_for_every_engine(tmp_path: Path) -> None:
    async with (
        FakeTrainable().running() as engine,
        running_pool(tmp_path, {"e-0": engine.url, "e-1": "http://127.0.0.1:9"}) as pool,
    ):
        await until(lambda: pool.sync.missing() == ["e-1"])
        async with pool.client.get(pool.url + "/health") as answer:
            error = (await answer.json())["error"]
            assert (answer.status, answer.headers["x-should-retry"]) == (503, "true")
        assert (error["type"], error["code"]) == ("overloaded_error", "not_ready")
        assert "e-1" in error["message"]
        # Those that are there can be paused all the same.
        assert (await pool.call("/pause"))[0] == 200
        await pool.call("/resume")


async def test_prefill_engines_take_part(tmp_path: Path) -> None:
    async with FakeTrainable().running() as prefill, FakeTrainable().running() as decode:
        urls = {"pool-prefill-tp1-0": prefill.url, "pool-decode-tp1-0": decode.url}
        roles = {"pool-prefill-tp1-0": "prefill", "pool-decode-tp1-0": "decode"}
        async with running_pool(tmp_path, urls, roles=roles) as pool:
            assert await update(pool, "1") == [200, 200, 200]
            assert (prefill.version, decode.version) == ("1", "1")


async def test_streams_are_relayed_as_they_come(tmp_path: Path) -> None:
    """The weight listener passes data on without a token, whole, and with its status."""
    async with three(tmp_path) as (pool, _):
        big = {"model": "m", "messages": [{"role": "user", "content": "x" * 3_000_000}]}
        headers = {"X-Rollout-Class": "rlvr", "Content-Type": "application/json"}
        async with pool.client.post(
            pool.url + "/v1/chat/completions", data=io.BytesIO(json.dumps(big).encode()), headers=headers
        ) as answer:
            assert answer.status == 200
            assert "X-RolloutPool-Engine" in answer.headers
            assert json.loads(await answer.read())["choices"]
        async with pool.client.get(pool.url + "/metrics") as answer:
            assert answer.status == 200


async def test_bodies_of_control_calls_are_bounded(tmp_path: Path) -> None:
    async with three(tmp_path) as (pool, engines):
        await pool.call("/start_weight_update")

        async def post(size: int) -> int:
            body = io.BytesIO(json.dumps({"update_info": {"ipc": "x" * size}}).encode())
            async with pool.client.post(pool.url + "/update_weights", data=body) as answer:
                return answer.status

        assert await post(3_000_000) == 200
        assert [len(engine.calls[-1][1]["update_info"]["ipc"]) for engine in engines] == [3_000_000] * 3
        assert await post(MAX_BODY_BYTES) == 413
        assert [len(engine.calls) for engine in engines] == [2] * 3
