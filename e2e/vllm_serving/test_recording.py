"""The ordinary tests compare with what vLLM does, not with what it once did."""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec

from vllm_serving import recording


def test_recordings_are_what_vllm_says(folder: Path) -> None:
    """The same requests bring about the same events and answers, but for the time."""
    kv_events, weight_sync = recording.record(folder)
    old = "the recording is old: run python -m vllm_serving record"
    assert _timeless(kv_events) == _timeless(json.loads(recording.KV_EVENTS.read_text())), old
    assert weight_sync == json.loads(recording.WEIGHT_SYNC.read_text()), old


def _timeless(recorded: dict[str, Any]) -> dict[str, Any]:
    steps = [{**step, "messages": [_read(each) for each in step["messages"]]} for step in recorded["steps"]]
    return {**recorded, "steps": steps, "replay": [_read(each) for each in recorded["replay"]]}


def _read(frames: recording.Frames) -> tuple[list[str], Any]:
    """All frames but the last, and of that what follows the time."""
    payload = base64.b64decode(frames[-1])
    return frames[:-1], msgspec.msgpack.decode(payload)[1:] if payload else None
