"""Anthropic's messages (`POST /v1/messages`) as vLLM serves them: text and tools in, text out. Pure."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from rolloutpool_sim.emulator.errors import ErrorInfo
from rolloutpool_sim.emulator.forms import About, Form, Result, event
from rolloutpool_sim.emulator.protocol import ChatRequest, GenerationRequest, as_chat
from rolloutpool_sim.emulator.tokenizer import decode

PATH = "/v1/messages"
_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}
_BILLING = "x-anthropic-billing-header"
"""Begins a text that Claude Code puts first and changes with every request; vLLM takes it out."""
Blocks = str | list[dict[str, Any]]


class CountTokensRequest(GenerationRequest):
    """Body of `POST /v1/messages/count_tokens`."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    system: Blocks | None = None
    tools: list[dict[str, Any]] | None = None

    def chat(self) -> ChatRequest:
        """Return the chat completion that asks for the same."""
        messages = [{"role": "system", "content": _system(self.system)}] if self.system else []
        for message in self.messages:
            messages += _converted(message)
        return as_chat(
            self.model_dump(exclude={"messages", "system", "tools", "stream_options"})
            | {"messages": messages, "tools": [_tool(tool) for tool in self.tools or ()] or None, "n": 1}
        )


class MessagesRequest(CountTokensRequest):
    """Body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1)]


def _system(blocks: Blocks) -> str:
    if isinstance(blocks, str):
        return blocks
    texts = (block.get("text") or "" for block in blocks)
    return "".join(text for text in texts if not text.startswith(_BILLING))


def _converted(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a message as those of a chat: tool results become messages of their own."""
    content = message.get("content")
    if not isinstance(content, list):
        return [message]
    results = [block for block in content if block.get("type") == "tool_result"]
    calls = [_call(block) for block in content if block.get("type") == "tool_use"]
    rest = [block for block in content if block.get("type") in ("text", "image")]
    made: list[dict[str, Any]] = [
        {"role": "tool", "content": _result(block.get("content"))} for block in results
    ]
    if rest or calls or not results:
        told = {"tool_calls": calls} if calls else {}
        made.append({"role": message.get("role"), "content": rest, **told})
    return made


def _result(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n".join(block.get("text") or "" for block in content if isinstance(block, dict))


def _call(block: dict[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id"), "type": "function", "function": function}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    told = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": told | {"parameters": tool.get("input_schema")}}


class Messages(Form):
    """The answer: a message with one block of text."""

    def __init__(self, about: About) -> None:
        """Answer a request."""
        self._about = about

    def whole(self, result: Result) -> dict[str, Any]:
        """As in `Form`."""
        output = result.outputs[0]
        body = self._message([{"type": "text", "text": decode(output.tokens)}])
        body["usage"] = self._usage(result)
        reason = _STOP_REASONS.get(output.finished.reason)
        told = {"stop_reason": reason, "kv_transfer_params": result.kv_transfer_params}
        return body | {name: value for name, value in told.items() if value is not None}

    def opening(self, index: int, prompt_tokens: int) -> bytes:
        """The message begins, and its text."""
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
        begun = self._message([]) | {"stop_reason": None, "stop_sequence": None, "usage": usage}
        block = {"type": "text", "text": ""}
        return _event("message_start", message=begun) + _event(
            "content_block_start", index=0, content_block=block
        )

    def piece(
        self, index: int, tokens: Sequence[int], *, prompt: Sequence[int], sent: int, reason: str | None
    ) -> bytes:
        """As in `Form`."""
        text = decode(tokens)
        delta = {"type": "text_delta", "text": text}
        return _event("content_block_delta", index=0, delta=delta) if text else b""

    def closing(self, result: Result) -> bytes:
        """The text ends, then the message."""
        reason = _STOP_REASONS.get(result.outputs[0].finished.reason)
        delta = {"stop_reason": reason, "stop_sequence": None}
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=delta, usage=self._usage(result))
            + _event("message_stop")
        )

    def failed(self, error: ErrorInfo) -> bytes:
        """As in `Form`."""
        return event(error_body(error), "error")

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        about = self._about
        head = {"id": f"chatcmpl-{about.public_id}", "type": "message", "role": "assistant"}
        return head | {"content": content, "model": about.model}

    def _usage(self, result: Result) -> dict[str, Any]:
        """Anthropic's input tokens leave out those that were cached."""
        cached = result.cached if self._about.cached_details else 0
        told = {"input_tokens": result.prompt_tokens - cached, "output_tokens": result.completion_tokens}
        return told | ({"cache_read_input_tokens": cached} if self._about.cached_details else {})


def error_body(error: ErrorInfo) -> dict[str, Any]:
    """Return an error as Anthropic's API tells it."""
    return {"type": "error", "error": {"type": error.type, "message": error.message}}


def is_messages(path: str) -> bool:
    """Whether a path belongs to Anthropic's API."""
    return path == PATH or path.startswith(PATH + "/")


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
