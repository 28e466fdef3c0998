"""The router's data plane over real sockets: bytes, headers, sessions, errors, endpoints."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_router import bodies
from rolloutpool_router.bodies import WINDOW_BYTES
from rolloutpool_router.testing import FakeEngine, pool_object, running_router, until, write_pool

CAPS = {"rlvr": 4, "rlhf": 4, "agentic": 4}
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RLVR = {"X-Rollout-Class": "rlvr"}


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session


async def test_an_answer_passes_through_byte_for_byte(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    chunks = [
        b'data: {"a":1}\r\n\r\n',
        b": comment\n\n",
        b"data: \xff\xfe half a",
        b" character\n\n",
        b"data: [DONE]\n\n",
    ]

    async def stream(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        headers = {
            "Content-Type": "text/event-stream; charset=utf-8",
            "X-Engine": "yes",
            "Keep-Alive": "timeout=5",
        }
        response = web.StreamResponse(status=207, headers=headers)
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0)
        return response

    async with (
        FakeEngine(answer=stream).running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
        client.post(router.url + CHAT, json=BODY, headers=RLVR) as answer,
    ):
        assert await answer.read() == b"".join(chunks)
        assert answer.status == 207
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["X-Engine"] == "yes"
        assert "Keep-Alive" not in answer.headers
        assert answer.headers["X-RolloutPool-Engine"] == "e0"
        assert float(answer.headers["X-RolloutPool-Queue-Seconds"]) >= 0


async def test_chunks_are_passed_on_as_they_come(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    second = asyncio.Event()

    async def stream(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await second.wait()
        await response.write(b"second")
        return response

    async with (
        FakeEngine(answer=stream).running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
        client.post(router.url + CHAT, json=BODY, headers=RLVR) as answer,
    ):
        assert await answer.content.readany() == b"first"
        second.set()
        assert await answer.content.readany() == b"second"


async def test_a_compressed_answer_stays_compressed(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    body = gzip.compress(b'{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}')

    async def compressed(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "gzip"
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    async with (
        FakeEngine(answer=compressed).running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
        client.post(router.url + CHAT, json=BODY, headers=RLVR | {"Accept-Encoding": "gzip"}) as answer,
    ):
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Content-Length"] == str(len(body))
        assert await answer.read() == body


async def test_a_request_passes_through_byte_for_byte(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    raw = b'{ "model":"m",\n "prompt": [1,2 ,3], "vllm_xargs": {"x": 1.0}, "seed":12345678901234567890 }'
    headers = RLVR | {
        "Content-Type": "application/json",
        "Authorization": "Bearer key",
        "X-Session-ID": "séance-1".encode().decode("latin-1"),
        "X-Request-Id": "req-1",
        "X-Hop": "no",
        "Connection": "X-Hop",
        "TE": "trailers",
    }

    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        async with client.post(f"{router.url}/v1/completions?debug=1", data=raw, headers=headers) as answer:
            assert answer.status == 200
        async with client.post(router.url + CHAT, json=BODY, headers=RLVR) as answer:
            assert answer.status == 200
        plain, unnamed = engine.seen

    assert plain.raw == raw
    assert plain.path == "/v1/completions?debug=1"
    assert plain.headers["Authorization"] == "Bearer key"
    assert plain.headers["X-Request-Id"] == "req-1"
    assert plain.headers["Host"] in engine.url
    assert {"X-Hop", "TE"}.isdisjoint(plain.headers)
    assert len(unnamed.headers["X-Request-Id"]) == 32
    assert unnamed.headers["X-Session-ID"].startswith("single-")


async def test_the_session_of_the_body_reaches_the_engine(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
        client.post(router.url + CHAT, json=BODY | {"session_id": "sitzung-ü"}, headers=RLVR) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["X-RolloutPool-Session"] == "sitzung-ü"
        assert engine.seen[0].headers["X-Session-ID"] == "sitzung-ü"


async def test_a_large_body_passes(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    raw = json.dumps(BODY | {"padding": "x" * 20_000_000}).encode()

    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
        client.post(router.url + CHAT, data=io.BytesIO(raw), headers=RLVR) as answer,
    ):
        assert answer.status == 200
        assert engine.seen[0].raw == raw


BAD_INPUTS = [
    pytest.param(b"", RLVR, 400, "invalid_body", "no valid JSON", id="empty"),
    pytest.param(b'{"model": ', RLVR, 400, "invalid_body", "no valid JSON", id="cut-off"),
    pytest.param(b"\xff\xfe", RLVR, 400, "invalid_body", "no valid JSON", id="no-text"),
    pytest.param(b"[1]", RLVR, 400, "invalid_body", "must be a JSON object", id="list"),
    pytest.param(b'{"a":' + b"[" * 100_000, RLVR, 400, "invalid_body", "no valid JSON", id="too-deep"),
    pytest.param(b'{"model": "gpt"}', RLVR, 404, "model_not_found", "it serves: m", id="unknown-model"),
    pytest.param(b"{}", {}, 400, "class_missing", "rlvr, rlhf, agentic", id="no-class"),
    pytest.param(
        b"{}", {"X-Rollout-Class": "sft"}, 400, "class_unknown", "rlvr, rlhf, agentic", id="unknown-class"
    ),
    pytest.param(
        b"no gzip",
        RLVR | {"Content-Encoding": "gzip"},
        415,
        "invalid_body",
        "compressed",
        id="compressed",
    ),
    pytest.param(
        b"{}", RLVR | {"X-Session-ID": "x" * 300}, 400, "session_invalid", "at most 256", id="long-session"
    ),
    pytest.param(
        b"{}",
        CIMultiDict([*RLVR.items(), ("Session-Id", "a"), ("Session-Id", "b")]),
        400,
        "session_invalid",
        "session-id comes more than once",
        id="two-sessions",
    ),
    pytest.param(
        b"{}",
        CIMultiDict([*RLVR.items(), *RLVR.items()]),
        400,
        "class_unknown",
        "x-rollout-class comes more than once",
        id="two-classes",
    ),
]


@pytest.mark.parametrize(("raw", "headers", "status", "code", "message"), BAD_INPUTS)
async def test_bad_input_is_refused_with_what_to_send(
    raw: bytes,
    headers: Mapping[str, str],
    status: int,
    code: str,
    message: str,
    client: aiohttp.ClientSession,
    tmp_path: Path,
) -> None:
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        async with client.post(router.url + CHAT, data=raw, headers=headers) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (status, code)
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert message in error["message"]
        assert engine.seen == []
        assert f'outcome="{code}"}} 1.0' in (await router.router.metrics.exposition()).decode()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        pytest.param("GET", "/nowhere", 404, "not_found", id="unknown-path"),
        pytest.param("GET", CHAT, 405, "method_not_allowed", id="wrong-method"),
        pytest.param("POST", "/metrics", 405, "method_not_allowed", id="wrong-method-of-a-page"),
    ],
)
async def test_wrong_paths_have_the_same_kind_of_error(
    method: str, path: str, status: int, code: str, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        running_router(tmp_path / "pool.json", pool_object({})) as router,
        client.request(method, router.url + path) as answer,
    ):
        assert answer.status == status
        error = (await answer.json())["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["code"] == code


async def test_turns_of_a_session_stick_to_its_engine_and_keep_its_class(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async def turn(url: str, session: str, **headers: str) -> tuple[int, str]:
        named = {"X-Session-ID": session} | headers
        async with client.post(url + CHAT, json=BODY, headers=named) as answer:
            return answer.status, answer.headers.get("X-RolloutPool-Engine", "")

    async with (
        FakeEngine().running() as e0,
        FakeEngine().running() as e1,
        running_router(
            tmp_path / "pool.json", pool_object({"e0": e0.url, "e1": e1.url}, caps=CAPS)
        ) as router,
    ):
        homes = {f"agent-{i}": (await turn(router.url, f"agent-{i}"))[1] for i in range(8)}
        assert set(homes.values()) == {"e0", "e1"}
        for _ in range(3):
            assert {name: (await turn(router.url, name))[1] for name in homes} == homes
        assert (await turn(router.url, "agent-0", **RLVR))[0] == 400
        assert len(e0.seen) + len(e1.seen) == 32


async def test_a_body_beyond_the_limit_is_refused(
    client: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_BODY_BYTES", WINDOW_BYTES + 3_000_000)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(WINDOW_BYTES // 1_000_000 + 8):
            yield b" " * 1_000_000

    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
        client.post(router.url + CHAT, data=endless(), headers=RLVR) as answer,
    ):
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (413, "too_large")
        assert "send less" in error["message"]


async def test_a_finished_session_gives_its_permit_back(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        finish = router.url + "/finish_session"
        table = router.router.gate.controller.table
        for name in ("agent-1", "agent-2", "agent-3", "agent-4"):
            async with client.post(router.url + CHAT, json=BODY, headers={"X-Session-ID": name}) as answer:
                assert answer.status == 200
        assert table.by_class["agentic"] == 4

        answers = []
        for kwargs in (
            {"params": {"session_id": "agent-1"}},
            {"json": {"session_id": "agent-2"}},
            {"headers": {"X-Session-ID": "agent-3"}},
            {"json": {"metadata": {"session_id": "agent-4"}}},
            {"params": {"session_id": "agent-1"}},
            {"data": b"no json"},
            {"headers": CIMultiDict([("X-Session-ID", "agent-1"), ("X-Session-ID", "agent-2")])},
            {},
        ):
            async with client.post(finish, **kwargs) as answer:
                assert answer.status == 200
                answers.append((await answer.json())["finished"])

        assert answers == [True, True, True, True, False, False, False, False]
        assert len(table) == 0


async def test_the_other_endpoints(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    async def get(url: str) -> tuple[int, str]:
        async with client.get(url) as answer:
            return answer.status, await answer.text()

    async with (
        FakeEngine().running() as engine,
        running_router(tmp_path / "pool.json", "not an object") as router,
    ):
        assert (await get(router.url + "/health"))[0] == 200
        assert (await get(router.url + "/readyz"))[0] == 503
        assert (await get(router.url + "/v1/models"))[0] == 503
        async with client.post(router.url + CHAT, json=BODY, headers=RLVR) as answer:
            assert (answer.status, answer.headers["x-should-retry"]) == (503, "true")

        router.write(pool_object({}))
        await until(lambda: router.router.gate.controller.view is not None)
        assert (await get(router.url + "/readyz"))[0] == 200
        assert json.loads((await get(router.url + "/v1/models"))[1])["data"][0]["id"] == "m"

        router.write(pool_object({"e0": engine.url}, caps=CAPS))
        await until(lambda: router.router.gate.controller.view and router.router.gate.controller.view.engines)
        assert "max_model_len" in (await get(router.url + "/v1/models"))[1]
        async with client.post(router.url + CHAT, json=BODY, headers={"X-Session-ID": "agent-1"}) as answer:
            assert answer.status == 200

        metrics = (await get(router.url + "/metrics"))[1]
        assert 'rolloutpool_router_requests_total{class="agentic",outcome="served"} 1.0' in metrics
        assert 'rolloutpool_router_active_sessions{class="agentic"} 1.0' in metrics
        assert 'rolloutpool_router_cap_sessions{class="rlvr"} 4.0' in metrics
        assert 'rolloutpool_router_engine_up{engine="e0"} 1.0' in metrics

        snapshot = AdmissionSnapshot.model_validate_json((await get(router.url + "/admission/snapshot"))[1])
        assert snapshot.router == "router-0"
        assert (snapshot.applied_revision, snapshot.ignored_statuses) == (1, 1)
        assert [(c.name, c.active, c.blocks) for c in snapshot.engines[0].classes] == [("agentic", 1, 1)]


async def test_caps_come_from_the_engine_itself_while_no_status_says(tmp_path: Path) -> None:
    async with (
        FakeEngine(blocks=10_000).running() as engine,
        running_router(tmp_path / "pool.json", pool_object({"e0": engine.url})) as router,
    ):
        fleet = router.router.gate.controller.fleet
        await until(lambda: fleet.engines["e0"].capacity_blocks == 10_000)
        assert sum(fleet.engines["e0"].caps.values()) > 30


async def test_a_pool_file_may_come_late_and_go(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    async with (
        FakeEngine().running() as engine,
        running_router(path, pool_object({"e0": engine.url}, caps=CAPS)) as router,
    ):
        path.unlink()
        await until(lambda: not path.exists())
        async with client.post(router.url + CHAT, json=BODY, headers=RLVR) as answer:
            assert answer.status == 200
        write_pool(path, pool_object({"e0": engine.url}, caps=CAPS, revision=2))
        await until(
            lambda: router.router.gate.controller.view and router.router.gate.controller.view.revision == 2
        )
