"""What a vLLM engine says, recorded for the ordinary tests, which run without vLLM.

KV events are kept as they came over ZMQ, with the requests that caused them; of the endpoints for weight sync
status and body.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import zmq

from vllm_install import environment
from vllm_serving.asking import text, tokens, user
from vllm_serving.engines import BLOCK_SIZE, Engine, settings
from vllm_serving.model import NAME

DATA = Path(__file__).parents[2] / "tests" / "unit" / "router" / "data"
KV_EVENTS = DATA / "vllm_0_32_kv_events.json"
WEIGHT_SYNC = DATA / "vllm_0_32_weight_sync.json"

BLOCKS, MAX_MODEL_LEN = 24, 512
"""So few blocks that one more prompt evicts another."""
QUIET_MILLISECONDS = 1000
START = (0).to_bytes(8, "big")
END = (-1).to_bytes(8, "big", signed=True)

Frames = list[str]
"""The frames of one message, in base64."""


def record(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run an engine (its log goes to `folder`) through both scenarios: KV events, weight sync.

    Raises:
        ServingError: the engine did not start.
    """
    engine = Engine(replace(settings("recorded")[0], blocks=BLOCKS, max_model_len=MAX_MODEL_LEN), folder)
    try:
        with subscribed(engine) as socket:
            engine.wait()
            steps = [_kv_step(engine, socket, *step) for step in _kv_scenario()]
        told = {"vllm": environment.vllm_version(), "block_size": BLOCK_SIZE, "steps": steps}
        return {**told, "replay": replay(engine)}, {
            "vllm": environment.vllm_version(),
            "answers": [_answer(engine, *each) for each in _weight_sync_scenario()],
        }
    finally:
        engine.stop()


def write(target: Path, recording: dict[str, Any]) -> None:
    """Write a recording."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(recording, indent=1) + "\n")


@contextmanager
def subscribed(engine: Engine) -> Iterator["zmq.Socket[bytes]"]:
    """A subscriber of an engine's KV events; one made before the engine serves misses none."""
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    try:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(f"tcp://127.0.0.1:{engine.settings.events_port}")
        yield socket
    finally:
        context.destroy(linger=0)


def replay(engine: Engine) -> list[Frames]:
    """All that the engine still has of its KV events, as it answers for number 0 on.

    vLLM answers one request with many messages, which a REQ socket would not take.
    """
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.connect(f"tcp://127.0.0.1:{engine.settings.replay_port}")
        socket.send_multipart([b"", START])
        messages: list[list[bytes]] = []
        while not messages or messages[-1][-2] != END:
            messages.append(socket.recv_multipart())
        return [_frames(each) for each in messages]
    finally:
        context.destroy(linger=0)


def _kv_scenario() -> Iterator[tuple[str, str, dict[str, Any], dict[str, str]]]:
    """Name, path, body and headers of each request."""
    first = tokens(1, 70)
    body = {"model": NAME, "max_tokens": 4, "temperature": 0}
    completions, session = "/v1/completions", {"X-Session-ID": "agent-1"}
    yield "a prompt of token ids", completions, {**body, "prompt": first}, {}
    yield "the same and more", completions, {**body, "prompt": [*first, *tokens(2, 60)]}, session
    yield "another cache salt", completions, {**body, "prompt": first, "cache_salt": "7"}, {}
    yield "a chat", "/v1/chat/completions", {**body, "messages": [user(text(3, 60))]}, session
    yield "a prompt that evicts", completions, {**body, "prompt": tokens(4, 480)}, {}
    yield "a reset", "/reset_prefix_cache", {}, {}
    yield "the first prompt again", completions, {**body, "prompt": first}, {}


def _kv_step(
    engine: Engine,
    socket: "zmq.Socket[bytes]",
    name: str,
    path: str,
    body: dict[str, Any],
    headers: dict[str, str],
) -> dict[str, Any]:
    httpx.post(engine.url + path, json=body, headers=headers, timeout=60).raise_for_status()
    messages = []
    while socket.poll(QUIET_MILLISECONDS):
        messages.append(_frames(socket.recv_multipart()))
    return {"name": name, "path": path, "headers": headers, "body": body, "messages": messages}


def _frames(message: Sequence[bytes]) -> Frames:
    return [base64.b64encode(frame).decode() for frame in message]


def _weight_sync_scenario() -> Iterator[tuple[str, str, Any]]:
    """Method, target and body."""
    yield "GET", "/get_world_size", None
    yield "GET", "/weight_info", None
    yield "GET", "/is_paused", None
    yield "POST", "/pause?mode=keep", None
    yield "GET", "/is_paused", None
    yield "POST", "/pause?mode=keep", None
    yield "POST", "/resume", None
    yield "POST", "/resume", None
    yield "POST", "/pause?mode=sometimes", None
    yield "POST", "/abort_requests", {}
    yield "POST", "/reset_prefix_cache", None
    yield "POST", "/reset_mm_cache", None
    yield "POST", "/reset_encoder_cache", None
    yield "POST", "/update_weight_version", {}
    yield "POST", "/update_weight_version", {"new_version": "step-1"}
    yield "GET", "/weight_info", None
    yield "POST", "/weight_checker", {"action": "checksum"}
    yield "POST", "/collective_rpc", {}
    yield "POST", "/sleep?level=1", None
    yield "GET", "/is_sleeping", None
    yield "POST", "/wake_up", None
    yield "GET", "/is_sleeping", None
    yield "POST", "/init_weight_transfer_engine", {}
    yield "POST", "/update_weights", {}
    yield "POST", "/update_weights", {"update_info": {}}
    yield "POST", "/finish_weight_update", {}
    yield "POST", "/start_weight_update", {}
    yield "POST", "/start_weight_update", {}
    yield "POST", "/shutdown_weight_transfer_engine", {}


def _answer(engine: Engine, method: str, target: str, body: Any) -> dict[str, Any]:
    sent = {} if body is None else {"json": body}
    answer = httpx.request(method, engine.url + target, timeout=60, **sent)
    return {
        "method": method,
        "target": target,
        "body": body,
        "status": answer.status_code,
        "content_type": answer.headers.get("content-type"),
        "answer": answer.text,
    }
