"""KV events of an engine, as vLLM publishes them (`vllm/distributed/kv_events.py`), in both of its encodings.

A message's payload is msgpack: a batch `[time, [event, ...], data parallel rank]`, in some versions a map.
Since June 2026 an event is a map with a `type`; before, it was an array that begins with it. Events of other
types and fields that are not needed here are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

END = -1
"""Sequence number that ends a replay."""

_SEQ_BYTES = 8
_HASH_BYTES = 8
_MASK = 2 ** (8 * _HASH_BYTES) - 1

BlockHash = int | bytes
"""vLLM's hash of a block, all before it and what else its contents depend on."""


class BlockStored(msgspec.Struct, tag=True, tag_field="type"):
    """Blocks that follow each other entered the prefix cache."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    """Hash of the block before them; None if they begin a prompt."""
    token_ids: list[int]
    block_size: int
    lora_id: Any = None
    medium: str | None = None
    """Where they are: GPU, CPU, ..."""
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    """What else the hash of each block covers: adapter, images, `cache_salt` (first block), embeddings."""
    group_idx: int | None = None
    """KV cache group, of models that mix kinds of attention."""
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, tag_field="type"):
    """Blocks left the prefix cache."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, tag_field="type"):
    """The prefix cache is empty."""


class _BlockStoredArray(BlockStored, array_like=True, tag="BlockStored"):
    pass


class _BlockRemovedArray(BlockRemoved, array_like=True, tag="BlockRemoved"):
    pass


class _AllBlocksClearedArray(AllBlocksCleared, array_like=True, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]


class _BatchMap(msgspec.Struct):
    events: list[msgspec.Raw]


class _Type(msgspec.Struct):
    type: str


class _TypeArray(msgspec.Struct, array_like=True):
    type: str


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared

_BATCH = msgspec.msgpack.Decoder(_Batch)
_BATCH_MAP = msgspec.msgpack.Decoder(_BatchMap)
_EVENT: msgspec.msgpack.Decoder[KvEvent] = msgspec.msgpack.Decoder(
    _BlockStoredArray | _BlockRemovedArray | _AllBlocksClearedArray
)
_EVENT_MAP: msgspec.msgpack.Decoder[KvEvent] = msgspec.msgpack.Decoder(
    BlockStored | BlockRemoved | AllBlocksCleared
)
_TYPE = msgspec.msgpack.Decoder(_TypeArray)
_TYPE_MAP = msgspec.msgpack.Decoder(_Type)
_KNOWN = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})


class Malformed(ValueError):
    """A message that is none of vLLM's."""


def raw_events(payload: bytes) -> list[msgspec.Raw]:
    """The events of a batch, undecoded.

    Raises:
        Malformed: the payload is no batch.
    """
    try:
        return (_BATCH_MAP if _is_map(payload) else _BATCH).decode(payload).events
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from None


def decode_event(raw: msgspec.Raw) -> KvEvent | None:
    """An event; None for one of an unknown type.

    Raises:
        Malformed: it has a known type and wrong fields, or none.
    """
    mapped = _is_map(memoryview(raw))
    try:
        return (_EVENT_MAP if mapped else _EVENT).decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if _type_of(raw, mapped) in _KNOWN:
            raise Malformed(str(error)) from None
        return None


def numbers(hashes: Sequence[BlockHash]) -> list[int]:
    """Hashes as numbers of 64 bits: of longer ones the last bytes, as vLLM shortens them itself."""
    return [number(block) for block in hashes]


def number(block: BlockHash) -> int:
    """A hash as a number of 64 bits."""
    return block & _MASK if isinstance(block, int) else int.from_bytes(block[-_HASH_BYTES:], "big")


def read_seq(frame: bytes) -> int:
    """A sequence number.

    Raises:
        Malformed: the frame has another length.
    """
    if len(frame) != _SEQ_BYTES:
        raise Malformed(f"a sequence number has {_SEQ_BYTES} bytes, not {len(frame)}")
    return int.from_bytes(frame, "big", signed=True)


def write_seq(seq: int) -> bytes:
    """A sequence number as it goes over the wire."""
    return seq.to_bytes(_SEQ_BYTES, "big", signed=True)


def _is_map(raw: bytes | memoryview) -> bool:
    """Whether msgpack begins with a map."""
    return len(raw) > 0 and (0x80 <= raw[0] <= 0x8F or raw[0] in (0xDE, 0xDF))


def _type_of(raw: msgspec.Raw, mapped: bool) -> str:
    """The event's type; one of the known ones if it cannot be told, since that is no event."""
    try:
        return (_TYPE_MAP if mapped else _TYPE).decode(raw).type
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "BlockStored"
