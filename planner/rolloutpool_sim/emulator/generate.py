"""Answers every API that generates, whole or streamed, from the driver's sequences."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from aiohttp import web

from rolloutpool_sim.emulator.completions import Completions
from rolloutpool_sim.emulator.driver import Driver, Generation
from rolloutpool_sim.emulator.errors import LOAD_FAILED, ApiError, bad_request, not_found, unavailable
from rolloutpool_sim.emulator.forms import About, Form, Output, Result
from rolloutpool_sim.emulator.messages import Messages, MessagesRequest
from rolloutpool_sim.emulator.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    chat_prompt,
    check_options,
    parse_body,
    prompts_of,
    sequences,
    transfer_of,
)
from rolloutpool_sim.emulator.responses import Responses, ResponsesRequest
from rolloutpool_sim.emulator.settings import Settings
from rolloutpool_sim.emulator.tokens import Tokens, TokensRequest
from rolloutpool_sim.emulator.transfer import KvReader, Remote
from rolloutpool_sim.engine import EngineRequest, FinishedRequest, Transfer

FormOf = Callable[[About], Form]


class Generator:
    """Handlers of the endpoints that generate.

    `port` is where this server listens, told to decode engines.
    """

    def __init__(self, settings: Settings, driver: Driver, reader: KvReader) -> None:
        self.engine_id = str(uuid.uuid4())
        self.port = settings.port
        self.draining = False
        self._received = 0
        self._settings = settings
        self._driver = driver
        self._reader = reader

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        request = parse_body(CompletionRequest, await http.read())
        return await self._generate(
            http, request, prompts_of(request), lambda about: Completions(about, request)
        )

    async def chat_completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        request = parse_body(ChatRequest, await http.read())
        return await self._chat(http, request, lambda about: Completions(about, request))

    async def responses(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/responses`."""
        request = parse_body(ResponsesRequest, await http.read())
        return await self._chat(http, request.chat(), lambda about: Responses(about, request))

    async def messages(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/messages`."""
        request = parse_body(MessagesRequest, await http.read())
        return await self._chat(http, request.chat(), Messages)

    async def tokens(self, http: web.Request) -> web.StreamResponse:
        """`POST /inference/v1/generate`."""
        request = parse_body(TokensRequest, await http.read())
        return await self._generate(
            http,
            request.generation(),
            [request.token_ids],
            lambda about: Tokens(about, request),
            public_id=request.request_id,
        )

    def check_model(self, name: str | None) -> None:
        """Raise ApiError (404) for a model that is not served; None names none."""
        known = self._settings.served_names
        if name is not None and name not in known:
            raise not_found(f"The model `{name}` does not exist. Valid aliases: {', '.join(known)}.", "model")

    async def _chat(self, http: web.Request, request: ChatRequest, form_of: FormOf) -> web.StreamResponse:
        return await self._generate(http, request, [chat_prompt(request)], form_of)

    async def _generate(
        self,
        http: web.Request,
        request: GenerationRequest,
        prompts: list[list[int]],
        form_of: FormOf,
        *,
        public_id: str | None = None,
    ) -> web.StreamResponse:
        transfer, remote = self._transfer(request, prompts)
        try:
            self._check(request, prompts)
        except ApiError:
            if remote is not None:
                self._reader.release(remote)
            raise
        self._received += 1
        client_id = http.headers.get("X-Request-Id") or public_id
        public_id = client_id or uuid.uuid4().hex
        form = form_of(
            About(
                public_id=public_id,
                model=request.model or self._settings.served_names[0],
                created=int(time.time()),
                cached_details=self._settings.prompt_tokens_details,
            )
        )
        # Ids may repeat among clients, so the engine's own carries a number; without one the number seeds
        # the output.
        request_id, sample_id = f"{public_id}-{self._received}", client_id or f"#{self._received}"
        wanted = sequences(
            request,
            prompts,
            request_id=request_id,
            sample_id=sample_id,
            transfer=transfer,
            max_model_len=self._settings.engine.max_model_len,
            server_seed=self._settings.seed,
            mean_output_tokens=self._settings.mean_output_tokens,
        )
        async with self._running(wanted, remote) as generations:
            if request.stream:
                return await self._stream(http, request, form, generations)
            return await self._whole(request, form, generations)

    def _check(self, request: GenerationRequest, prompts: Sequence[Sequence[int]]) -> None:
        if self.draining:
            raise unavailable("the server is shutting down")
        self.check_model(request.model)
        check_options(request, prompts)
        for prompt in prompts:
            try:
                self._driver.engine.check(len(prompt))
            except ValueError as error:
                raise bad_request(str(error), "input_tokens") from error

    @contextlib.asynccontextmanager
    async def _running(
        self, wanted: Sequence[EngineRequest], remote: Remote | None
    ) -> AsyncIterator[list[Generation]]:
        """Run a request's sequences; whatever ends the block, a client that left above all, ends them too."""
        ids = [sequence.request_id for sequence in wanted]
        try:
            if remote is not None:
                self._reader.watch(ids[0], remote)
            yield [self._driver.submit(sequence) for sequence in wanted]
        finally:
            self._driver.abort(ids)
            if remote is not None:
                self._reader.drop(ids[0])

    def _transfer(
        self, request: GenerationRequest, prompts: Sequence[Sequence[int]]
    ) -> tuple[Transfer, Remote | None]:
        """Read `kv_transfer_params`, which an engine without a KV connector ignores."""
        if not self._settings.kv_transfer:
            return Transfer.NONE, None
        transfer = transfer_of(request)
        if transfer is Transfer.NONE:
            return transfer, None
        if len(prompts) > 1 or (request.n or 1) > 1:
            raise bad_request("kv_transfer_params needs one prompt and n=1", "kv_transfer_params")
        if transfer is Transfer.REMOTE_DECODE:
            return transfer, None
        try:
            return transfer, Remote.of(request.kv_transfer_params or {})
        except ValueError as error:
            raise bad_request(f"remote_port: {error}", "kv_transfer_params") from error

    async def _whole(
        self, request: GenerationRequest, form: Form, generations: list[Generation]
    ) -> web.StreamResponse:
        ends = [await generation.end() for generation in generations]
        if any(end.reason == "error" for end in ends):
            raise ApiError(LOAD_FAILED)
        return web.json_response(form.whole(self._result(request, generations, ends)))

    def _result(
        self, request: GenerationRequest, generations: list[Generation], ends: list[FinishedRequest]
    ) -> Result:
        outputs = [
            Output(prompt=generation.request.prompt, tokens=generation.tokens, finished=end)
            for generation, end in zip(generations, ends, strict=True)
        ]
        return Result(
            outputs=outputs,
            prompts=[len(output.prompt) for output in outputs[:: request.n or 1]],
            cached=_cached(request, ends[-1]),
            kv_transfer_params=self._handover(ends[0]),
        )

    def _handover(self, end: FinishedRequest) -> dict[str, Any] | None:
        """Return what a decode engine needs to read the KV of a prefill-only request."""
        if not end.lease:
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(end.block_ids)],
            "remote_engine_id": self.engine_id,
            "remote_request_id": end.request_id,
            "remote_host": self._settings.side_channel_host,
            "remote_port": self.port,
            "tp_size": self._settings.tensor_parallel,
            "dcp_size": 1,
            "pp_size": self._settings.pipeline_parallel,
            "remote_num_tokens": end.computed_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": end.cached_tokens,
        }

    async def _stream(
        self, http: web.Request, request: GenerationRequest, form: Form, generations: list[Generation]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        try:
            await asyncio.gather(
                *(
                    _stream_one(response, form, index, generation)
                    for index, generation in enumerate(generations)
                )
            )
            ends = [await generation.end() for generation in generations]
            if any(end.reason == "error" for end in ends):
                await response.write(form.failed(LOAD_FAILED))
            else:
                await response.write(form.closing(self._result(request, generations, ends)))
        except ConnectionResetError:
            pass  # the client left: the sequences are aborted on the way out
        return response


async def _stream_one(response: web.StreamResponse, form: Form, index: int, generation: Generation) -> None:
    prompt = generation.request.prompt
    await _write(response, form.opening(index, len(prompt)))
    sent = 0
    while True:
        await generation.more_than(sent)
        new = generation.tokens[sent:]
        sent += len(new)
        end = generation.finished
        if end is not None and end.reason == "error":
            return
        reason = end.reason if end is not None else None
        await _write(response, form.piece(index, new, prompt=prompt, sent=sent, reason=reason))
        if end is not None:
            return


async def _write(response: web.StreamResponse, events: bytes) -> None:
    if events:
        await response.write(events)


def _cached(request: GenerationRequest, end: FinishedRequest) -> int:
    """Cached tokens to report: after a remote prefill those that the prefill engine found, if it told."""
    remote = (request.kv_transfer_params or {}).get("remote_prefill_cached_tokens")
    if end.remote_tokens and isinstance(remote, int):
        return remote
    return end.cached_tokens + end.remote_tokens
