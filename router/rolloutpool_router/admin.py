"""The router's own pages: health, metrics, models, workers, snapshot. An ordinary aiohttp application.

It listens on loopback; the data listener passes on to it whatever is no generation, so that a client sees one
address. Nothing here is on a request's path.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from rolloutpool_router import debug
from rolloutpool_router.answers import error_body, refusal_response
from rolloutpool_router.app import Router
from rolloutpool_router.core import identity
from rolloutpool_router.core.outcomes import FAILED, NOT_READY, SHUTTING_DOWN, Outcome
from rolloutpool_router.core.snapshot import take_snapshot
from rolloutpool_router.core.weight_calls import stable_order
from rolloutpool_router.wire.client import ConnectionLost, Unreachable, fetch

log = logging.getLogger(__name__)

MODELS_TIMEOUT_SECONDS = 5.0
CODES = {404: "not_found", 405: Outcome.WRONG_METHOD.value}
"""Codes of errors of routing."""
ROUTER = web.AppKey("router", Router)


def build_app(router: Router) -> web.Application:
    """The aiohttp application of a router."""
    app = web.Application(middlewares=[_errors])
    app[ROUTER] = router
    app.add_routes(
        [
            web.get("/v1/models", _models),
            web.get("/workers", _workers),
            web.get("/health", _health),
            web.get("/readyz", _readyz),
            web.get("/metrics", _metrics),
            web.get("/admission/snapshot", _snapshot),
            web.post("/admission/release", _release),
            *debug.routes(router),
        ]
    )
    return app


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors of routing and faults of the router, in the format of the others."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        hint = f"{request.method} {request.path}: {error.reason}"
        code = CODES.get(error.status, "http_error")
        body = error_body(hint, error_type="invalid_request_error", code=code)
        return web.Response(status=error.status, body=body, content_type="application/json")
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return refusal_response(FAILED)


async def _models(request: web.Request) -> web.StreamResponse:
    """An engine's own list, which has its context length; the names of the spec while no engine answers."""
    router = request.app[ROUTER]
    view = router.gate.controller.view
    for engine in router.gate.controller.fleet.homes(router.clock()):
        try:
            answer = await fetch(
                router.upstream, "GET", f"{engine.url}/v1/models", timeout=MODELS_TIMEOUT_SECONDS
            )
        except (Unreachable, ConnectionLost):
            continue
        return web.Response(status=answer.status, body=answer.body, content_type="application/json")
    if view is None:
        return refusal_response(NOT_READY)
    names = [{"id": name, "object": "model", "owned_by": "rolloutpool"} for name in view.models]
    return web.json_response({"object": "list", "data": names})


async def _workers(request: web.Request) -> web.Response:
    """All engines in an order that stays (rank offsets depend on it), for trainers that address each."""
    router = request.app[ROUTER]
    fleet, now = router.gate.controller.fleet, router.clock()
    workers = [
        {
            "url": engine.url,
            "name": engine.name,
            "worker_type": {"aggregated": "regular"}.get(engine.role.value, engine.role.value),
            "is_healthy": fleet.is_up(engine.name, now),
        }
        for engine in map(fleet.engines.__getitem__, stable_order(fleet.engines))
    ]
    return web.json_response({"workers": workers, "total": len(workers)})


async def _release(request: web.Request) -> web.Response:
    """Give an idle session up to the router that asks: the engine that holds its KV. Always 200."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    named = identity.session_id(headers, {})
    engine = request.app[ROUTER].gate.release(named) if isinstance(named, str) else None
    return web.json_response({"engine": engine})


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _readyz(request: web.Request) -> web.Response:
    router = request.app[ROUTER]
    if router.leaving or router.draining:
        return refusal_response(SHUTTING_DOWN)
    if router.gate.controller.view is None:
        return refusal_response(NOT_READY)
    return web.json_response({"status": "ready"})


async def _metrics(request: web.Request) -> web.Response:
    text = await request.app[ROUTER].metrics.exposition()
    return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def _snapshot(request: web.Request) -> web.Response:
    router = request.app[ROUTER]
    snapshot = take_snapshot(
        router.gate.controller,
        router=router.name,
        now=router.clock(),
        taken_at=time.time(),
        ignored_statuses=router.feed.ignored,
        paused=router.pause.held,
    )
    if router.forwarding.peers.deserted:
        # What is in force is not what the revision says: the operator must not count on it.
        snapshot = snapshot.model_copy(update={"applied_revision": 0})
    if router.weights is not None:
        snapshot = snapshot.model_copy(update={"weights": router.weights.snapshot()})
    return web.json_response(snapshot.to_wire())
