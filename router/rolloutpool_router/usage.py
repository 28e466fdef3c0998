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
_JSON = json.JSONDecoder()
_OBJECT_LIMIT = 2048
"""Longest usage object read, in bytes."""
_EVENT = b"data:"


class UsageReader:
    """Looks for the last `"usage": {...}` in a JSON answer or an SSE stream, without parsing the rest.

    A quote inside a JSON string is escaped, so generated text cannot be taken for the key.
    """

    __slots__ = ("_events", "_found", "_prompt_bytes", "_tail", "size")

    def __init__(self, prompt_bytes: int) -> None:
        """Read the answer to a request with a body of this many bytes."""
        self.size = 0
        """Bytes that have come."""
        self._prompt_bytes = prompt_bytes
        self._tail = b""
        self._found = b""
        self._events = 0

    def feed(self, chunk: bytes) -> None:
        """See the next bytes of the answer."""
        tail = self._tail
        window = tail + chunk if tail else chunk
        self.size += len(chunk)
        self._events += window.count(_EVENT, max(0, len(tail) - len(_EVENT) + 1))
        at = window.rfind(_KEY)
        if at >= 0:
            self._found = window[at : at + _OBJECT_LIMIT]
        elif self._found and len(self._found) < _OBJECT_LIMIT:
            self._found += chunk[: _OBJECT_LIMIT - len(self._found)]
        self._tail = window[1 - len(_KEY) :]

    def usage(self) -> Usage:
        """Tokens of the answer: as it says, else estimated from bytes (or events of a stream)."""
        prompt_estimate = self._prompt_bytes // BYTES_PER_TOKEN
        found = _parse(self._found, prompt_estimate) if self._found else None
        if found is not None:
            return found
        completion = self._events - 1 if self._events > 1 else self.size // BYTES_PER_TOKEN
        return Usage(prompt_estimate, completion, estimated=True)


def _parse(found: bytes, prompt_estimate: int) -> Usage | None:
    text = found.decode(errors="replace")
    start = text.find("{")
    if start < 0 or text[len(_KEY) : start].strip(": \t\r\n"):
        return None
    try:
        value, _ = _JSON.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if not value:
        return None
    # Names of OpenAI's completions, OpenAI's responses and Anthropic's messages.
    prompt = _first(value, "prompt_tokens", "input_tokens")
    details = _first(value, "prompt_tokens_details", "input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if "cache_read_input_tokens" in value:
        cached = value["cache_read_input_tokens"] if cached is None else cached
        # Anthropic's input_tokens leave out what was read from the cache.
        prompt = _count(prompt) + _count(cached)
    return Usage(
        prompt_tokens=_count(prompt) if prompt is not None else prompt_estimate,
        completion_tokens=_count(_first(value, "completion_tokens", "output_tokens")),
        cached_tokens=_count(cached) if cached is not None else None,
        estimated=prompt is None,
    )


def _first(value: dict[str, Any], name: str, other: str) -> Any:
    """The first of these two fields that is there."""
    found = value.get(name)
    return value.get(other) if found is None else found


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        return 0
    return value if value < MOST_TOKENS else MOST_TOKENS
