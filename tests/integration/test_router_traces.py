"""Traces as a collector gets them, from a router in a process of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rolloutpool_router.testing import FakeEngine, pool_object, served, until, write_pool
from rolloutpool_testkit.processes import router_process

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "the secret prompt"}]}
HEADERS = {"X-Rollout-Class": "rlvr", "X-Session-ID": "s1", "X-Request-Id": "r1"}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Collector:
    """An OTLP/HTTP receiver."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    async def take(self, request: web.Request) -> web.Response:
        self.headers = dict(request.headers)
        batch = ExportTraceServiceRequest.FromString(await request.read())
        for resource in batch.resource_spans:
            self.resource = values(resource.resource)
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return web.Response(content_type="application/x-protobuf")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Collector]:
        app = web.Application()
        app.add_routes([web.post("/v1/traces", self.take)])
        async with served(app) as self.url:
            yield self

    def named(self, name: str) -> Span:
        """The one span of this name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found


def values(holder: Any) -> dict[str, Any]:
    """The attributes of a span or resource."""
    return {
        entry.key: getattr(entry.value, entry.value.WhichOneof("value") or "") for entry in holder.attributes
    }


def environment(url: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=rl",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }


async def generate(url: str, headers: Mapping[str, str] = HEADERS, path: str = CHAT) -> int:
    async with (
        aiohttp.ClientSession() as client,
        client.post(url + path, json=BODY, headers=headers) as answer,
    ):
        await answer.read()
        return answer.status


async def test_a_request_is_one_trace_from_the_caller_to_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    async with Collector().running() as collector, FakeEngine().running() as engine:
        write_pool(path, pool_object({"e0": engine.url}, caps={"rlvr": 4}))
        async with router_process(path, environment=environment(collector.url)) as router:
            traceparent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            assert await generate(router.url, HEADERS | traceparent) == 200
            await until(lambda: len(collector.spans) >= 3)
    root, queue, leg = (collector.named(name) for name in ("generation", "queue", "engine"))
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert root.parent_span_id.hex() == PARENT
    assert {queue.parent_span_id, leg.parent_span_id} == {root.span_id}
    assert engine.seen[0].headers["traceparent"] == f"00-{TRACE}-{leg.span_id.hex()}-01"
    about = values(root)
    assert about.pop("rolloutpool.wait_seconds") >= 0
    assert about == {
        "http.request.method": "POST",
        "url.path": CHAT,
        "rolloutpool.class": "rlvr",
        "rolloutpool.session": "s1",
        "rolloutpool.request_id": "r1",
        "rolloutpool.decision": "entered",
        "rolloutpool.reason": "room",
        "rolloutpool.engine": "e0",
        "rolloutpool.outcome": "served",
        "rolloutpool.cached_tokens": 0,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
    }
    assert values(leg) == {"rolloutpool.engine": "e0"}
    assert root.start_time_unix_nano <= queue.start_time_unix_nano <= leg.start_time_unix_nano
    assert leg.end_time_unix_nano <= root.end_time_unix_nano
    assert collector.resource["service.name"] == "rolloutpool-router"
    assert collector.resource["service.instance.id"] == "r7"
    assert collector.resource["deployment.environment.name"] == "test"
    assert collector.headers["x-tenant"] == "rl"
    assert "secret prompt" not in str(collector.spans)


async def test_a_failed_leg_and_what_became_of_its_request_are_told(tmp_path: Path) -> None:
    async def reset(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    path = tmp_path / "pool.json"
    async with Collector().running() as collector, FakeEngine(answer=reset).running() as engine:
        write_pool(path, pool_object({"e0": engine.url}, caps={"rlvr": 4}))
        async with router_process(path, environment=environment(collector.url)) as router:
            assert await generate(router.url) == 502
            await until(lambda: len(collector.spans) >= 3)
    assert collector.named("engine").status.message == "lost"
    root = collector.named("generation")
    assert (root.status.code, root.status.message) == (2, "engine_lost")
    assert not root.parent_span_id


async def test_neither_query_nor_session_of_the_path_is_told(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    async with Collector().running() as collector, FakeEngine().running() as engine:
        write_pool(path, pool_object({"e0": engine.url}, caps={"rlvr": 4}))
        async with router_process(path, environment=environment(collector.url)) as router:
            asked = f"/sessions/s2{CHAT}?api_key=hidden-key"
            assert await generate(router.url, {"X-Rollout-Class": "rlvr"}, asked) == 200
            await until(lambda: len(collector.spans) >= 3)
    assert engine.seen[0].path == f"{CHAT}?api_key=hidden-key"
    assert values(collector.named("generation"))["url.path"] == CHAT
    assert "hidden-key" not in str(collector.spans)


async def test_the_last_spans_leave_before_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    async with Collector().running() as collector, FakeEngine().running() as engine:
        write_pool(path, pool_object({"e0": engine.url}, caps={"rlvr": 4}))
        late = environment(collector.url) | {"OTEL_BSP_SCHEDULE_DELAY": "60000"}
        async with router_process(path, environment=late) as router:
            assert await generate(router.url) == 200
            assert collector.spans == []
            assert await router.stop() == 0
    assert {span.name for span in collector.spans} == {"generation", "queue", "engine"}


@pytest.mark.parametrize("away", ["http://127.0.0.1:9", "no url"])
async def test_without_its_collector_the_router_serves_and_ends(tmp_path: Path, away: str) -> None:
    path = tmp_path / "pool.json"
    async with FakeEngine().running() as engine:
        write_pool(path, pool_object({"e0": engine.url}, caps={"rlvr": 64}))
        async with router_process(path, environment=environment(away)) as router:
            answers = await asyncio.gather(
                *(generate(router.url, HEADERS | {"X-Session-ID": f"s{n}"}) for n in range(50))
            )
            assert answers == [200] * 50
            assert await router.stop() == 0
            assert router.log.count("\n") < 60


async def test_a_collector_that_never_answers_holds_nobody_up(tmp_path: Path) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    path = tmp_path / "pool.json"
    server = await asyncio.start_server(never, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, FakeEngine().running() as engine:
        write_pool(path, pool_object({"e0": engine.url}, caps={"rlvr": 4}))
        async with router_process(path, environment=environment(url)) as router:
            assert [await generate(router.url) for _ in range(20)] == [200] * 20
            assert await router.stop() == 0


async def test_without_an_endpoint_the_callers_trace_goes_through_untouched(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    traceparent = f"00-{TRACE}-{PARENT}-01"
    async with FakeEngine().running() as engine:
        write_pool(path, pool_object({"e0": engine.url}, caps={"rlvr": 4}))
        async with router_process(path, environment={}) as router:
            assert await generate(router.url, HEADERS | {"traceparent": traceparent}) == 200
    assert engine.seen[0].headers["traceparent"] == traceparent


async def test_a_log_in_json_tells_of_requests_but_no_secrets(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    secret = {"Authorization": "Bearer sk-very-secret-key", "X-Api-Key": "another-secret"}
    async with FakeEngine().running() as engine:
        write_pool(path, pool_object({"e0": engine.url}, caps={"rlvr": 4}))
        log = {"ROLLOUTPOOL_LOG_FORMAT": "json"}
        async with router_process(path, "--log-level", "debug", environment=log) as router:
            assert await generate(router.url, HEADERS | secret) == 200
            assert await router.stop() == 0
    lines = [json.loads(line) for line in router.log.splitlines()]
    (access,) = (line for line in lines if line["logger"] == "rolloutpool_router.access")
    assert access.pop("ts")
    assert access.pop("seconds") > 0
    assert access == {
        "level": "debug",
        "logger": "rolloutpool_router.access",
        "message": "request ended",
        "request_id": "r1",
        "session": "s1",
        "class": "rlvr",
        "engine": "e0",
        "outcome": "served",
    }
    for hidden in ("very-secret", "another-secret", "secret prompt"):
        assert hidden not in router.log
