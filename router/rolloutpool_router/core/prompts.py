"""A request's prompt as hashes of its leading chunks, so that equal keys mean equal prefixes.

A prompt is cut into chunks of about 64 tokens; a chunk's key hashes it and, through the key before, all that
comes before it. The first key also covers the model (adapter) and `cache_salt`, as in vLLM's prefix cache.
Text is never parsed: its raw JSON is cut by bytes, and the end of a list or text is left open, so that a
chat's next turn begins with the keys of the last one. Token ids are cut into the engine's own blocks, so that
KV events speak of the same keys (`kv_blocks`).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_64_digest, xxh3_64_intdigest

PrefixKey = int
"""Hash of a prompt up to the end of one of its chunks, 64 bits."""
RawJson = Any
"""JSON of one field as it came: bytes or msgspec.Raw, which is no bytes though its stub says so."""

CHUNK = 256
"""Bytes of prompt text per key."""
CHUNK_TOKENS = 64
"""Token ids per key, rounded to whole KV blocks."""
MAX_CHUNKS = 512
"""Keys of one prompt: a prefix longer than that tells engines apart no better."""
MAX_TOKEN_BYTES = 48 * 1024
"""Bytes of a list of token ids that are parsed, about 8,000 tokens at 30 ns each. What follows is
cut by bytes like text."""
TAIL_CHUNK = 6 * CHUNK_TOKENS
"""Bytes per key of the rest of a list of token ids, at about 6 bytes a token."""
TOKEN_BYTES = 4
"""Bytes of one token id where it is hashed."""
MAX_NAME_BYTES = 1024
"""Longest model name or salt that is decoded; a longer one is hashed as it came."""

_TEXT_BYTES = CHUNK * MAX_CHUNKS
_IDS_BYTES = MAX_TOKEN_BYTES + TAIL_CHUNK * MAX_CHUNKS
_IDS = re.compile(rb"[\s\[]{1,16}[\d-]")
_TOKENS = msgspec.json.Decoder(list[int])
_NAME = msgspec.json.Decoder(str)
_NOTHING = (b"", b"null", b"[]", b'""')
_BEFORE = ("tools", "instructions", "system")
"""Fields that chat templates put before the messages."""
_PROMPTS = ("token_ids", "messages", "prompt", "input")
"""Fields that hold the prompt itself: of /inference/v1/generate, chats, completions and /v1/responses."""


def blocks_per_key(block_size: int) -> int:
    """KV blocks of one key of a prompt of token ids."""
    return max(1, CHUNK_TOKENS // block_size)


def token_space(model: str, cache_salt: str) -> int:
    """What the first key of a prompt of token ids covers beside its tokens."""
    return _space(b"ids", model.encode(errors="replace"), cache_salt.encode(errors="replace"))


def token_bytes(ids: list[int]) -> bytes | None:
    """Token ids as they are hashed, TOKEN_BYTES each; None if one is no token id."""
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError):
        return None


def chained(parent: int, data: bytes, size: int) -> list[PrefixKey]:
    """Keys of the whole pieces of `data`, `size` bytes each, that follow the piece with key `parent`."""
    key = parent
    return [
        key := xxh3_64_intdigest(data[at : at + size], key) for at in range(0, len(data) - size + 1, size)
    ]


class Prompt(NamedTuple):
    """A prompt as far as it is hashed; hashing is left until somebody asks for the keys."""

    model: bytes
    """Model (adapter) that it is for."""
    salt: bytes
    """Its `cache_salt`, and whatever else tells equal tokens apart."""
    head: bytes
    """Raw JSON, with the end of the list or text left open."""
    length: int
    """Bytes of the whole."""
    is_ids: bool
    """Whether `head` is a list of token ids."""
    block_size: int
    """Tokens of a KV block."""

    def prefix_keys(self) -> tuple[PrefixKey, ...]:
        """Keys of the leading whole chunks, longest prefix last; at most MAX_CHUNKS.

        Costs 20 us for 32 KB of text and 200 us for 32 KB of token ids; 0.4 ms at most.
        """
        ids = _leading_ids(self.head) if self.is_ids else None
        if ids is None:
            space = _space(b"text", self.model, self.salt)
            return tuple(chained(space, self.head[:_TEXT_BYTES], CHUNK))
        tokens, rest = ids
        per_key = blocks_per_key(self.block_size)
        blocks = chained(_space(b"ids", self.model, self.salt), tokens, self.block_size * TOKEN_BYTES)
        keys = blocks[per_key - 1 :: per_key]
        keys += chained(keys[-1] if keys else 0, self.head[rest:], TAIL_CHUNK)
        return tuple(islice(keys, MAX_CHUNKS))

    def group(self) -> bytes:
        """The same for all samples of one prompt."""
        return xxh3_64_digest(self.head, _space(b"%d" % self.length, self.model, self.salt))


def read_prompt(fields: Mapping[str, RawJson], *, model: str = "", block_size: int = 16) -> Prompt:
    """The prompt of a request; never raises, whatever the fields hold.

    Args:
        fields: raw JSON of each top-level field of its body.
        model: what a body without a model means.
        block_size: KV block size of the engines, in tokens.
    """
    name = _prompt_field(fields)
    last = _head(fields, name, _IDS_BYTES)
    length = len(last) if len(last) < _IDS_BYTES else len(memoryview(fields[name]))
    is_ids = _IDS.match(last) is not None
    head = _opened(last) if length < _IDS_BYTES else last
    if not is_ids:
        for field in reversed(_BEFORE):
            if (before := _head(fields, field, _TEXT_BYTES)) not in _NOTHING:
                head = before + b"\0" + head
                length += len(before)
        head = head[:_TEXT_BYTES]
    return Prompt(
        model=_name(fields, "model") or model.encode(errors="replace"),
        salt=_name(fields, "cache_salt") + _other(fields),
        head=head,
        length=length,
        is_ids=is_ids,
        block_size=block_size,
    )


def _prompt_field(fields: Mapping[str, RawJson]) -> str:
    """Name of the field that holds the prompt."""
    for name in _PROMPTS:
        if name in fields and _head(fields, name, len(b"null")) not in _NOTHING:
            return name
    return _PROMPTS[0]


def _head(fields: Mapping[str, RawJson], name: str, size: int) -> bytes:
    """The beginning of a field; empty if it is not there."""
    raw = fields.get(name)
    return bytes(memoryview(raw)[:size]) if raw is not None else b""


def _opened(raw: bytes) -> bytes:
    """A list or text without its end."""
    raw = raw.rstrip()
    if raw.endswith(b"]"):
        return raw[:-1].rstrip()
    return raw[:-1] if raw.endswith(b'"') else raw


def _name(fields: Mapping[str, RawJson], field: str) -> bytes:
    """A short text; empty where there is none."""
    raw = _head(fields, field, MAX_NAME_BYTES)
    if raw in _NOTHING:
        return b""
    try:
        return _NAME.decode(raw).encode(errors="replace")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw


def _other(fields: Mapping[str, RawJson]) -> bytes:
    """Images and the like that belong to token ids (/inference/v1/generate)."""
    raw = _head(fields, "features", _TEXT_BYTES)
    return b"" if raw in _NOTHING else b"\0" + xxh3_64_digest(raw)


def _space(kind: bytes, model: bytes, salt: bytes) -> int:
    return xxh3_64_intdigest(b"\0".join((kind, model, salt)))


def _leading_ids(head: bytes) -> tuple[bytes, int] | None:
    """Token ids of the first list in `head`, and where the rest begins; None if it holds something else."""
    start = _IDS.match(head)
    assert start is not None
    first = start.end() - 1
    end = head.find(b"]", first)
    rest = len(head)
    if len(head) > MAX_TOKEN_BYTES and not 0 <= end <= MAX_TOKEN_BYTES:
        end = rest = head.rfind(b",", first, MAX_TOKEN_BYTES)
        if end < 0:
            return None
    inner = head[first:end] if end >= 0 else head[first:]
    try:
        tokens = token_bytes(_TOKENS.decode(b"[" + inner + b"]"))
    except msgspec.DecodeError:
        return None
    return None if tokens is None else (tokens, rest)
