"""The listener of weight synchronisation: control calls to all engines, everything else as on the main port.

It asks for a token on every path but /health, since who may pause the pool may stop it. A trainer that knows
one URL only can use this one for both; the token stays here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from rolloutpool_router.answers import JSON, RETRY, answer_json
from rolloutpool_router.core.weight_calls import CALLS, Call, CallError, Merged, refusal
from rolloutpool_router.weights.sync import WeightSync
from rolloutpool_router.weights.token import CHALLENGE, TokenFile
from rolloutpool_router.wire.heads import Headers, RequestHead
from rolloutpool_router.wire.server import Exchange, Handler, Server

MAX_BODY_BYTES = 64 * 2**20
"""Longest body of a control call: weights themselves do not go through the router."""
EPOCH = "X-RolloutPool-Membership-Epoch"
STALE = "X-RolloutPool-Stale-Engines"
MAX_NAMED = 32
"""Most engines that a header names."""
_HEALTH, _STATE = "/health", "/weights"
_NO_TOKEN = refusal(
    401, CallError.UNAUTHORIZED, "send the pool's weight sync token: Authorization: Bearer TOKEN"
)


def weights_handler(sync: WeightSync, token: TokenFile, data: Handler) -> Handler:
    """What answers the listener's requests.

    Args:
        sync: carries control calls out.
        token: who may call.
        data: answers all other requests.
    """

    async def handle(exchange: Exchange) -> None:
        head = exchange.head
        if head.path == _HEALTH:
            return _health(sync, exchange)
        if not token.admits(head.headers.get("Authorization")):
            return _answer(exchange, _NO_TOKEN, {"WWW-Authenticate": CHALLENGE})
        if head.path == _STATE:
            return answer_json(exchange, sync.describe())
        call = CALLS.get(head.path)
        if call is None:
            exchange.head = _without_token(head)
            return await data(exchange)
        if head.method != call.method:
            wrong = refusal(405, CallError.WRONG_METHOD, f"{call.path} takes {call.method}")
            return _answer(exchange, wrong, {"Allow": call.method})
        return await _control(sync, call, exchange)

    return handle


@asynccontextmanager
async def serving_weights(
    sync: WeightSync, token: TokenFile, *, host: str, port: int, data: Handler
) -> AsyncIterator[int]:
    """Listen within the block; yields the port.

    Args:
        sync: carries control calls out.
        token: who may call.
        host: address to listen on.
        port: port to listen on; 0: any free one.
        data: answers all requests that are no control calls.
    """
    server = Server(weights_handler(sync, token, data))
    listening = await server.start(host, port)
    try:
        yield listening
    finally:
        await server.close()


async def _control(sync: WeightSync, call: Call, exchange: Exchange) -> None:
    is_long = (exchange.body_length or 0) > MAX_BODY_BYTES
    body = b"" if is_long else await exchange.read_body(MAX_BODY_BYTES)
    if is_long or not exchange.body_complete:
        text = f"the body of {call.path} may have at most {MAX_BODY_BYTES} bytes"
        return _answer(exchange, refusal(413, CallError.TOO_LARGE, text))
    merged = await sync.call(call, exchange.head.query, body)
    told = {EPOCH: str(sync.state.epoch)}
    if stale := sorted(sync.stale()):
        told[STALE] = ", ".join(stale[:MAX_NAMED])
    return _answer(exchange, merged, told)


def _health(sync: WeightSync, exchange: Exchange) -> None:
    """200 once every engine of the pool answers: one that is missed now has no part in the weight group."""
    missing = sync.missing()
    if not sync.state.engines:
        return _answer(exchange, refusal(503, CallError.NOT_READY, "the router knows no engine yet"))
    if missing:
        text = f"{len(missing)} engines do not answer yet: {', '.join(missing[:MAX_NAMED])}"
        return _answer(exchange, refusal(503, CallError.NOT_READY, text))
    return answer_json(exchange, {"status": "ok"})


def _answer(exchange: Exchange, merged: Merged, headers: Mapping[str, str] | None = None) -> None:
    own = {JSON[0]: merged.content_type} | (RETRY if merged.retryable else {}) | dict(headers or {})
    exchange.answer(merged.status, own.items(), merged.body)


def _without_token(head: RequestHead) -> RequestHead:
    return replace(head, headers=Headers(p for p in head.headers.raw if p[0].lower() != b"authorization"))
