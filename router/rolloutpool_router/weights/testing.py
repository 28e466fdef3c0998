"""For tests: an engine whose weights change and whose calls can fail, and a router in front of some."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from rolloutpool_router.testing import HOST, RunningRouter, pool_object, running_router, served, until
from rolloutpool_router.weights.listener import serving_weights
from rolloutpool_router.weights.sync import WeightSync
from rolloutpool_router.weights.token import TokenFile

TOKEN = "correct-horse"
PERIOD_SECONDS = 0.02
CAPS = {"rlvr": 8, "rlhf": 8, "agentic": 8}


@dataclass
class FakeTrainable:
    """An engine in development mode: pauses, takes weights, and fails where it is told to."""

    world_size: int = 1
    version: str = "default"
    paused: bool = False
    updating: bool = False
    faults: dict[str, int] = field(default_factory=dict)
    """Status by path; 0: the connection breaks."""
    go: dict[str, asyncio.Event] = field(default_factory=dict)
    """What calls wait for before they are answered, by path."""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Control calls: path with query, and JSON body."""
    generations: int = 0
    """Generations answered."""
    arrived: int = 0
    """Generations that reached the engine."""
    asked: Counter[str] = field(default_factory=Counter)
    """Requests that reached the engine, by path."""
    authorizations: list[str] = field(default_factory=list)
    """Every Authorization header that reached the engine."""
    url: str = ""
    port: int = 0

    def paths(self) -> list[str]:
        """Control calls that changed something, without queries."""
        return [path.partition("?")[0] for path, _ in self.calls]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer any request."""
        self.authorizations += request.headers.getall("Authorization", [])
        self.asked[request.path] += 1
        raw = await request.read()
        body = json.loads(raw) if raw else None
        if request.path.startswith("/v1/") and request.path.endswith("completions"):
            return await self._generate()
        if request.method == "POST":
            self.calls.append((request.path_qs, body))
        if request.path in self.go:
            await self.go[request.path].wait()
        fault = self.faults.get(request.path)
        if request.path in ("/update_weights", "/finish_weight_update") and not self.updating:
            fault = fault or 500  # as vLLM without a start
        if fault == 0 and request.transport is not None:
            request.transport.abort()
        if fault is not None:
            return web.json_response({"error": f"{request.path} fails"}, status=fault or 500)
        return web.json_response(self._answer(request.path, body or {}))

    def _answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if path == "/start_weight_update":
            self.updating = True
        elif path == "/finish_weight_update":
            self.updating = False
        if path in ("/pause", "/sleep", "/resume", "/wake_up"):
            self.paused = path in ("/pause", "/sleep")
            return {"status": "awake" if path == "/wake_up" else path}
        self.version = body.get("weight_version") or body.get("new_version") or self.version
        answers: dict[str, dict[str, Any]] = {
            "/is_paused": {"is_paused": self.paused},
            "/is_sleeping": {"is_sleeping": self.paused},
            "/weight_info": {"weight_version": self.version},
            "/get_world_size": {"world_size": self.world_size},
            "/v1/models": {"object": "list", "data": [{"id": "m", "max_model_len": 4096}]},
        }
        return answers.get(path, {"message": path})

    async def _generate(self) -> web.Response:
        self.arrived += 1
        await until(lambda: not self.paused)
        self.generations += 1
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        return web.json_response({"id": "x", "model": self.version, "choices": [choice], "usage": usage})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeTrainable]:
        """Serve within the block, at the same port each time; its end breaks all connections."""
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self.handle)
        async with served(app, self.port) as self.url:
            self.port = int(self.url.rpartition(":")[2])
            yield self


@dataclass(frozen=True)
class Pool:
    """A router that serves, its weight listener, and a trainer's client for it."""

    router: RunningRouter
    sync: WeightSync
    url: str
    """Base URL of the weight listener."""
    client: aiohttp.ClientSession

    async def call(
        self, path: str, body: Any = None, *, method: str = "POST", **query: str
    ) -> tuple[int, Any]:
        """Status and JSON of a control call."""
        async with self.client.request(method, self.url + path, json=body, params=query) as answer:
            raw = await answer.read()
            return answer.status, json.loads(raw) if raw else None

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a GET."""
        return await self.call(path, method="GET")

    async def generate(self, session: str = "", url: str = "") -> tuple[int, Any]:
        """Status and JSON of a generation, by default at the data port."""
        headers = {"X-Rollout-Class": "rlvr"} | ({"X-Session-ID": session} if session else {})
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
        target = f"{url or self.router.url}/v1/chat/completions"
        async with self.client.post(target, json=body, headers=headers) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def running_pool(
    folder: Path,
    engines: Mapping[str, str],
    *,
    limit: float = 3600.0,
    roles: Mapping[str, str] | None = None,
    settled: bool = True,
) -> AsyncIterator[Pool]:
    """A router with weight synchronisation in front of engines (URL by name).

    Args:
        folder: for its files.
        engines: base URL by name.
        limit: longest pause, in seconds.
        roles: role by engine, where it is not aggregated.
        settled: wait until the router knows whether the engines are paused.
    """
    token = folder / "token"
    token.write_text(TOKEN + "\n")
    os.chmod(token, 0o600)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    pool = pool_object(engines, caps=CAPS, roles=roles)
    async with (
        running_router(folder / "pool.json", pool) as router,
        aiohttp.ClientSession(headers=headers) as client,
    ):
        sync = WeightSync(
            router.router.gate.controller.fleet,
            router.router.pause,
            clock=time.monotonic,
            limit=lambda: limit,
            period_seconds=PERIOD_SECONDS,
        )
        watching = asyncio.create_task(sync.watch())
        try:
            listener = serving_weights(sync, TokenFile(token), host=HOST, port=0, data=router.router.handle)
            async with listener as port:
                if settled:
                    await until(lambda: sync.gate.is_open)
                yield Pool(router, sync, f"http://{HOST}:{port}", client)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await sync.close()
