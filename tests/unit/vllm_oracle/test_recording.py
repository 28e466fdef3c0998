"""A recording reads back as it was written, and stays small enough to live in the repository."""

from pathlib import Path

from vllm_oracle.model import run_model
from vllm_oracle.recording import CHOSEN, RECORDED, read_recording, write_recording
from vllm_oracle.shapes import make

MOST_BYTES = 300_000


def test_recording_survives_its_file(tmp_path: Path) -> None:
    traces = [make("thrash", 2), make("aborts", 3), make("no-caching", 4)]
    recording = [(trace, run_model(trace)) for trace in traces]
    write_recording(tmp_path / "recording.json", recording, version="0.0.0")
    assert read_recording(tmp_path / "recording.json") == recording


def test_recorded_traces_are_the_chosen_ones() -> None:
    """A changed shape or choice needs a new recording."""
    recorded = [trace for trace, _ in read_recording(RECORDED)]
    assert recorded == [make(shape, seed) for shape, seed in CHOSEN]
    assert RECORDED.stat().st_size < MOST_BYTES
