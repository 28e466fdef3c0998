"""Asks engines that the object calls not ready whether they serve: it may be old, and the operator away."""

from __future__ import annotations

import asyncio

from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.proxy import EngineLost, Unreachable, Upstream

PERIOD_SECONDS = 2.0
TIMEOUT_SECONDS = 2.0


async def watch_unready(fleet: Fleet, upstream: Upstream) -> None:
    """Ask, for ever; sessions may go to an engine that serves."""
    while True:
        unready = fleet.unready()
        answers = await asyncio.gather(*(serves(upstream, url) for url in unready.values()))
        for name, answer in zip(unready, answers, strict=True):
            fleet.probed(name, serves=answer)
        await asyncio.sleep(PERIOD_SECONDS)


async def serves(upstream: Upstream, url: str) -> bool:
    """Whether an engine has its model loaded: /v1/models answers, as its readiness probe asks."""
    try:
        async with upstream.get(f"{url}/v1/models", timeout=TIMEOUT_SECONDS) as response:
            await response.read()
            return response.ok
    except (Unreachable, EngineLost):
        return False
