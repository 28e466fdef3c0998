"""The listener of weight synchronisation: control calls to all engines, everything else on to the data port.

It asks for a token on every path but /health, since who may pause the pool may stop it. A trainer that knows
one URL only can use this one for both; the token stays here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from rolloutpool_router.core.weight_calls import CALLS, Call
from rolloutpool_router.weights.relay import DataPort
from rolloutpool_router.weights.sync import WeightSync
from rolloutpool_router.weights.token import CHALLENGE, TokenFile

MAX_BODY_BYTES = 64 * 2**20
"""Longest body of a control call: weights themselves do not go through the router."""
EPOCH = "X-RolloutPool-Membership-Epoch"
STALE = "X-RolloutPool-Stale-Engines"
MAX_NAMED = 32
"""Most engines that a header names."""
CUT_SECONDS = 0.5
"""How long cancelled requests may take to clean up at the end."""
_HEALTH, _STATE = "/health", "/weights"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_weights_app(sync: WeightSync, token: TokenFile, data: DataPort) -> web.Application:
    """The application of the listener.

    Args:
        sync: carries control calls out.
        token: who may call.
        data: where all other requests go.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        call = CALLS.get(request.path)
        if request.path == _HEALTH:
            return _health(sync)
        if request.path == _STATE:
            return web.json_response(sync.describe())
        if call is None:
            return await data.relay(request)
        if request.method != call.method:
            return _error(405, f"{call.path} takes {call.method}", {"Allow": call.method})
        return await _control(sync, call, request)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != _HEALTH and not token.admits(request.headers.get("Authorization")):
            hint = "send the pool's weight sync token: Authorization: Bearer TOKEN"
            return _error(401, hint, {"WWW-Authenticate": CHALLENGE})
        return await handler(request)

    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", handle)
    return app


@asynccontextmanager
async def serving_weights(
    sync: WeightSync, token: TokenFile, *, host: str, port: int, data_url: str
) -> AsyncIterator[int]:
    """Listen within the block; yields the port.

    Args:
        sync: carries control calls out.
        token: who may call.
        host: address to listen on.
        port: port to listen on; 0: any free one.
        data_url: base URL of the router's data port.
    """
    data = DataPort(data_url)
    runner = web.AppRunner(
        build_weights_app(sync, token, data),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=CUT_SECONDS,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
        await data.close()


async def _control(sync: WeightSync, call: Call, request: web.Request) -> web.Response:
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return _error(413, f"the body of {call.path} may have at most {MAX_BODY_BYTES} bytes")
    except aiohttp.ClientPayloadError:
        return _error(400, "the body broke off")
    merged = await sync.call(call, request.query_string, body)
    answer = web.Response(status=merged.status, body=merged.body)
    answer.headers["Content-Type"] = merged.content_type
    answer.headers[EPOCH] = str(sync.state.epoch)
    if stale := sorted(sync.stale()):
        answer.headers[STALE] = ", ".join(stale[:MAX_NAMED])
    return answer


def _health(sync: WeightSync) -> web.Response:
    """200 once every engine of the pool answers: one that is missed now has no part in the weight group."""
    missing = sync.missing()
    if not sync.state.engines:
        return _error(503, "the router knows no engine yet")
    if missing:
        return _error(503, f"{len(missing)} engines do not answer yet: {', '.join(missing[:MAX_NAMED])}")
    return web.json_response({"status": "ok"})


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body: dict[str, Any] = {"error": {"message": message, "type": "weight_sync_error", "code": status}}
    return web.json_response(body, status=status, headers=headers)
