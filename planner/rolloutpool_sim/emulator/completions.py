"""Answers of OpenAI's completions and chat completions, in the shape that vLLM gives them. Pure."""

from collections.abc import Sequence
from typing import Any

from rolloutpool_sim.emulator.errors import ErrorInfo
from rolloutpool_sim.emulator.forms import DONE, About, Form, Output, Result, event, usage
from rolloutpool_sim.emulator.protocol import ChatRequest, GenerationRequest
from rolloutpool_sim.emulator.tokenizer import decode


class Completions(Form):
    """`POST /v1/completions` and `POST /v1/chat/completions`."""

    def __init__(self, about: About, request: GenerationRequest) -> None:
        """Answer this request."""
        self._about = about
        self._chat = isinstance(request, ChatRequest)
        self._token_ids = bool(request.return_token_ids)
        options = request.stream_options
        self._include_usage = options is not None and bool(options.include_usage)
        self._continuous_usage = options is not None and bool(options.continuous_usage_stats)

    def whole(self, result: Result) -> dict[str, Any]:
        """As in `Form`."""
        body = self._head()
        body["choices"] = [self._choice(index, output) for index, output in enumerate(result.outputs)]
        body["usage"] = self._usage(result)
        if self._chat and self._token_ids:
            body["prompt_token_ids"] = list(result.outputs[0].prompt)
        body["kv_transfer_params"] = result.kv_transfer_params
        return body

    def opening(self, index: int, prompt_tokens: int) -> bytes:
        """The chunk that opens a chat choice."""
        if not self._chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def piece(
        self, index: int, tokens: Sequence[int], *, prompt: Sequence[int], sent: int, reason: str | None
    ) -> bytes:
        """As in `Form`."""
        text = decode(tokens)
        made: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": reason}
        if self._chat:
            made["delta"] = {"content": text}
        else:
            made["text"] = text
        if reason is not None:
            made["stop_reason"] = None
        if self._token_ids:
            made["token_ids"] = list(tokens)
        if not self._continuous_usage:
            return self._chunk([made])
        return self._chunk([made], usage=usage(self._about, len(prompt), sent, cached=None))

    def closing(self, result: Result) -> bytes:
        """What `stream_options.include_usage` asks for, and the end."""
        return (self._chunk([], usage=self._usage(result)) if self._include_usage else b"") + DONE

    def failed(self, error: ErrorInfo) -> bytes:
        """As in `Form`."""
        return event(error.body()) + DONE

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        text = decode(output.tokens)
        made: dict[str, Any] = {"index": index, "logprobs": None}
        if self._chat:
            made["message"] = {"role": "assistant", "content": text, "tool_calls": []}
        else:
            made["text"] = text
        made |= {"finish_reason": output.finished.reason, "stop_reason": None}
        if self._token_ids:
            made["token_ids"] = list(output.tokens)
            if not self._chat:
                made["prompt_token_ids"] = list(output.prompt)
        return made

    def _head(self, suffix: str = "") -> dict[str, Any]:
        """Return the fields that every object begins with."""
        about = self._about
        prefix, kind = ("chatcmpl", "chat.completion" + suffix) if self._chat else ("cmpl", "text_completion")
        response_id = f"{prefix}-{about.public_id}"
        return {"id": response_id, "object": kind, "created": about.created, "model": about.model}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return event(self._head(".chunk") | {"choices": choices} | more)

    def _usage(self, result: Result) -> dict[str, Any]:
        return usage(self._about, result.prompt_tokens, result.completion_tokens, cached=result.cached)
