"""The router's watch of EndpointSlices: pods that come and go, rights that lack, an API that is away."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router import watch_endpoints, watch_kubernetes
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.view import Ignored, accept
from rolloutpool_router.testing import pool_object, served, until

ENGINES = {"e0": "http://e0.pool-engines:8000", "e1": "http://e1.pool-engines:8000"}
PATH = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_kubernetes, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(watch_kubernetes, "MAX_BACKOFF_SECONDS", 0.05)


@dataclass
class FakeEndpoints:
    """The part of an API server that tells EndpointSlices: list and watch."""

    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    """All so far; the resource version is their number."""
    lists: int = 0
    watches: int = 0
    forbidden: bool = False
    silent: bool = False
    tokens: set[str] = field(default_factory=set)
    """Accepted bearer tokens; empty: all."""
    url: str = ""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, name: str, **pods: tuple[bool, bool] | None) -> None:
        """Store a slice with these pods (serving, terminating); None leaves one out."""
        body = {
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "pool-engines"}},
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": ["10.0.0.1"],
                    "conditions": {"ready": True, "serving": state[0], "terminating": state[1]},
                    "hostname": pod,
                    "targetRef": {"kind": "Pod", "name": pod, "namespace": "default"},
                }
                for pod, state in pods.items()
                if state is not None
            ],
        }
        await self._event("MODIFIED" if name in self.slices else "ADDED", name, body)

    async def delete(self, name: str) -> None:
        """Remove a slice."""
        await self._event("DELETED", name, self.slices[name])

    async def _event(self, kind: str, name: str, body: dict[str, Any]) -> None:
        async with self.changed:
            if kind == "DELETED":
                del self.slices[name]
            else:
                self.slices[name] = body
            body["metadata"]["resourceVersion"] = str(len(self.events) + 1)
            self.events.append({"type": kind, "object": body})
            self.changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """GET of the collection, with or without watch."""
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.forbidden or (self.tokens and token not in self.tokens):
            code = 403 if self.forbidden else 401
            status = {"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "no"}
            return web.json_response(status, status=code)
        assert request.query["labelSelector"] == "kubernetes.io/service-name=pool-engines"
        if request.query.get("watch") in ("true", "1"):
            return await self._watch(request)
        self.lists += 1
        version = {"resourceVersion": str(len(self.events))}
        return web.json_response({"metadata": version, "items": list(self.slices.values())})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        assert int(request.query["timeoutSeconds"]) > 0
        response = web.StreamResponse()
        await response.prepare(request)
        sent = int(request.query["resourceVersion"])
        while True:
            async with self.changed:
                while len(self.events) <= sent or self.silent:
                    await self.changed.wait()
            await response.write(json.dumps(self.events[sent]).encode() + b"\n")
            sent += 1

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[FakeEndpoints]:
        """Serve within the block; its end breaks all connections."""
        app = web.Application()
        app.add_routes([web.get(PATH, self.handle)])
        async with served(app, port) as self.url:
            yield self


def write_kubeconfig(path: Path, server: str, token: str = "token-1") -> Path:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return path


@asynccontextmanager
async def watching(kubeconfig: Path) -> AsyncIterator[Fleet]:
    """A fleet of two engines that learns of their pods."""
    fleet = Fleet()
    view = accept(None, parse_pool(pool_object(ENGINES)))
    assert not isinstance(view, Ignored)
    fleet.apply(view)

    def connect() -> AsyncClient:
        return AsyncClient(KubeConfig.from_file(kubeconfig).get(), trust_env=False)

    task = asyncio.create_task(
        watch_endpoints.watch_endpoints("pool", "default", fleet, connect=connect, rng=Random(1))
    )
    try:
        yield fleet
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def up(fleet: Fleet) -> set[str]:
    return {engine.name for engine in fleet.homes(0.0)}


UP, GOING, STARTING = (True, False), (True, True), (False, False)


async def test_a_pod_drains_goes_and_its_successor_serves(tmp_path: Path) -> None:
    api = FakeEndpoints()
    await api.put("slice", e0=UP, e1=UP)
    async with api.running(), watching(write_kubeconfig(tmp_path / "config", api.url)) as fleet:
        await until(lambda: api.watches == 1)
        assert up(fleet) == {"e0", "e1"}
        await api.put("slice", e0=GOING, e1=UP)
        await until(lambda: up(fleet) == {"e1"})
        assert fleet.reachable("e0", 0), "its sessions go on"
        await api.put("slice", e0=None, e1=UP)
        await until(lambda: not fleet.reachable("e0", 0))
        await api.put("slice", e0=STARTING, e1=UP)
        await until(lambda: fleet.reachable("e0", 0))
        assert up(fleet) == {"e1"}
        await api.put("slice", e0=UP, e1=UP)
        await until(lambda: up(fleet) == {"e0", "e1"})
        assert (api.lists, api.watches) == (1, 1)


async def test_pods_may_be_told_in_several_slices(tmp_path: Path) -> None:
    api = FakeEndpoints()
    await api.put("slice-a", e0=UP)
    async with api.running(), watching(write_kubeconfig(tmp_path / "config", api.url)) as fleet:
        await until(lambda: up(fleet) == {"e0"})
        await api.put("slice-b", e1=UP)
        await until(lambda: up(fleet) == {"e0", "e1"})
        await api.delete("slice-a")
        await until(lambda: up(fleet) == {"e1"})
        await api.delete("slice-b")
        await until(lambda: up(fleet) == {"e0", "e1"})


async def test_without_the_right_to_read_them_the_router_says_so_once_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, asked = FakeEndpoints(forbidden=True), []

    async def refuse(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        return await FakeEndpoints.handle(api, request)

    api.handle = refuse  # type: ignore[method-assign]
    caplog.set_level(logging.WARNING)
    async with api.running(), watching(write_kubeconfig(tmp_path / "config", api.url)) as fleet:
        await until(lambda: len(asked) > 3)
        assert up(fleet) == {"e0", "e1"}
        assert [record.message for record in caplog.records if "may not read" in record.message] == [
            record.message for record in caplog.records
        ]
        assert len(caplog.records) == 1
        await api.put("slice", e0=GOING, e1=UP)
        api.forbidden = False
        await until(lambda: up(fleet) == {"e1"})


async def test_rights_that_are_taken_away_take_what_was_told_with_them(tmp_path: Path) -> None:
    api = FakeEndpoints()
    await api.put("slice", e0=GOING, e1=UP)
    async with watching(tmp_path / "config") as fleet:
        async with api.running():
            write_kubeconfig(tmp_path / "config", api.url)
            await until(lambda: up(fleet) == {"e1"})
            port = int(api.url.rpartition(":")[2])
        api.forbidden = True
        async with api.running(port):
            await until(lambda: up(fleet) == {"e0", "e1"})


async def test_a_token_that_expires_is_read_again(tmp_path: Path) -> None:
    api = FakeEndpoints(tokens={"token-2"})
    await api.put("slice", e0=GOING, e1=UP)
    async with api.running():
        config = write_kubeconfig(tmp_path / "config", api.url)
        async with watching(config) as fleet:
            assert up(fleet) == {"e0", "e1"}
            write_kubeconfig(config, api.url, token="token-2")
            await until(lambda: up(fleet) == {"e1"})


async def test_a_watch_that_falls_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_kubernetes, "SILENCE_SECONDS", 0.1)
    api = FakeEndpoints()
    await api.put("slice", e0=UP, e1=UP)
    async with api.running(), watching(write_kubeconfig(tmp_path / "config", api.url)) as fleet:
        await until(lambda: api.watches == 1)
        api.silent = True
        await api.put("slice", e0=GOING, e1=UP)
        await until(lambda: up(fleet) == {"e1"})


@pytest.mark.parametrize(
    ("lost_seconds", "left"), [(3600.0, {"e1"}), (0.0, {"e0", "e1"})], ids=["short", "long"]
)
async def test_while_the_api_is_away_the_last_pods_stay_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_seconds: float, left: set[str]
) -> None:
    monkeypatch.setattr(watch_endpoints, "LOST_SECONDS", lost_seconds)
    api = FakeEndpoints()
    await api.put("slice", e0=GOING, e1=UP)
    failed: list[Exception] = []
    tell = watch_endpoints._Watcher.failed

    def failing(watcher: Any, error: Exception, pause: float) -> None:
        tell(watcher, error, pause)
        failed.append(error)

    monkeypatch.setattr(watch_endpoints._Watcher, "failed", failing)
    async with watching(tmp_path / "config") as fleet:
        async with api.running():
            write_kubeconfig(tmp_path / "config", api.url)
            await until(lambda: up(fleet) == {"e1"})
        failed.clear()
        await until(lambda: len(failed) > 2)
        assert up(fleet) == left
