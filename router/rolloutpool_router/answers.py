"""Answers that the router gives itself, in OpenAI's error format."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from rolloutpool_router.core.outcomes import ERRORS, Refusal


def refusal_response(refusal: Refusal, headers: Mapping[str, str] | None = None) -> web.Response:
    """The answer to a refused request; retryable ones say when and that to try again."""
    answer = error_response(
        refusal.http_status,
        message=refusal.message,
        error_type=ERRORS[refusal.outcome].type,
        code=refusal.outcome.value,
        param=refusal.param,
    )
    answer.headers.update(headers or {})
    if refusal.retryable:
        answer.headers["Retry-After"] = str(refusal.retry_after_seconds)
        answer.headers["x-should-retry"] = "true"
    return answer


def error_response(
    status: int, *, message: str, error_type: str, code: str, param: str | None = None
) -> web.Response:
    """`{"error": {"message", "type", "param", "code"}}`."""
    error = {"message": message, "type": error_type, "param": param, "code": code}
    return web.json_response({"error": error}, status=status)
