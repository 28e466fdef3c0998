"""The router as a process: it starts, serves, and ends in order."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rolloutpool_router.testing import FakeEngine, pool_object, until, write_pool

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RLVR = {"X-Rollout-Class": "rlvr"}
STRICT = {"lending": False, "mixtureDebt": False}
"""Caps bind, whoever waits."""


@asynccontextmanager
async def router_process(path: Path, grace: float) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rolloutpool_router.main", "--pool-file", str(path), "--name", "r7"),
        *("--host", "127.0.0.1", "--port", "0", "--grace-seconds", str(grace)),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while (found := re.search(rb"listens on (127.0.0.1:\d+)", await process.stderr.readline())) is None:
            assert process.returncode is None
        yield process, f"http://{found.group(1).decode()}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ready(client: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(10):
        while True:
            async with client.get(f"{url}/readyz") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.02)


async def post(client: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, Any]]:
    async with client.post(url + CHAT, json=BODY, headers=RLVR) as answer:
        return answer.status, await answer.json()


async def test_what_is_under_way_ends_before_the_process(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    path = tmp_path / "pool.json"
    async with FakeEngine().running() as engine:
        write_pool(path, pool_object({"e0": engine.url}, caps={"rlvr": 1}, admission=STRICT))
        async with router_process(path, grace=30) as (process, url):
            await ready(client, url)
            async with client.get(f"{url}/admission/snapshot") as answer:
                assert (await answer.json())["router"] == "r7"
            engine.go.clear()
            running = asyncio.create_task(post(client, url))
            await until(lambda: engine.in_flight == 1)
            queued = asyncio.create_task(post(client, url))
            await until_waiting(client, url)

            process.send_signal(signal.SIGTERM)
            await until_closed(url)
            assert process.returncode is None
            engine.go.set()

            assert (await running)[0] == 200
            assert (await queued)[0] == 200
            assert await process.wait() == 0
            assert len(engine.seen) == 2


async def test_after_the_grace_period_the_rest_is_refused_or_cut(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    path = tmp_path / "pool.json"
    async with FakeEngine().running() as engine:
        write_pool(path, pool_object({"e0": engine.url}, caps={"rlvr": 1}, admission=STRICT))
        async with router_process(path, grace=0.1) as (process, url):
            await ready(client, url)
            engine.go.clear()
            running = asyncio.create_task(post(client, url))
            await until(lambda: engine.in_flight == 1)
            queued = asyncio.create_task(post(client, url))
            await until_waiting(client, url)

            process.send_signal(signal.SIGTERM)

            status, body = await queued
            assert (status, body["error"]["code"]) == (503, "shutting_down")
            with pytest.raises(aiohttp.ClientError):
                await running
            assert await process.wait() == 0
            await until(lambda: engine.aborted == 1)


async def test_a_wrong_command_line_says_so() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rolloutpool_router.main"), stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()

    assert process.returncode == 2
    assert b"--pool" in errors


async def until_waiting(client: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(10):
        while True:
            async with client.get(f"{url}/admission/snapshot") as answer:
                if json.loads(await answer.text())["classes"][0]["waiting"] == 1:
                    return


async def until_closed(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except ConnectionError:  # refused, or reset while the listener closes
                return
            writer.close()
            await asyncio.sleep(0.01)
