"""The emulator's HTTP application: its endpoints, and the parts that serve them."""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from rolloutpool_sim.emulator.development import Development
from rolloutpool_sim.emulator.driver import Driver
from rolloutpool_sim.emulator.errors import ApiError, ErrorInfo, not_found
from rolloutpool_sim.emulator.generate import Generator
from rolloutpool_sim.emulator.kv_events import EventRecorder, Publisher
from rolloutpool_sim.emulator.messages import error_body, is_messages
from rolloutpool_sim.emulator.metrics import Metrics
from rolloutpool_sim.emulator.protocol import parse_body
from rolloutpool_sim.emulator.settings import Settings
from rolloutpool_sim.emulator.tokenization import Tokenization
from rolloutpool_sim.emulator.transfer import HEARTBEAT_PATH, PULL_PATH, KvReader
from rolloutpool_sim.engine import Engine, StepResult

_MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_TRANSFER_SECONDS = 3600
VERSION = "0.32.0+emulator"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _KvMessage(BaseModel):
    model_config = ConfigDict(frozen=True)

    engine_id: str
    request_id: str
    seconds: float = Field(default=0.0, ge=0, le=_MAX_TRANSFER_SECONDS)


class Emulator:
    """One emulated vLLM server: engine, driver, metrics and endpoints.

    Make it inside a running event loop.
    """

    def __init__(self, settings: Settings, *, created: int) -> None:
        self.settings = settings
        self.engine = Engine(settings.engine, settings.speed)
        self.metrics = Metrics(
            self.engine, model_name=settings.served_names[0], kv_transfer=settings.kv_transfer
        )
        self.reader = KvReader(settings.engine.kv_lease_seconds, settings.time_scale)
        self.driver = Driver(
            self.engine,
            time_scale=settings.time_scale,
            on_step=self._step_ended,
            on_finished=self.metrics.finished,
            on_load=self.reader.fetch,
        )
        self.reader.driver = self.driver
        self.generator = Generator(settings, self.driver, self.reader)
        self.tokenization = Tokenization(settings, self.generator)
        self.development = Development(settings, self.driver)
        self.publisher: Publisher | None = None
        if settings.kv_events is not None:
            recorder = EventRecorder(settings.engine.block_size)
            self.engine.pool.watcher = recorder
            self.publisher = Publisher(settings.kv_events, recorder)
        self._created = created

    def application(self) -> web.Application:
        """Return the application; its clean-up closes the connections to other engines."""
        app = web.Application(middlewares=[_errors], client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/completions", self.generator.completions)
        app.router.add_post("/v1/chat/completions", self.generator.chat_completions)
        app.router.add_post("/v1/responses", self.generator.responses)
        app.router.add_post("/v1/messages", self.generator.messages)
        app.router.add_post("/inference/v1/generate", self._scale_out(self.generator.tokens))
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ping", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/tokenize", self.tokenization.tokenize)
        app.router.add_post("/detokenize", self.tokenization.detokenize)
        app.router.add_post("/v1/messages/count_tokens", self.tokenization.count_tokens)
        app.router.add_post("/v1/completions/render", self._scale_out(self.tokenization.render_completion))
        app.router.add_post("/v1/chat/completions/render", self._scale_out(self.tokenization.render_chat))
        app.router.add_post(PULL_PATH, self._pull)
        app.router.add_post(HEARTBEAT_PATH, self._heartbeat)
        if self.settings.dev_mode:
            app.add_routes(self.development.routes())
        app.on_cleanup.append(self._close)
        return app

    def _scale_out(self, handler: Handler) -> Handler:
        """An endpoint that vLLM has with --enable-scale-out alone."""
        return handler if self.settings.scale_out else _without_scale_out

    def _step_ended(self, result: StepResult) -> None:
        self.metrics.step(result)
        if self.publisher is not None:
            self.publisher.publish()

    async def _close(self, _app: web.Application) -> None:
        await self.reader.close()
        if self.publisher is not None:
            await self.publisher.close()

    async def _models(self, _http: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": self.settings.model,
                "parent": None,
                "max_model_len": self.settings.engine.max_model_len,
                "permission": [],
            }
            for name in self.settings.served_names
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _health(self, _http: web.Request) -> web.Response:
        return web.Response(status=503 if self.generator.draining else 200)

    async def _version(self, _http: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _metrics(self, _http: web.Request) -> web.Response:
        return web.Response(body=self.metrics.render(), headers={"Content-Type": _METRICS_TYPE})

    async def _pull(self, http: web.Request) -> web.Response:
        message = await self._kv_message(http)
        tokens = self.driver.read_lease(message.request_id, message.seconds)
        if tokens is None:
            raise not_found(f"no KV is kept for request {message.request_id}")
        return web.json_response({"tokens": tokens})

    async def _heartbeat(self, http: web.Request) -> web.Response:
        message = await self._kv_message(http)
        if not self.driver.extend_lease(message.request_id):
            raise not_found(f"no KV is kept for request {message.request_id}")
        return web.json_response({})

    async def _kv_message(self, http: web.Request) -> _KvMessage:
        """Read a decode engine's message.

        Raises ApiError if it is meant for an engine that was here before.
        """
        message = parse_body(_KvMessage, await http.read())
        if message.engine_id != self.generator.engine_id:
            raise not_found(f"engine {message.engine_id} is not here any more")
        return message


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into vLLM's JSON objects."""
    try:
        return await handler(request)
    except ApiError as error:
        return _json(error.info, request.path)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _json(ErrorInfo(error.status, error.reason, error.reason), request.path, error.headers)


async def _without_scale_out(_http: web.Request) -> web.StreamResponse:
    message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    raise ApiError(ErrorInfo(403, "PermissionDeniedError", message))


def _json(info: ErrorInfo, path: str, headers: Any = None) -> web.Response:
    allow = {"Allow": headers["Allow"]} if headers is not None and "Allow" in headers else None
    body = error_body(info) if is_messages(path) else info.body()
    return web.json_response(body, status=info.status, headers=allow)
