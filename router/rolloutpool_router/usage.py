"""How many tokens an answer had, read from its bytes as they pass by."""

from __future__ import annotations

import json
from typing import Any

from rolloutpool_router.core.sessions import Usage

BYTES_PER_TOKEN = 4
"""Bytes of text per token, where an answer does not say."""
_KEY = b'"usage"'
MOST_TOKENS = 2**26
"""Most tokens that an answer may claim; the engine is wrong about more."""
_OBJECT_LIMIT = 2048
"""Longest usage object read, in bytes."""
_EVENT = b"data:"


def estimate_tokens(data: bytes) -> int:
    """Tokens that this many bytes of text are likely to be."""
    return len(data) // BYTES_PER_TOKEN


class UsageReader:
    """Looks for the last `"usage": {...}` in a JSON answer or an SSE stream, without parsing the rest.

    A quote inside a JSON string is escaped, so generated text cannot be taken for the key.
    """

    def __init__(self, prompt: bytes) -> None:
        """Read the answer to a request with this body."""
        self._prompt = prompt
        self._tail = b""
        self._found = b""
        self._bytes = 0
        self._events = 0

    @property
    def empty(self) -> bool:
        """Whether nothing has come yet."""
        return self._bytes == 0

    def feed(self, chunk: bytes) -> None:
        """See the next bytes of the answer."""
        self._bytes += len(chunk)
        self._events += (self._tail[-(len(_EVENT) - 1) :] + chunk).count(_EVENT)
        window = self._tail + chunk
        at = window.rfind(_KEY)
        if at >= 0:
            self._found = window[at : at + _OBJECT_LIMIT]
        elif self._found and len(self._found) < _OBJECT_LIMIT:
            self._found += chunk[: _OBJECT_LIMIT - len(self._found)]
        self._tail = window[-(len(_KEY) - 1) :]

    def usage(self) -> Usage:
        """Tokens of the answer: as it says, else estimated from bytes (or events of a stream)."""
        found = _parse(self._found)
        if found is not None:
            return found
        completion = self._events - 1 if self._events > 1 else self._bytes // BYTES_PER_TOKEN
        return Usage(estimate_tokens(self._prompt), completion, estimated=True)


def _parse(found: bytes) -> Usage | None:
    text = found.decode(errors="replace")
    start = text.find("{")
    if start < 0 or text[len(_KEY) : start].strip(": \t\r\n"):
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        prompt_tokens=_count(value.get("prompt_tokens")),
        completion_tokens=_count(value.get("completion_tokens")),
        cached_tokens=_count(cached) if cached is not None else None,
    )


def _count(value: Any) -> int:
    return min(max(value, 0), MOST_TOKENS) if isinstance(value, int) else 0
