"""Prefill/decode through the router: two legs, one request id, fallbacks, and disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rolloutpool_router.core.pd import REQUEST_PREFILL
from rolloutpool_router.testing import FakeEngine, pool_object, running_router, until
from rolloutpool_router.wire.client import Answer, Origin, Unreachable
from rolloutpool_sim.testing import running_server

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello " * 100}],
    "max_tokens": 30,
}
RLVR = {"X-Rollout-Class": "rlvr", "X-Request-Id": "req-7"}
CAPS = {"rlvr": 4, "rlhf": 4, "agentic": 4}
ROLES = {"d": "decode", "p": "prefill", "q": "prefill"}


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def pd_pool(**urls: str) -> dict[str, Any]:
    return pool_object(urls, caps=CAPS, roles=ROLES)


async def post(client: aiohttp.ClientSession, url: str, body: dict[str, Any] = BODY) -> tuple[int, str]:
    async with client.post(url + CHAT, json=body, headers=RLVR) as answer:
        return answer.status, await answer.text()


async def test_a_prompt_is_prefilled_and_its_parameters_are_handed_on(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    body = BODY | {
        "stream": True,
        "stream_options": {"include_usage": True},
        "min_tokens": 3,
        "cache_salt": "s",
    }
    async with (
        FakeEngine().running() as prefill,
        FakeEngine().running() as decode,
        running_router(tmp_path / "pool.json", pd_pool(d=decode.url, p=prefill.url)) as router,
    ):
        assert (await post(client, router.url, body))[0] == 200
        (first,), (second,) = prefill.seen, decode.seen
        metrics = (await router.router.metrics.exposition()).decode()

    kept = {"model": "m", "messages": BODY["messages"], "cache_salt": "s"}
    assert first.body == kept | {"stream": False, "max_tokens": 1, "kv_transfer_params": REQUEST_PREFILL}
    assert second.body == body | {"kv_transfer_params": {"remote_engine_id": "p", "new_field": [1]}}
    assert first.headers["X-Request-Id"] == second.headers["X-Request-Id"] == "req-7"
    assert first.headers["X-Session-ID"] == second.headers["X-Session-ID"]
    assert 'rolloutpool_router_prefills_total{where="remote"} 1.0' in metrics


async def test_emulated_engines_hand_over_their_blocks(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    flags = (
        *("--served-model-name", "m", "--num-gpu-blocks-override", "1024", "--max-model-len", "4096"),
        *("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'),
    )
    async with (
        running_server(*flags, time_scale=20.0) as prefill,
        running_server(*flags, time_scale=20.0) as decode,
        running_router(tmp_path / "pool.json", pd_pool(d=decode.url, p=prefill.url)) as router,
    ):
        answers = await asyncio.gather(*(post(client, router.url) for _ in range(12)))
        assert {status for status, _ in answers} == {200}
        metrics = (await router.router.metrics.exposition()).decode()
        assert 'rolloutpool_router_prefills_total{where="remote"} 12.0' in metrics
        async with client.get(f"{decode.url}/metrics") as answer:
            decoded = await answer.text()
        external = [
            line for line in decoded.splitlines() if line.startswith("vllm:external_prefix_cache_hits_total")
        ]
        assert float(external[0].rpartition(" ")[2]) > 0


async def test_several_samples_are_prefilled_where_they_are_decoded(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """vLLM hands over the blocks of one sequence; GRPO trainers ask for a group with n."""
    flags = (
        *("--served-model-name", "m", "--num-gpu-blocks-override", "1024", "--max-model-len", "4096"),
        *("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'),
    )
    async with (
        running_server(*flags, time_scale=20.0) as prefill,
        running_server(*flags, time_scale=20.0) as decode,
        running_router(tmp_path / "pool.json", pd_pool(d=decode.url, p=prefill.url)) as router,
    ):
        group = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "n": 3, "max_tokens": 4}
        prompts = {"model": "m", "prompt": ["a", "b"], "max_tokens": 4}
        for path, body, choices in (("chat/completions", group, 3), ("completions", prompts, 2)):
            url, headers = f"{router.url}/v1/{path}", {"X-Rollout-Class": "rlvr"}
            async with client.post(url, json=body, headers=headers) as answer:
                assert answer.status == 200
                assert len((await answer.json())["choices"]) == choices


async def unwell(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "boom"}}, status=500)


async def invalid(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "max_tokens is too large"}}, status=400)


async def hang_up(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def no_params(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"choices": []})


async def no_json(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(text="<html>")


@pytest.mark.parametrize("answer", [unwell, hang_up, no_params, no_json])
async def test_where_prefill_fails_the_decode_engine_does_it(
    answer: Any, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine(answer=answer).running() as prefill,
        FakeEngine().running() as decode,
        running_router(tmp_path / "pool.json", pd_pool(d=decode.url, p=prefill.url)) as router,
    ):
        assert (await post(client, router.url))[0] == 200
        assert len(prefill.seen) == 1
        assert decode.seen[0].body == BODY
        assert 'where="fallback"} 1.0' in (await router.router.metrics.exposition()).decode()


async def test_another_prefill_engine_takes_over_for_one_that_is_down(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as prefill,
        FakeEngine().running() as decode,
        running_router(
            tmp_path / "pool.json", pd_pool(d=decode.url, p="http://127.0.0.1:1", q=prefill.url)
        ) as router,
    ):
        for _ in range(6):
            assert (await post(client, router.url))[0] == 200
        assert len(prefill.seen) == 6
        assert router.router.gate.controller.fleet.prefill_tokens == {}


async def test_of_many_prefill_engines_that_are_down_two_are_tried(
    client: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: each may take its time to refuse."""
    tried: list[Origin] = []
    async with FakeEngine().running() as prefill, FakeEngine().running() as decode:
        # They answer probes, so nobody knows before a request comes.
        urls = {f"p{number}": prefill.url for number in range(6)}
        roles = {"d": "decode"} | dict.fromkeys(urls, "prefill")
        pool = pool_object(urls | {"d": decode.url}, caps=CAPS, roles=roles)
        async with running_router(tmp_path / "pool.json", pool) as router:
            upstream = router.router.upstream
            request = upstream.request

            async def refused(origin: Origin, method: str, *args: Any, **more: Any) -> Answer:
                if origin == Origin.of(prefill.url) and method == "POST":
                    tried.append(origin)
                    raise Unreachable("no connection")
                return await request(origin, method, *args, **more)

            monkeypatch.setattr(upstream, "request", refused)
            assert (await post(client, router.url))[0] == 200
            assert len(tried) == 2
            assert decode.seen[0].body == BODY
            assert router.router.metrics.prefills.labels("fallback").value == 1


