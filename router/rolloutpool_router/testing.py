"""For tests: a scriptable engine, an object to start from, and a router on a free loopback port."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from rolloutpool_router.app import Router, build_router
from rolloutpool_router.server import serving
from rolloutpool_router.watch_file import watch_file

HOST = "127.0.0.1"
FILE_PERIOD_SECONDS = 0.02


@dataclass(frozen=True)
class Seen:
    """A request that reached an engine."""

    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        """Its JSON body."""
        body = json.loads(self.raw)
        assert isinstance(body, dict)
        return body


Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


async def chat_answer(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """What an engine answers by default: ten tokens of prompt, five of output."""
    return web.json_response(
        {
            "id": "chatcmpl-1",
            "model": body.get("model"),
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            "kv_transfer_params": body.get("kv_transfer_params")
            and {"remote_engine_id": "p", "new_field": [1]},
        }
    )


@dataclass
class FakeEngine:
    """An engine that answers as told, and remembers what it saw."""

    answer: Answer = chat_answer
    seen: list[Seen] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers wait for this; set from the start."""
    in_flight: int = 0
    most_in_flight: int = 0
    aborted: int = 0
    """Requests whose connection was closed before their answer ended."""
    blocks: int = 0
    """num_gpu_blocks in /metrics; 0: does not say."""
    url: str = ""
    stop: Callable[[], Awaitable[None]] = field(init=False)
    """Stop serving now; breaks all connections."""

    def __post_init__(self) -> None:
        self.go.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a generation."""
        raw = await request.read()
        self.seen.append(Seen(request.path_qs, request.headers, raw))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.go.wait()
            return await self.answer(request, json.loads(raw))
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.in_flight -= 1

    async def models(self, _: web.Request) -> web.Response:
        """GET /v1/models."""
        return web.json_response({"object": "list", "data": [{"id": "m", "max_model_len": 4096}]})

    async def metrics(self, _: web.Request) -> web.Response:
        """GET /metrics."""
        size = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{self.blocks}"}} 1.0\n'
        return web.Response(text=size if self.blocks else "")

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[FakeEngine]:
        """Serve within the block; its end breaks all connections."""
        app = web.Application(client_max_size=2**30)
        app.add_routes(
            [
                web.post("/{path:.*}", self.handle),
                web.get("/v1/models", self.models),
                web.get("/metrics", self.metrics),
            ]
        )
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, HOST, port).start()
        self.url = f"http://{HOST}:{runner.addresses[0][1]}"
        self.stop = runner.cleanup
        try:
            yield self
        finally:
            await self.stop()


@asynccontextmanager
async def served(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on loopback within the block (0: at any port); its URL."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


POOL: dict[str, Any] = {
    "apiVersion": "rolloutpool.dev/v1alpha1",
    "kind": "RolloutPool",
    "metadata": {"name": "pool", "namespace": "default", "uid": "uid-1", "generation": 1},
    "spec": {
        "model": {"name": "m"},
        "gpus": {"budget": 2},
        "workloads": [
            {"name": "rlvr", "share": 0.5},
            {"name": "rlhf", "share": 0.3},
            {
                "name": "agentic",
                "share": 0.2,
                "priors": {"turns": 5, "toolGapSeconds": 1},
                "match": {"sessionPrefix": "agent-"},
            },
        ],
    },
}
"""An object to start from: three classes, no status."""


def pool_object(
    engines: Mapping[str, str],
    *,
    caps: Mapping[str, int] | None = None,
    revision: int = 1,
    roles: Mapping[str, str] | None = None,
    policy: str = "MISA-T",
    workloads: Sequence[Mapping[str, Any]] | None = None,
    admission: Mapping[str, Any] | None = None,
    blocks: int = 1000,
) -> dict[str, Any]:
    """A RolloutPool with ready engines (URL by name), and the same caps by class on each; None: no caps.

    `admission` are fields of spec.admission; with caps, sessions may fill `blocks` of each engine.
    """
    pool = copy.deepcopy(POOL)
    if workloads is not None:
        pool["spec"]["workloads"] = list(workloads)
    if admission is not None:
        pool["spec"]["admission"] = dict(admission)
    admin = [
        {
            "name": name,
            "role": (roles or {}).get(name, "aggregated"),
            "url": url,
            "ready": True,
            "revision": "r1",
        }
        for name, url in engines.items()
    ]
    pool["status"] = {"endpoints": {"admin": admin}}
    if caps is not None:
        classes = [{"name": name, "cap": cap} for name, cap in caps.items()]
        pool["status"]["admission"] = {
            "revision": revision,
            "policy": policy,
            "computedAt": "2026-01-01T00:00:00Z",
            "engines": [
                {"name": name, "capacityBlocks": blocks, "protectedBlocks": blocks, "classes": classes}
                for name in engines
            ],
        }
    return pool


def write_pool(path: Path, pool: Mapping[str, Any] | str) -> None:
    """Replace a pool file atomically; a string is written as it is."""
    fresh = path.with_suffix(".new")
    fresh.write_text(pool if isinstance(pool, str) else json.dumps(pool))
    os.replace(fresh, path)


@dataclass(frozen=True)
class RunningRouter:
    """A router that serves, and the file that it watches."""

    url: str
    router: Router
    path: Path

    def write(self, pool: Mapping[str, Any] | str) -> None:
        """Replace the object."""
        write_pool(self.path, pool)


@asynccontextmanager
async def running_router(
    path: Path,
    pool: Mapping[str, Any] | str,
    *,
    name: str = "router-0",
    grace_seconds: float = 0.0,
    seed: int = 1,
) -> AsyncIterator[RunningRouter]:
    """Serve the pool within the block, on a free loopback port; ready when it is entered."""
    write_pool(path, pool)
    router = build_router(name, rng=Random(seed))
    watch = partial(watch_file, path, router.feed, period_seconds=FILE_PERIOD_SECONDS)
    async with serving(router, watch, host=HOST, port=0, grace_seconds=grace_seconds) as port:
        await until(lambda: router.gate.controller.view is not None or router.feed.ignored > 0)
        yield RunningRouter(f"http://{HOST}:{port}", router, path)


async def until(condition: Callable[[], object], *, timeout: float = 10.0) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it did not within `timeout` seconds.
    """
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.002)


