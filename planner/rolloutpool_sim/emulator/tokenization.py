"""Endpoints that turn texts into tokens and back; they need no engine."""

import uuid

from aiohttp import web

from rolloutpool_sim.emulator.errors import bad_request
from rolloutpool_sim.emulator.generate import Generator
from rolloutpool_sim.emulator.messages import CountTokensRequest
from rolloutpool_sim.emulator.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    chat_prompt,
    parse_body,
    prompts_of,
)
from rolloutpool_sim.emulator.settings import Settings
from rolloutpool_sim.emulator.tokenizer import detokenize, encode
from rolloutpool_sim.emulator.tokens import rendered


class Tokenization:
    """Handlers of these endpoints."""

    def __init__(self, settings: Settings, generator: Generator) -> None:
        """Speak of the generator's model."""
        self._longest = settings.engine.max_model_len
        self._generator = generator

    async def tokenize(self, http: web.Request) -> web.Response:
        """`POST /tokenize`."""
        request = parse_body(TokenizeRequest, await http.read())
        if (request.prompt is None) == (request.messages is None):
            raise bad_request("give either prompt or messages", "prompt")
        tokens = encode(request.prompt) if request.prompt is not None else chat_prompt(request)
        return web.json_response({"count": len(tokens), "max_model_len": self._longest, "tokens": tokens})

    async def detokenize(self, http: web.Request) -> web.Response:
        """`POST /detokenize`."""
        request = parse_body(DetokenizeRequest, await http.read())
        return web.json_response({"prompt": detokenize(request.tokens)})

    async def count_tokens(self, http: web.Request) -> web.Response:
        """`POST /v1/messages/count_tokens`."""
        request = parse_body(CountTokensRequest, await http.read())
        self._generator.check_model(request.model)
        count = len(chat_prompt(request.chat()))
        return web.json_response(
            {"input_tokens": count, "context_management": {"original_input_tokens": count}}
        )

    async def render_chat(self, http: web.Request) -> web.Response:
        """`POST /v1/chat/completions/render`."""
        request = parse_body(ChatRequest, await http.read())
        self._generator.check_model(request.model)
        request_id = f"chatcmpl-{_public_id(http)}"
        return web.json_response(
            rendered(request, chat_prompt(request), request_id=request_id, max_model_len=self._longest)
        )

    async def render_completion(self, http: web.Request) -> web.Response:
        """`POST /v1/completions/render`: one body for each prompt."""
        request = parse_body(CompletionRequest, await http.read())
        self._generator.check_model(request.model)
        prompts, base = prompts_of(request), f"cmpl-{_public_id(http)}"
        ids = [base] if len(prompts) == 1 else [f"{base}-{index}" for index in range(len(prompts))]
        bodies = [
            rendered(request, prompt, request_id=request_id, max_model_len=self._longest)
            for request_id, prompt in zip(ids, prompts, strict=True)
        ]
        return web.json_response(bodies)


def _public_id(http: web.Request) -> str:
    return http.headers.get("X-Request-Id") or uuid.uuid4().hex