async def test_what_the_prefill_engine_refuses_is_refused(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine(answer=invalid).running() as prefill,
        FakeEngine().running() as decode,
        running_router(tmp_path / "pool.json", pd_pool(d=decode.url, p=prefill.url)) as router,
    ):
        status, text = await post(client, router.url)
        assert (status, decode.seen) == (400, [])
        assert "max_tokens is too large" in text


async def test_engines_of_different_revisions_are_no_pair(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as prefill,
        FakeEngine().running() as decode,
    ):
        pool = pd_pool(d=decode.url, p=prefill.url)
        pool["status"]["endpoints"]["admin"][1]["revision"] = "r0"
        async with running_router(tmp_path / "pool.json", pool) as router:
            assert (await post(client, router.url))[0] == 200
            assert (len(prefill.seen), len(decode.seen)) == (0, 1)


@pytest.mark.parametrize("leg", ["p", "d"])
async def test_a_disconnect_cuts_the_leg_that_runs(
    leg: str, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as prefill,
        FakeEngine().running() as decode,
        running_router(tmp_path / "pool.json", pd_pool(d=decode.url, p=prefill.url)) as router,
    ):
        busy = prefill if leg == "p" else decode
        busy.go.clear()
        task = asyncio.create_task(post(client, router.url))
        await until(lambda: busy.in_flight == 1)
        task.cancel()
        await until(lambda: busy.aborted == 1)
        await until(lambda: len(router.router.gate.controller.table) == 0)
        assert len(decode.seen) == (0 if leg == "p" else 1)
        assert router.router.gate.controller.fleet.prefill_tokens == {}


async def test_kv_from_before_a_pause_is_not_handed_over(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as prefill,
        FakeEngine().running() as decode,
        running_router(tmp_path / "pool.json", pd_pool(d=decode.url, p=prefill.url)) as router,
    ):
        prefill.go.clear()
        running = asyncio.create_task(post(client, router.url))
        await until(lambda: prefill.in_flight == 1)
        router.router.pause.close()
        prefill.go.set()
        await until(lambda: router.router.pause.waiting == 1)
        assert decode.seen == []
        router.router.pause.open()

        assert (await running)[0] == 200
        (only,) = decode.seen
        assert "kv_transfer_params" not in only.body
