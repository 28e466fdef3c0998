"""Answers that the router gives itself, in OpenAI's error format."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web

from rolloutpool_router.core.outcomes import DEFAULT_RETRY_AFTER_SECONDS, ERRORS, Refusal, error_object
from rolloutpool_router.wire.server import Exchange

JSON = ("Content-Type", "application/json")
RETRY = {"Retry-After": str(DEFAULT_RETRY_AFTER_SECONDS), "x-should-retry": "true"}
"""Headers of an answer that says that nothing was done, and that a later try may succeed."""


def refuse(exchange: Exchange, refusal: Refusal, headers: Mapping[str, str] | None = None) -> None:
    """Answer a refused request; an event stream that has begun ends with the error as its last event."""
    body = refusal_body(refusal)
    if exchange.started:
        exchange.write_piece(error_event(body))
        exchange.end()
        return
    own = refusal_headers(refusal) | dict(headers or {})
    exchange.answer(refusal.http_status, [JSON, *own.items()], body)


def break_off(exchange: Exchange, refusal: Refusal) -> None:
    """Refuse a request; an answer that has begun is broken off, so that nobody takes it for whole."""
    if exchange.started:
        exchange.abort()
    else:
        refuse(exchange, refusal)


def answer_json(exchange: Exchange, value: object) -> None:
    """Answer 200 with a JSON value."""
    exchange.answer(200, [JSON], msgspec.json.encode(value))


def error_event(body: bytes) -> bytes:
    """An error as an event of a stream, as vLLM sends it."""
    return b"data: " + body.replace(b"\n", b" ") + b"\n\ndata: [DONE]\n\n"


def refusal_response(refusal: Refusal) -> web.Response:
    """The answer to a refused request of the admin app."""
    return web.Response(
        status=refusal.http_status,
        headers=refusal_headers(refusal),
        body=refusal_body(refusal),
        content_type="application/json",
    )


def refusal_headers(refusal: Refusal) -> dict[str, str]:
    """Headers of a refusal: retryable ones say when and that to try again."""
    if not refusal.retryable:
        return {}
    return RETRY | {"Retry-After": str(refusal.retry_after_seconds)}


def refusal_body(refusal: Refusal) -> bytes:
    """Body of a refusal."""
    return error_body(
        refusal.message,
        error_type=ERRORS[refusal.outcome].type,
        code=refusal.outcome.value,
        param=refusal.param,
    )


def error_body(message: str, *, error_type: str, code: str, param: str | None = None) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`."""
    error = error_object(message, error_type=error_type, code=code, param=param)
    return msgspec.json.encode({"error": error})
