"""A router in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

HOST = "127.0.0.1"
START_SECONDS = 30.0


@dataclass
class RouterProcess:
    """A router that serves a pool file."""

    process: asyncio.subprocess.Process
    url: str = ""
    log: str = ""
    """What it has logged; all of it once it has ended."""

    async def stop(self) -> int:
        """End it as Kubernetes does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@asynccontextmanager
async def router_process(
    path: Path, *arguments: str, environment: Mapping[str, str]
) -> AsyncIterator[RouterProcess]:
    """Run one within the block, ready when it is entered; its end kills it if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rolloutpool_router.main", "--pool-file", str(path), "--name", "r7"),
        *("--host", HOST, "--port", "0", "--grace-seconds", "0.1", *arguments),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | environment,
    )
    router = RouterProcess(process)
    reading = asyncio.create_task(_read_log(router))
    try:
        async with asyncio.timeout(START_SECONDS):
            await _until_ready(router)
        yield router
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def _read_log(router: RouterProcess) -> None:
    assert router.process.stderr is not None
    async for line in router.process.stderr:
        router.log += line.decode()


async def _until_ready(router: RouterProcess) -> None:
    async with aiohttp.ClientSession() as client:
        while True:
            assert router.process.returncode is None, router.log
            if (found := re.search(rf"listens on ({HOST}:\d+)", router.log)) is not None:
                router.url = f"http://{found.group(1)}"
                async with client.get(f"{router.url}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.02)
