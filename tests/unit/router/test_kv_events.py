"""KV events on the wire: both of vLLM's encodings, and whatever else may come."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.kv_events import (
    END,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    Malformed,
    decode_event,
    number,
    raw_events,
    read_seq,
    write_seq,
)

encode = msgspec.msgpack.encode
STORED = {
    "type": "BlockStored",
    "block_hashes": [2**64 - 1, b"\x01" * 32],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}


def decoded(event: Any) -> KvEvent | None:
    (raw,) = raw_events(encode([1.5, [event], 0]))
    return decode_event(raw)


def stored(**fields: Any) -> BlockStored:
    known = {name: value for name, value in STORED.items() if name != "type"}
    return BlockStored(**{**known, **fields})


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(STORED, stored(), id="stored"),
        pytest.param(
            {**STORED, "extra_keys": [["salt"], None], "group_idx": 0, "session_id": "s", "new": {}},
            stored(extra_keys=[["salt"], None], group_idx=0),
            id="stored-with-more-fields",
        ),
        pytest.param(list(STORED.values()), stored(), id="stored-array"),
        pytest.param(
            ["BlockStored", [5], 4, [1, 2], 2, None],
            stored(block_hashes=[5], parent_block_hash=4, token_ids=[1, 2], medium=None),
            id="stored-array-of-2025",
        ),
        pytest.param(
            {"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU"},
            BlockRemoved([7], "CPU"),
            id="removed",
        ),
        pytest.param(["BlockRemoved", [7]], BlockRemoved([7]), id="removed-array"),
        pytest.param({"type": "AllBlocksCleared"}, AllBlocksCleared(), id="cleared"),
        pytest.param(["AllBlocksCleared"], AllBlocksCleared(), id="cleared-array"),
        pytest.param({"type": "BlockMoved", "from": "GPU"}, None, id="another-type"),
        pytest.param(["BlockMoved", 1, 2], None, id="another-type-array"),
    ],
)
def test_events_are_read_in_both_encodings(event: Any, expected: KvEvent | None) -> None:
    found = decoded(event)

    assert found == expected or msgspec.structs.asdict(found) == msgspec.structs.asdict(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param({**STORED, "token_ids": "no"}, id="token-ids-are-text"),
        pytest.param({**STORED, "block_hashes": [None]}, id="no-hash"),
        pytest.param({**STORED, "block_size": 1.5}, id="block-size-is-a-fraction"),
        pytest.param({"type": "BlockRemoved"}, id="fields-missing"),
        pytest.param(["BlockStored"], id="array-too-short"),
        pytest.param({"a": 1}, id="no-type"),
        pytest.param([], id="empty-array"),
        pytest.param(7, id="a-number"),
        pytest.param(None, id="nil"),
    ],
)
def test_events_that_are_none_are_refused(event: Any) -> None:
    with pytest.raises(Malformed):
        decoded(event)


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        pytest.param(encode([1.0, [STORED, STORED]]), 2, id="without-rank"),
        pytest.param(encode([1.0, [], 3]), 0, id="empty"),
        pytest.param(encode({"type": "KVEventBatch", "ts": 1.0, "events": [STORED]}), 1, id="map"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"\xc1", None, id="no-msgpack"),
        pytest.param(encode([1.0]), None, id="no-events"),
        pytest.param(encode([1.0, 5]), None, id="events-are-a-number"),
        pytest.param(encode("text"), None, id="text"),
        pytest.param(b"\x91" * 100_000, None, id="deep-nesting"),
    ],
)
def test_batches(payload: bytes, count: int | None) -> None:
    if count is None:
        with pytest.raises(Malformed):
            raw_events(payload)
    else:
        assert len(raw_events(payload)) == count


@given(st.binary(max_size=200))
def test_garbage_is_malformed_and_nothing_worse(payload: bytes) -> None:
    try:
        for raw in raw_events(payload):
            decode_event(raw)
        decode_event(msgspec.Raw(payload))
    except Malformed:
        pass


def test_hashes_are_compared_by_their_last_64_bits() -> None:
    assert number(2**64 - 1) == number(-1) == number(b"\x05" + b"\xff" * 8)
    assert number(b"") == 0


@pytest.mark.parametrize("seq", [0, 1, 2**40, END])
def test_sequence_numbers(seq: int) -> None:
    assert read_seq(write_seq(seq)) == seq


@pytest.mark.parametrize("frame", [b"", b"1234567", b"123456789"])
def test_sequence_numbers_have_8_bytes(frame: bytes) -> None:
    with pytest.raises(Malformed):
        read_seq(frame)
