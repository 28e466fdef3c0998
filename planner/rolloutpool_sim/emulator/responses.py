"""Responses of the OpenAI-compatible API, whole and streamed, in the shape that vLLM gives them. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_sim.emulator.tokenizer import decode
from rolloutpool_sim.engine import FinishedRequest

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What the parts of one response have in common. `created` is Unix time in seconds."""

    chat: bool
    response_id: str
    model: str
    created: int
    token_ids: bool
    cached_details: bool

    def head(self, *, chunk: bool = False) -> dict[str, Any]:
        """Return the fields that every response object begins with."""
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.chat else "text_completion"
        return {"id": self.response_id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One finished sequence: its prompt, output tokens, and the engine's account of it."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    finished: FinishedRequest


def usage(
    prompts: Sequence[int], completion_tokens: int, *, cached: int | None, shape: Shape
) -> dict[str, Any]:
    """Return the usage object, for prompts of these lengths and `cached` tokens of the last."""
    total = sum(prompts)
    details = {"cached_tokens": cached} if shape.cached_details and cached is not None else None
    return {
        "prompt_tokens": total,
        "total_tokens": total + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": details,
    }


def choice(shape: Shape, index: int, sequence: Output) -> dict[str, Any]:
    """Return one choice of a whole response."""
    text = decode(sequence.tokens)
    made: dict[str, Any] = {"index": index, "logprobs": None}
    if shape.chat:
        made["message"] = {"role": "assistant", "content": text, "tool_calls": []}
    else:
        made["text"] = text
    made |= {"finish_reason": sequence.finished.reason, "stop_reason": None}
    if shape.token_ids:
        made["token_ids"] = list(sequence.tokens)
        if not shape.chat:
            made["prompt_token_ids"] = list(sequence.prompt)
    return made


def whole(
    shape: Shape,
    sequences: Sequence[Output],
    *,
    prompts: Sequence[int],
    cached: int | None,
    kv_transfer_params: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return a whole response.

    `kv_transfer_params` are for the decode engine, from a prefill-only request.
    """
    completion = sum(len(sequence.tokens) for sequence in sequences)
    body = shape.head()
    body["choices"] = [choice(shape, index, sequence) for index, sequence in enumerate(sequences)]
    body["usage"] = usage(prompts, completion, cached=cached, shape=shape)
    if shape.chat and shape.token_ids:
        body["prompt_token_ids"] = list(sequences[0].prompt)
    body["kv_transfer_params"] = kv_transfer_params
    return body


def event(body: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def role_chunk(shape: Shape, index: int) -> bytes:
    """Return the chunk that opens a chat choice."""
    delta = {"role": "assistant", "content": ""}
    return event(
        shape.head(chunk=True)
        | {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]}
    )


def token_chunk(
    shape: Shape,
    index: int,
    tokens: Sequence[int],
    *,
    finish_reason: str | None,
    running_usage: dict[str, Any] | None,
) -> bytes:
    """Return the chunk of some new tokens of a choice, the last one with its finish reason."""
    text = decode(tokens)
    made: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": finish_reason}
    if shape.chat:
        made["delta"] = {"content": text}
    else:
        made["text"] = text
    if finish_reason is not None:
        made["stop_reason"] = None
    if shape.token_ids:
        made["token_ids"] = list(tokens)
    body = shape.head(chunk=True) | {"choices": [made]}
    if running_usage is not None:
        body["usage"] = running_usage
    return event(body)


def usage_chunk(shape: Shape, final_usage: dict[str, Any]) -> bytes:
    """Return the chunk that `stream_options.include_usage` asks for, last before the end."""
    return event(shape.head(chunk=True) | {"choices": [], "usage": final_usage})