@dataclass
class FakeKubernetes:
    """The part of an API server that the router needs: list and watch one RolloutPool."""

    pool: dict[str, Any] | None = None
    version: int = 1
    """Grows with every change."""
    lists: int = 0
    watches: int = 0
    unauthorized: int = 0
    tokens: set[str] = field(default_factory=set)
    """Accepted bearer tokens; empty: all."""
    silent: bool = False
    """Watches deliver nothing any more."""
    url: str = ""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, pool: dict[str, Any] | None) -> None:
        """Store another object, or delete it."""
        async with self.changed:
            self.pool = pool
            self.version += 1
            self.changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """GET of the collection, with or without watch."""
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens and sent not in self.tokens:
            self.unauthorized += 1
            status = {
                "kind": "Status",
                "status": "Failure",
                "code": 401,
                "reason": "Unauthorized",
                "message": "no",
            }
            return web.json_response(status, status=401)
        assert request.query["fieldSelector"] == "metadata.name=pool"
        if request.query.get("watch") not in ("true", "1"):
            self.lists += 1
            items = [self._object()] if self.pool is not None else []
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})
        return await self._watch(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        assert int(request.query["timeoutSeconds"]) > 0
        response = web.StreamResponse()
        await response.prepare(request)
        sent = int(request.query["resourceVersion"])
        last = self._object() if self.pool is not None else None
        while True:
            async with self.changed:
                while self.version <= sent or self.silent:
                    await self.changed.wait()
                sent = self.version
            last, kind = (self._object(), "MODIFIED") if self.pool is not None else (last, "DELETED")
            await response.write(json.dumps({"type": kind, "object": last}).encode() + b"\n")

    def _object(self) -> dict[str, Any]:
        pool = copy.deepcopy(self.pool or {})
        pool["metadata"]["resourceVersion"] = str(self.version)
        return pool

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[FakeKubernetes]:
        """Serve within the block; its end breaks all connections."""
        app = web.Application()
        app.add_routes(
            [web.get("/apis/rolloutpool.dev/v1alpha1/namespaces/default/rolloutpools", self.handle)]
        )
        async with served(app, port) as self.url:
            yield self
