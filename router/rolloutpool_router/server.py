"""Runs a router: listener, watchers, timers, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from rolloutpool_api.engine import RlSpec
from rolloutpool_router.admin import build_app
from rolloutpool_router.app import Router
from rolloutpool_router.engine_probes import watch_engines
from rolloutpool_router.engine_sizes import watch_sizes
from rolloutpool_router.listed_routers import watch_listed
from rolloutpool_router.weights import TokenFile, WeightsCollector, WeightSync, serving_weights
from rolloutpool_router.wire.client import Origin
from rolloutpool_router.wire.server import Limits, Server

log = logging.getLogger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]
"""A background task: runs for ever, and can be started again."""

LOOPBACK = "127.0.0.1"
TICK_SECONDS = 0.25
"""How often idle sessions are looked for: how late one may expire."""
STALL_LOOK_SECONDS = 1.0
GO_ON_SECONDS = 0.01
"""Pause between two parts of a tick."""
LAG_SECONDS = 5.0
"""How long requests may still come to a router that shuts down, until all proxies know; others get them."""
RESTART_SECONDS = 1.0
"""Pause before a background task that failed starts anew."""
CUT_SECONDS = 0.5
"""How long cancelled requests may take to clean up at the end."""


@dataclass(frozen=True)
class WeightsPort:
    """Where weights are synchronised, and who may."""

    token_file: Path
    port: int
    """0: any free one."""


@asynccontextmanager
async def serving(
    router: Router,
    *watches: Work,
    host: str,
    port: int,
    grace_seconds: float,
    weights: WeightsPort | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[int]:
    """Serve within the block; yields the port. At its end, requests in flight may take `grace_seconds` more.

    Args:
        router: what to serve.
        watches: read the pool's object and what belongs to it, for ever.
        host: address to listen on.
        port: port to listen on; 0: any free one.
        grace_seconds: how long requests may go on after the end of the block.
        weights: the listener of weight synchronisation; None: there is none.
        limits: what a connection may take; None: the usual.
    """
    server = Server(router.handle, limits)
    router.metrics.plane.connections = lambda: server.connections
    async with AsyncExitStack() as stack:
        stack.push_async_callback(router.upstream.close)
        await stack.enter_async_context(_admin_app(router))
        stack.push_async_callback(server.close)
        listening = await server.start(host, port)
        own = _background(router)
        if weights is not None:
            sync = await _enter_weights(stack, router, weights, host=host)
            own.append(sync.watch)
        await stack.enter_async_context(_running([*watches, *own]))
        try:
            yield listening
        finally:
            await _drain(router, server, grace_seconds)


def _background(router: Router) -> list[Work]:
    fleet = router.gate.controller.fleet
    return [
        partial(_tick, router),
        partial(_look_for_stalls, router),
        router.kv_events.run,
        partial(watch_sizes, router.feed, router.upstream),
        partial(watch_engines, fleet, router.upstream),
        partial(watch_listed, router.feed, router.forwarding.peers, router.upstream, router.clock),
    ]


@asynccontextmanager
async def _running(works: Sequence[Work]) -> AsyncIterator[None]:
    """Run background tasks within the block."""
    tasks = [asyncio.create_task(keep_running(work)) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _enter_weights(
    stack: AsyncExitStack, router: Router, weights: WeightsPort, *, host: str
) -> WeightSync:
    def limit() -> float:
        view = router.gate.controller.view
        return (view.spec.engine.rl if view is not None else RlSpec()).max_pause_seconds

    sync = WeightSync(router.gate.controller.fleet, router.pause, clock=router.clock, limit=limit)
    router.metrics.registry.register(WeightsCollector(sync))
    router.weights = sync
    stack.push_async_callback(sync.close)
    listener = serving_weights(
        sync,
        TokenFile(weights.token_file),
        host=host,
        port=weights.port,
        data=router.handle,
    )
    port = await stack.enter_async_context(listener)
    log.info("weights are synchronised at %s:%d", host, port)
    return sync


@asynccontextmanager
async def _admin_app(router: Router) -> AsyncIterator[None]:
    """Serve the router's own pages on loopback within the block."""
    runner = web.AppRunner(build_app(router), access_log=None, shutdown_timeout=CUT_SECONDS)
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, 0).start()
    router.admin = Origin.of(f"http://{LOOPBACK}:{runner.addresses[0][1]}")
    try:
        yield
    finally:
        await runner.cleanup()


async def _tick(router: Router) -> None:
    lag = router.metrics.loop_lag.labels()
    while True:
        due = router.clock() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        lag.observe(max(0.0, router.clock() - due))
        if router.pause.is_open:
            # While new weights are awaited, requests wait where sessions cannot see them: none is idle.
            router.gate.tick()
            while router.gate.go_on():  # noqa: ASYNC110 (the others get the loop between two parts)
                await asyncio.sleep(GO_ON_SECONDS)


async def _look_for_stalls(router: Router) -> None:
    """Break off answers that their engines will not go on with."""
    fleet = router.gate.controller.fleet
    while True:
        await asyncio.sleep(STALL_LOOK_SECONDS)
        for attempt in fleet.stalled_answers(router.clock(), paused=not router.pause.is_open):
            if attempt.answer is not None:
                attempt.answer.close()


async def keep_running(work: Work, *, pause: float = RESTART_SECONDS) -> None:
    """Run a background task for ever: without it the router would serve on, deaf or full of dead sessions."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("a background task failed and starts anew")
        await asyncio.sleep(pause)


async def _drain(router: Router, server: Server, grace_seconds: float) -> None:
    """Take no more requests; those there go on for a while, then who still waits is refused.

    Requests go on coming until every proxy knows that this router is not ready. Where there are others, those
    and the ones that wait go to them at once, and the operator may go on asking how many sessions are left
    here, to give their part to the others; a router that is alone serves them.
    """
    router.leaving = True
    lag = min(grace_seconds, LAG_SECONDS)
    if router.forwarding.peers.others:
        router.draining = True
        router.turn_away()
        await asyncio.sleep(lag)
    else:
        await asyncio.sleep(lag)
        router.draining = True
        server.stop_listening()
    server.leave()
    router.settle()
    log.info("draining: %d requests are open, %d of them wait", router.open_requests, router.gate.waiting)
    try:
        async with asyncio.timeout(grace_seconds):
            await router.quiet.wait()
    except TimeoutError:
        log.warning("the grace period is over: %d open requests end now", router.open_requests)
    router.turn_away()
