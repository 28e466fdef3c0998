"""Tokens in, tokens out (`POST /inference/v1/generate`), and what renders a chat for it. Pure."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rolloutpool_sim.emulator.errors import ErrorInfo
from rolloutpool_sim.emulator.forms import DONE, About, Form, Output, Result, event, usage
from rolloutpool_sim.emulator.protocol import (
    GenerationRequest,
    Lenient,
    StreamOptions,
    TokenId,
    max_tokens_of,
)
from rolloutpool_sim.emulator.tokenizer import WORDS, decode

LOGPROB = -math.log(len(WORDS))
"""Of every token: the emulated model says each of its words with the same probability."""


class SamplingParams(Lenient):
    """Those of vLLM's sampling parameters that change something here."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    logprobs: int | None = None


class TokensRequest(Lenient):
    """Body of `POST /inference/v1/generate`."""

    token_ids: Annotated[list[TokenId], Field(min_length=1)]
    sampling_params: SamplingParams
    request_id: str | None = None
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    kv_transfer_params: dict[str, Any] | None = None

    def generation(self) -> GenerationRequest:
        """Return what is to be generated."""
        sampling = self.sampling_params.model_dump(
            include={"max_tokens", "min_tokens", "ignore_eos", "n", "seed", "temperature"}
        )
        rest = self.model_dump(
            include={"model", "stream", "stream_options", "cache_salt", "kv_transfer_params"}
        )
        return GenerationRequest.model_validate(sampling | rest)


def rendered(
    request: GenerationRequest, prompt: Sequence[int], *, request_id: str, max_model_len: int
) -> dict[str, Any]:
    """Return the body of `/inference/v1/generate` that asks for the same as a completion or chat."""
    room = max(max_model_len - len(prompt), 1)
    return {
        "request_id": request_id,
        "token_ids": list(prompt),
        "features": None,
        "sampling_params": {
            "n": request.n or 1,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "seed": request.seed,
            "ignore_eos": request.ignore_eos,
            "max_tokens": min(max_tokens_of(request) or room, room),
            "min_tokens": request.min_tokens,
        },
        "model": request.model,
        "stream": bool(request.stream),
        "stream_options": request.stream_options.model_dump() if request.stream_options else None,
        "cache_salt": request.cache_salt,
        "priority": 0,
    }


class Tokens(Form):
    """The answer of `/inference/v1/generate`."""

    def __init__(self, about: About, request: TokensRequest) -> None:
        """Answer this request."""
        self._about = about
        self._request = request
        options = request.stream_options
        self._include_usage = options is not None and bool(options.include_usage)
        self._continuous_usage = options is not None and bool(options.continuous_usage_stats)
        self._prompt_told = not request.return_token_ids

    def whole(self, result: Result) -> dict[str, Any]:
        """As in `Form`."""
        choices = [
            self._choice(index, output.tokens, output.finished.reason)
            for index, output in enumerate(result.outputs)
        ]
        return self._head() | {
            "created": self._about.created,
            "model": self._about.model,
            "choices": choices,
            "usage": self._usage(result),
            "prompt_logprobs": None,
            "prompt_token_ids": self._prompt(result.outputs[0]),
            "kv_transfer_params": result.kv_transfer_params,
        }

    def piece(
        self, index: int, tokens: Sequence[int], *, prompt: Sequence[int], sent: int, reason: str | None
    ) -> bytes:
        """As in `Form`."""
        chunk = self._head() | {"choices": [self._choice(index, tokens, reason)]}
        if not self._prompt_told:
            self._prompt_told = True
            chunk["prompt_token_ids"] = list(prompt)
        if self._continuous_usage:
            chunk["usage"] = usage(self._about, len(prompt), sent, cached=None)
        return event(chunk)

    def closing(self, result: Result) -> bytes:
        """What `stream_options.include_usage` asks for, and the end."""
        last = event(self._head() | {"choices": [], "usage": self._usage(result)})
        return (last if self._include_usage else b"") + DONE

    def failed(self, error: ErrorInfo) -> bytes:
        """As in `Form`."""
        return event(error.body()) + DONE

    def _head(self) -> dict[str, Any]:
        return {"request_id": f"generate-tokens-{self._about.public_id}"}

    def _choice(self, index: int, tokens: Sequence[int], reason: str | None) -> dict[str, Any]:
        made: dict[str, Any] = {
            "index": index,
            "logprobs": self._logprobs(tokens),
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": list(tokens),
        }
        return made | ({"text": decode(tokens)} if self._request.output_mode == "text" else {})

    def _logprobs(self, tokens: Sequence[int]) -> dict[str, Any] | None:
        if self._request.sampling_params.logprobs is None:
            return None
        entries = ({"token_id": token, "logprob": LOGPROB, "rank": 1} for token in tokens)
        return {"content": [entry | {"top_logprobs": [entry]} for entry in entries]}

    def _prompt(self, output: Output) -> list[int] | None:
        return list(output.prompt) if self._request.return_token_ids else None

    def _usage(self, result: Result) -> dict[str, Any]:
        return usage(self._about, result.prompt_tokens, result.completion_tokens, cached=result.cached)
