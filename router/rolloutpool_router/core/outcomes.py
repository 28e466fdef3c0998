"""What can become of a request: a closed list, each with its HTTP status, error type and code.

The value of an outcome is its metric label and the `code` of the OpenAI-style error, so both stay few.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rolloutpool_api.workloads import WorkloadSpec


class Outcome(StrEnum):
    """How a request ended."""

    SERVED = "served"
    """The engine answered 2xx and the answer was passed on to its end."""
    ENGINE_REFUSED = "engine_refused"
    """The engine answered 4xx or 5xx; passed on as it came."""
    ENGINE_LOST = "engine_lost"
    """The engine went away after the request was sent: not repeated, it may have run."""
    FORWARDED = "forwarded"
    """The router that it belongs to answered, whatever it said; that router counts the request too."""
    ROUTER_LOST = "router_lost"
    """The router that it belongs to went away while it answered."""
    CLIENT_GONE = "client_gone"
    """The client closed the connection; the engine was told by closing its own."""
    WRONG_METHOD = "method_not_allowed"
    INVALID_BODY = "invalid_body"
    TOO_LARGE = "too_large"
    MODEL_UNKNOWN = "model_not_found"
    SESSION_INVALID = "session_invalid"
    CLASS_MISSING = "class_missing"
    CLASS_UNKNOWN = "class_unknown"
    CLASS_CHANGED = "class_changed"
    CLASS_FULL = "class_full"
    """The class answers Reject and no engine has room."""
    QUEUE_FULL = "queue_full"
    """As many requests of the class wait as may."""
    WAITED_LONG = "waited_long"
    """The request waited as long as its class lets it."""
    NO_ENGINE = "no_engine"
    """No engine could be reached and the class answers Reject."""
    NOT_READY = "not_ready"
    """The router has not read its RolloutPool yet."""
    SHUTTING_DOWN = "shutting_down"
    INTERNAL = "internal_error"
    """A fault of the router."""


@dataclass(frozen=True)
class ErrorAnswer:
    """How an outcome is told to the client."""

    status: int
    """HTTP status; overload outcomes take the class's `overload.status` instead."""
    type: str
    """OpenAI error type."""


_BAD_REQUEST = "invalid_request_error"
_OVERLOADED = "overloaded_error"
_SERVER = "server_error"

ERRORS: dict[Outcome, ErrorAnswer] = {
    Outcome.ENGINE_LOST: ErrorAnswer(502, _SERVER),
    Outcome.ROUTER_LOST: ErrorAnswer(502, _SERVER),
    Outcome.WRONG_METHOD: ErrorAnswer(405, _BAD_REQUEST),
    Outcome.INVALID_BODY: ErrorAnswer(400, _BAD_REQUEST),
    Outcome.TOO_LARGE: ErrorAnswer(413, _BAD_REQUEST),
    Outcome.MODEL_UNKNOWN: ErrorAnswer(404, _BAD_REQUEST),
    Outcome.SESSION_INVALID: ErrorAnswer(400, _BAD_REQUEST),
    Outcome.CLASS_MISSING: ErrorAnswer(400, _BAD_REQUEST),
    Outcome.CLASS_UNKNOWN: ErrorAnswer(400, _BAD_REQUEST),
    Outcome.CLASS_CHANGED: ErrorAnswer(400, _BAD_REQUEST),
    Outcome.CLASS_FULL: ErrorAnswer(503, _OVERLOADED),
    Outcome.QUEUE_FULL: ErrorAnswer(503, _OVERLOADED),
    Outcome.WAITED_LONG: ErrorAnswer(503, _OVERLOADED),
    Outcome.NO_ENGINE: ErrorAnswer(503, _OVERLOADED),
    Outcome.NOT_READY: ErrorAnswer(503, _OVERLOADED),
    Outcome.SHUTTING_DOWN: ErrorAnswer(503, _OVERLOADED),
    Outcome.INTERNAL: ErrorAnswer(500, _SERVER),
}
"""Answers that the router gives itself; the outcomes left out have the engine's answer or none."""

RETRYABLE = frozenset(
    {
        Outcome.CLASS_FULL,
        Outcome.QUEUE_FULL,
        Outcome.WAITED_LONG,
        Outcome.NO_ENGINE,
        Outcome.NOT_READY,
        Outcome.SHUTTING_DOWN,
    }
)
"""Nothing was generated and a later try may succeed: answered with Retry-After and x-should-retry."""

DEFAULT_RETRY_AFTER_SECONDS = 1
"""Retry-After where no class says another, in seconds."""


def error_object(
    message: str, *, error_type: str, code: str, param: str | None = None
) -> dict[str, str | None]:
    """What stands under `error` in the body of every answer that is one, as OpenAI has it."""
    return {"message": message, "type": error_type, "param": param, "code": code}


@dataclass(frozen=True)
class Refusal:
    """Why a request is not served, and what to do about it."""

    outcome: Outcome
    message: str
    """For people: names what was wrong and what to send instead."""
    param: str | None = None
    """The header or body field at fault."""
    status: int | None = None
    """HTTP status, where the class sets its own."""
    retry_after_seconds: int = DEFAULT_RETRY_AFTER_SECONDS
    """Retry-After of retryable refusals, in seconds."""

    @property
    def http_status(self) -> int:
        """The HTTP status of the answer."""
        return self.status or ERRORS[self.outcome].status

    @property
    def retryable(self) -> bool:
        """Whether the client may send the request again."""
        return self.outcome in RETRYABLE


SHUTTING_DOWN = Refusal(Outcome.SHUTTING_DOWN, "this router is shutting down: send the request again")
NOT_READY = Refusal(Outcome.NOT_READY, "the router has not read its RolloutPool yet: try again")
NO_ENGINE = Refusal(Outcome.NO_ENGINE, "no engine of the pool is up: try again in a second")
FAILED = Refusal(Outcome.INTERNAL, "the router failed; its log has the traceback")


def overloaded(workload: WorkloadSpec, outcome: Outcome, why: str) -> Refusal:
    """The answer that a class wants given while it is overloaded."""
    overload = workload.overload
    return Refusal(
        outcome,
        f"class {workload.name!r}: {why}; try again in {overload.retry_after_seconds} s",
        status=overload.status,
        retry_after_seconds=overload.retry_after_seconds,
    )
