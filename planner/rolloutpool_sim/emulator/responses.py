"""OpenAI's responses (`POST /v1/responses`) as vLLM serves them: one message, nothing stored. Pure."""

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Annotated, Any

from pydantic import Field

from rolloutpool_sim.emulator.errors import ApiError, ErrorInfo
from rolloutpool_sim.emulator.forms import About, Form, Result, event
from rolloutpool_sim.emulator.protocol import ChatRequest, GenerationRequest, as_chat
from rolloutpool_sim.emulator.tokenizer import decode


class ResponsesRequest(GenerationRequest):
    """Body of `POST /v1/responses`."""

    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    previous_response_id: str | None = None

    def chat(self) -> ChatRequest:
        """Return the chat completion that asks for the same.

        Raises ApiError for a response that should have been stored: vLLM keeps none either, by default.
        """
        if self.previous_response_id is not None:
            message = f"Response with id '{self.previous_response_id}' not found."
            raise ApiError(ErrorInfo(404, "invalid_request_error", message, "response_id"))
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        said = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        return as_chat(
            self.model_dump(exclude={"input", "instructions", "max_output_tokens", "stream_options"})
            | {"messages": [*system, *_messages(said)], "max_tokens": self.max_output_tokens, "n": 1}
        )


def _messages(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return input items as messages of a chat; reasoning, which has no text to go on with, is left out."""
    made: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            made.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            call = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls = [{"id": item.get("call_id"), "type": "function", "function": call}]
            made.append({"role": "assistant", "tool_calls": calls})
        elif kind == "function_call_output":
            output = item.get("output")
            made.append(
                {"role": "tool", "content": output if isinstance(output, str) else json.dumps(output)}
            )
    return made


class Responses(Form):
    """The answer: a response with one message."""

    def __init__(self, about: About, request: ResponsesRequest) -> None:
        """Answer this request."""
        self._about = about
        self._request = request
        self._message_id = f"msg_{about.public_id}"
        self._numbers = count()

    def whole(self, result: Result) -> dict[str, Any]:
        """As in `Form`."""
        output = result.outputs[0]
        status = "incomplete" if output.finished.reason == "length" else "completed"
        message = self._message([_part(decode(output.tokens))], "completed")
        body = self._response(status, [message])
        if status == "incomplete":
            body["incomplete_details"] = {"reason": "max_output_tokens"}
        return body | {"usage": self._usage(result), "kv_transfer_params": result.kv_transfer_params}

    def opening(self, index: int, prompt_tokens: int) -> bytes:
        """The response begins, then its message, then the message's text."""
        begun = self._response("in_progress", [])
        return (
            self._event("response.created", response=begun)
            + self._event("response.in_progress", response=begun)
            + self._event("response.output_item.added", output_index=0, item=self._message([], "in_progress"))
            + self._event("response.content_part.added", **self._place(), part=_part(""))
        )

    def piece(
        self, index: int, tokens: Sequence[int], *, prompt: Sequence[int], sent: int, reason: str | None
    ) -> bytes:
        """As in `Form`."""
        delta = decode(tokens)
        if not delta:
            return b""
        return self._event("response.output_text.delta", **self._place(), delta=delta, logprobs=[])

    def closing(self, result: Result) -> bytes:
        """The text ends, then its message, then the response: completed, whatever its status, as in vLLM."""
        text = decode(result.outputs[0].tokens)
        message = self._message([_part(text)], "completed")
        return (
            self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            + self._event("response.content_part.done", **self._place(), part=_part(text))
            + self._event("response.output_item.done", output_index=0, item=message)
            + self._event("response.completed", response=self.whole(result))
        )

    def failed(self, error: ErrorInfo) -> bytes:
        """As in `Form`."""
        return self._event("error", code=str(error.status), message=error.message, param=error.param)

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        request, about = self._request, self._about
        return {
            "id": f"resp_{about.public_id}",
            "object": "response",
            "created_at": about.created,
            "model": about.model,
            "status": status,
            "output": output,
            "incomplete_details": None,
            "instructions": request.instructions,
            "metadata": None,
            "max_output_tokens": request.max_output_tokens,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "top_p": 1.0,
            "tool_choice": "auto",
            "tools": request.tools or [],
            "parallel_tool_calls": True,
            "background": False,
            "service_tier": "auto",
            "truncation": "disabled",
            "usage": None,
        }

    def _message(self, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
        head = {"id": self._message_id, "type": "message", "role": "assistant"}
        return head | {"content": content, "status": status}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _usage(self, result: Result) -> dict[str, Any]:
        cached = result.cached if self._about.cached_details else 0
        return {
            "input_tokens": result.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": result.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": result.prompt_tokens + result.completion_tokens,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
