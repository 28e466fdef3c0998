"""Which engine has which prompt prefix in its cache: a bounded index fed by the router's own traffic.

A prompt is cut into chunks of CHUNK bytes; a chunk's key hashes it and all before it, so that equal keys mean
equal prefixes. The first key also covers the model (adapter) and `cache_salt`, as in vLLM's prefix cache.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

CHUNK = 256
"""Bytes of prompt text (or of 64-bit token ids) per key."""
MAX_CHUNKS = 512
"""Chunks of one prompt that are hashed: a prefix longer than that tells engines apart no better."""
MAX_KEYS = 100_000
"""Keys in the index; the least recently used go first."""
MAX_HOLDERS = 8
"""Engines remembered for one key, the latest: bounds memory where many engines share a system prompt."""


@dataclass(frozen=True)
class Prompt:
    """A request's prompt as far as it is hashed; read once, since that costs O(its bytes)."""

    space: bytes
    """Model (adapter) and `cache_salt`: prompts are equal within one only."""
    data: bytes

    def prefix_keys(self) -> tuple[bytes, ...]:
        """Keys of the leading whole chunks, longest prefix last."""
        digest, keys = self.space, []
        for start in range(0, len(self.data) - CHUNK + 1, CHUNK):
            digest = blake2b(digest + self.data[start : start + CHUNK], digest_size=8).digest()
            keys.append(digest)
        return tuple(keys)

    def group(self) -> bytes:
        """The same for all samples of one prompt."""
        return blake2b(self.space + b"\0" + self.data, digest_size=8).digest()


def read_prompt(body: Mapping[str, Any]) -> Prompt:
    """The prompt of a request."""
    space = f"{body.get('model')}\0{body.get('cache_salt')}".encode(errors="replace")
    return Prompt(space, _prompt(body))


class PrefixIndex:
    """Engines by prefix key, least recently used first."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._engines: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._max_keys = max_keys

    def __len__(self) -> int:
        return len(self._engines)

    def record(self, keys: Sequence[bytes], engine: str) -> None:
        """An engine holds the prefix with these keys from now on."""
        # The head of a prompt last, so that it is forgotten last: without it the rest counts for nothing.
        for key in reversed(keys):
            others = (name for name in self._engines.get(key, ()) if name != engine)
            self._engines[key] = (engine, *others)[:MAX_HOLDERS]
            self._engines.move_to_end(key)
        while len(self._engines) > self._max_keys:
            self._engines.popitem(last=False)

    def overlaps(self, keys: Sequence[bytes]) -> Counter[str]:
        """Leading chunks that each engine holds, by engine; engines that hold none are absent."""
        found: Counter[str] = Counter()
        holders: set[str] | None = None
        for key in keys:
            engines = self._engines.get(key, ())
            holders = set(engines) if holders is None else holders.intersection(engines)
            if not holders:
                break
            found.update(holders)
        return found

    def forget(self, engine: str) -> None:
        """An engine is gone, or its cache is empty; O(keys)."""
        for key in [key for key, engines in self._engines.items() if engine in engines]:
            self._engines[key] = tuple(name for name in self._engines[key] if name != engine)
            if not self._engines[key]:
                del self._engines[key]


def _prompt(body: Mapping[str, Any]) -> bytes:
    limit = CHUNK * MAX_CHUNKS
    data = bytearray()
    for part in _parts(body):
        data += part
        if len(data) >= limit:
            break
    return bytes(data[:limit])


def _parts(body: Mapping[str, Any]) -> Iterator[bytes]:
    """The prompt in the order of chat templates: tools, then messages."""
    if body.get("tools"):
        yield _text(body["tools"])
    messages = body.get("messages")
    if isinstance(messages, list):
        yield from (_text(message) for message in messages)
        return
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    yield _tokens(prompt) if isinstance(prompt, list) else _text(prompt or "")


def _text(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode(errors="replace")


def _tokens(ids: Sequence[Any]) -> bytes:
    head = ids[: CHUNK * MAX_CHUNKS // 8]
    try:
        return array("q", head).tobytes()
    except (TypeError, OverflowError):
        return _text(head)
