"""The router's watch on the Kubernetes API: outages, expired tokens, silence, deletion."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig

from rolloutpool_router import watch_kubernetes
from rolloutpool_router.app import Router, build_router
from rolloutpool_router.testing import FakeKubernetes, pool_object, until

ENGINES = {"e0": "http://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_kubernetes, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(watch_kubernetes, "MAX_BACKOFF_SECONDS", 0.05)


@asynccontextmanager
async def watching(kubeconfig: Path) -> AsyncIterator[Router]:
    """A router that watches with the credentials of a kubeconfig, which is read anew for each client."""
    router = build_router("router-0", rng=Random(1))

    def connect() -> AsyncClient:
        return AsyncClient(KubeConfig.from_file(kubeconfig).get(), trust_env=False)

    task = asyncio.create_task(
        watch_kubernetes.watch_kubernetes("pool", "default", router.feed, connect=connect, rng=Random(1))
    )
    try:
        yield router
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await router.upstream.close()


def write_kubeconfig(path: Path, server: str, token: str = "token-1") -> Path:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return path


def revision(router: Router) -> int:
    view = router.gate.controller.view
    return view.revision if view is not None else 0


def pool_at(number: int) -> dict[str, object]:
    return pool_object(ENGINES, caps={"rlvr": number}, revision=number)


async def test_changes_arrive(tmp_path: Path) -> None:
    async with (
        FakeKubernetes(pool_at(1)).running() as api,
        watching(write_kubeconfig(tmp_path / "config", api.url)) as router,
    ):
        for number in range(1, 4):
            await api.put(pool_at(number))
            await until(lambda number=number: revision(router) == number)  # type: ignore[misc]
        assert (api.lists, api.watches) == (1, 1)
        assert router.feed.ignored == 0


async def test_an_object_may_come_later(tmp_path: Path) -> None:
    async with (
        FakeKubernetes().running() as api,
        watching(write_kubeconfig(tmp_path / "config", api.url)) as router,
    ):
        await until(lambda: api.watches == 1)
        assert revision(router) == 0
        await api.put(pool_at(1))
        await until(lambda: revision(router) == 1)


async def test_a_deleted_object_leaves_the_last_caps(tmp_path: Path) -> None:
    async with (
        FakeKubernetes(pool_at(3)).running() as api,
        watching(write_kubeconfig(tmp_path / "config", api.url)) as router,
    ):
        await until(lambda: api.watches == 1)
        await api.put(None)
        recreated = pool_at(1)
        recreated["metadata"] = {"name": "pool", "uid": "uid-2", "generation": 1}
        assert revision(router) == 3
        await api.put(recreated)
        await until(lambda: revision(router) == 1)


async def test_an_api_server_that_restarts_is_watched_again(tmp_path: Path) -> None:
    api = FakeKubernetes(pool_at(1))
    async with api.running() as first:
        port = int(first.url.rpartition(":")[2])
        config = write_kubeconfig(tmp_path / "config", first.url)
        context = watching(config)
        router = await context.__aenter__()
        await until(lambda: api.watches == 1)
    try:
        await until(lambda: router.feed.age_seconds > 0.1)
        assert revision(router) == 1
        await api.put(pool_at(2))
        async with api.running(port):
            await until(lambda: revision(router) == 2)
            assert router.feed.age_seconds < 5
    finally:
        await context.__aexit__(None, None, None)


async def test_a_token_that_expires_is_read_again(tmp_path: Path) -> None:
    api = FakeKubernetes(pool_at(1), tokens={"token-2"})
    async with api.running():
        config = write_kubeconfig(tmp_path / "config", api.url, token="token-1")
        async with watching(config) as router:
            await until(lambda: api.unauthorized > 1)
            write_kubeconfig(config, api.url, token="token-2")
            await until(lambda: revision(router) == 1)


async def test_a_watch_that_falls_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_kubernetes, "SILENCE_SECONDS", 0.1)
    async with (
        FakeKubernetes(pool_at(1)).running() as api,
        watching(write_kubeconfig(tmp_path / "config", api.url)) as router,
    ):
        await until(lambda: api.watches == 1)
        api.silent = True
        await api.put(pool_at(2))
        await until(lambda: revision(router) == 2)
        assert api.lists >= 2
