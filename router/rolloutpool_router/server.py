"""Runs a router: listener, watchers, timers, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web

from rolloutpool_router.app import SHUTTING_DOWN, Router, build_app
from rolloutpool_router.engine_probes import watch_unready
from rolloutpool_router.engine_sizes import watch_sizes
from rolloutpool_router.listed_routers import watch_listed

log = logging.getLogger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]
"""A background task: runs for ever, and can be started again."""

TICK_SECONDS = 0.25
"""How often idle sessions are looked for: how late one may expire."""
LAG_SECONDS = 5.0
"""How long requests may still come to a router that shuts down, until all proxies know; others get them."""
RESTART_SECONDS = 1.0
"""Pause before a background task that failed starts anew."""
CUT_SECONDS = 0.5
"""How long cancelled requests may take to clean up at the end."""


@asynccontextmanager
async def serving(
    router: Router, watch: Work, *, host: str, port: int, grace_seconds: float
) -> AsyncIterator[int]:
    """Serve within the block; yields the port. At its end, requests in flight may take `grace_seconds` more.

    Args:
        router: what to serve.
        watch: reads the pool's object, for ever.
        host: address to listen on.
        port: port to listen on; 0: any free one.
        grace_seconds: how long requests may go on after the end of the block.
    """
    runner = web.AppRunner(
        build_app(router), handler_cancellation=True, access_log=None, shutdown_timeout=CUT_SECONDS
    )
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    background = (
        watch,
        partial(_tick, router),
        partial(watch_sizes, router.feed, router.upstream),
        partial(watch_unready, router.gate.controller.fleet, router.upstream),
        partial(watch_listed, router.feed, router.forwarding.peers, router.upstream, router.clock),
    )
    tasks = [asyncio.create_task(keep_running(work)) for work in background]
    try:
        yield runner.addresses[0][1]
    finally:
        await _drain(router, site, grace_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
        await router.upstream.close()


async def _tick(router: Router) -> None:
    while True:
        await asyncio.sleep(TICK_SECONDS)
        router.gate.tick()


async def keep_running(work: Work, *, pause: float = RESTART_SECONDS) -> None:
    """Run a background task for ever: without it the router would serve on, deaf or full of dead sessions."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("a background task failed and starts anew")
        await asyncio.sleep(pause)


async def _drain(router: Router, site: web.BaseSite, grace_seconds: float) -> None:
    """Take no more requests; those there go on for a while, then who still waits is refused.

    Where there are other routers, requests that come or wait go to them at once, and the operator may go on
    asking how many sessions are left here, to give their part to the others.
    """
    router.draining = True
    router.settle()
    if router.forwarding.peers.others:
        router.gate.refuse_all(SHUTTING_DOWN)
        await asyncio.sleep(min(grace_seconds, LAG_SECONDS))
    else:
        await site.stop()
    log.info("draining: %d requests are open, %d of them wait", router.open_requests, router.gate.waiting)
    try:
        async with asyncio.timeout(grace_seconds):
            await router.quiet.wait()
    except TimeoutError:
        log.warning("the grace period is over: %d open requests end now", router.open_requests)
    router.gate.refuse_all(SHUTTING_DOWN)
