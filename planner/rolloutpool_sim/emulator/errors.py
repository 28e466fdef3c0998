"""Errors of the HTTP API, in the shape that vLLM gives them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """One error of the API: HTTP status, type and message, and the field that is wrong if one is."""

    status: int
    type: str
    message: str
    param: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the response."""
        return {
            "error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        }


class ApiError(Exception):
    """Raised by a handler to answer with an error."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


def bad_request(message: str, param: str | None = None) -> ApiError:
    """The request is wrong."""
    return ApiError(ErrorInfo(400, "BadRequestError", message, param))


def not_found(message: str, param: str | None = None) -> ApiError:
    """What the request names does not exist."""
    return ApiError(ErrorInfo(404, "NotFoundError", message, param))


def unavailable(message: str) -> ApiError:
    """The server takes no requests at present."""
    return ApiError(ErrorInfo(503, "ServiceUnavailableError", message))


LOAD_FAILED = ErrorInfo(500, "InternalServerError", "Internal server error: the KV cache could not be loaded")
"""What vLLM answers under `kv_load_failure_policy: fail` when the prefill engine's KV cannot be fetched."""
