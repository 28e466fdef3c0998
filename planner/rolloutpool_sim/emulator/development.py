"""The endpoints that vLLM serves in development mode for weight synchronisation; no model is needed.

Follows vLLM 0.32's `entrypoints/rl/online`, `entrypoints/serve/dev` and `GPUWorker`: what they take, answer
and refuse. A weight update changes a version and nothing else.
"""

import re
from typing import Any, Literal, get_args

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from rolloutpool_sim.emulator.driver import Driver, PauseMode
from rolloutpool_sim.emulator.errors import ApiError, ErrorInfo, bad_request
from rolloutpool_sim.emulator.protocol import parse_body
from rolloutpool_sim.emulator.settings import Settings

BASE_VERSION = "default"
MEMORY = frozenset({"weights", "kv_cache"})
"""Tags of the memory that sleep gives back."""
_TRUE = ("true", "1", "yes", "on")
_PREFIX = re.compile("^(chatcmpl-|cmpl-|resp_|generate-tokens-)")
"""What an answer's id has before the client's."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Init(_Message):
    init_info: dict[str, Any]


class _Update(_Message):
    update_info: dict[str, Any] | list[dict[str, Any]]


class _Finish(_Message):
    weight_version: str | None = None


class _Version(_Message):
    new_version: str


class _Aborted(_Message):
    request_ids: list[str] | None = None


class _Rpc(_Message):  # type: ignore[no-redef]  # mypy's plugin gives __init__ **kwargs of its own
    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class _Check(_Message):
    action: Literal["checksum", "reset", "compare"]
    baseline: dict[str, str] | None = None


class Development:
    """Pause, weight update and sleep of one emulated engine."""

    def __init__(self, settings: Settings, driver: Driver) -> None:
        self.version = BASE_VERSION
        self.init_info: dict[str, Any] | None = None
        self.updating = False
        self.updates: list[Any] = []
        """`update_info` of the update that is under way, or of the last one."""
        self.asleep: set[str] = set()
        """Tags of the memory that is given back."""
        self._settings = settings
        self._driver = driver

    def routes(self) -> list[web.RouteDef]:
        """Every endpoint."""
        return [
            web.post("/pause", self._pause),
            web.post("/resume", self._resume),
            web.get("/is_paused", self._is_paused),
            web.post("/abort_requests", self._abort_requests),
            web.post("/init_weight_transfer_engine", self._init),
            web.post("/shutdown_weight_transfer_engine", self._shutdown),
            web.post("/start_weight_update", self._start),
            web.post("/start_draft_weight_update", self._start),
            web.post("/update_weights", self._update),
            web.post("/finish_weight_update", self._finish),
            web.post("/update_weight_version", self._set_version),
            web.get("/weight_info", self._weight_info),
            web.post("/weight_checker", self._weight_checker),
            web.get("/get_world_size", self._world_size),
            web.get("/server_info", self._server_info),
            web.post("/collective_rpc", self._collective_rpc),
            web.post("/sleep", self._sleep),
            web.post("/wake_up", self._wake_up),
            web.get("/is_sleeping", self._is_sleeping),
            web.post("/release_kv_cache_memory", self._release_kv_cache),
            web.post("/reset_prefix_cache", self._reset_prefix_cache),
            web.post("/reset_mm_cache", self._nothing),
            web.post("/reset_encoder_cache", self._nothing),
        ]

    @property
    def world_size(self) -> int:
        """Workers of this engine."""
        return self._settings.tensor_parallel * self._settings.pipeline_parallel

    async def _pause(self, http: web.Request) -> web.Response:
        mode = _mode(http)
        await self._driver.pause(mode)
        if mode != "keep" and http.query.get("clear_cache", "true").lower() in _TRUE:
            self._driver.engine.pool.forget_all()
        return web.json_response({"status": "paused"})

    async def _resume(self, _http: web.Request) -> web.Response:
        self._driver.resume()
        return web.json_response({"status": "resumed"})

    async def _is_paused(self, _http: web.Request) -> web.Response:
        return web.json_response({"is_paused": self._driver.paused})

    async def _abort_requests(self, http: web.Request) -> web.Response:
        message = parse_body(_Aborted, await http.read() or b"{}")
        running = self._driver.in_flight
        if message.request_ids:
            named = {_PREFIX.sub("", name) for name in message.request_ids}
            # The engine's ids are those of the client and two numbers.
            running = tuple(name for name in running if name.rsplit("-", 2)[0] in named)
        self._driver.abort(running)
        return web.json_response({"status": "aborted", "aborted": len(message.request_ids or running)})

    async def _init(self, http: web.Request) -> web.Response:
        info = parse_body(_Init, await http.read()).init_info
        self._check_engine()
        offset, size = info.get("rank_offset"), info.get("world_size")
        if not isinstance(offset, int) or not isinstance(size, int):
            raise bad_request("init_info needs rank_offset and world_size", "init_info")
        if not 0 < offset <= size - self.world_size:
            raise _fault(f"ranks {offset} to {offset + self.world_size - 1} are not in a group of {size}")
        self.init_info = info
        return web.json_response({"message": "Weight transfer initialized"})

    async def _shutdown(self, _http: web.Request) -> web.Response:
        if self.updating:
            raise _fault("Cannot release a trainer connection during a weight update")
        self.init_info = None
        return web.json_response({"message": "Weight transfer shut down"})

    async def _start(self, http: web.Request) -> web.Response:
        self._check_engine()
        if self.updating:
            raise _fault("start_weight_update called while a weight update is already active")
        self.updating = True
        self.updates = []
        draft = "Draft weight" if "draft" in http.path else "Weight"
        return web.json_response({"message": f"{draft} update started"})

    async def _update(self, http: web.Request) -> web.Response:
        info = parse_body(_Update, await http.read()).update_info
        self._check_engine()
        if not self.updating:
            raise _fault("start_weight_update must be called before update_weights.")
        if self.init_info is None:
            self.updating = False  # as after any update that failed: it begins anew with a start
            raise _fault("the weight transfer engine is not initialized")
        self.updates.append(info)
        return web.json_response({"message": "Weights updated"})

    async def _finish(self, http: web.Request) -> web.Response:
        message = parse_body(_Finish, await http.read() or b"{}")
        self._check_engine()
        if not self.updating:
            raise _fault("finish_weight_update called without a matching start_weight_update.")
        self.updating = False
        self.version = message.weight_version or self.version
        return web.json_response({"message": "Weight update finished"})

    async def _set_version(self, http: web.Request) -> web.Response:
        self.version = parse_body(_Version, await http.read()).new_version
        return web.json_response({"success": True, "new_version": self.version})

    async def _weight_info(self, _http: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.version})

    async def _weight_checker(self, http: web.Request) -> web.Response:
        message = parse_body(_Check, await http.read())
        sums = {f"rank{rank}": self.version for rank in range(self.world_size)}
        if message.action == "reset":
            return web.json_response({"status": "reset"})
        if message.action == "checksum":
            return web.json_response({"checksums": sums})
        if message.baseline is None:
            raise bad_request("action='compare' requires a 'baseline' object", "baseline")
        keys = sums.keys() | message.baseline.keys()
        wrong = sorted(key for key in keys if sums.get(key) != message.baseline.get(key))
        return web.json_response({"match": not wrong, "mismatches": wrong})

    async def _world_size(self, _http: web.Request) -> web.Response:
        return web.json_response({"world_size": self.world_size})

    async def _server_info(self, _http: web.Request) -> web.Response:
        model = {
            "model": self._settings.model,
            "dtype": "torch.bfloat16",
            "max_model_len": self._settings.engine.max_model_len,
        }
        return web.json_response({"vllm_config": {"model_config": model}, "vllm_env": {}, "system_env": {}})

    async def _collective_rpc(self, http: web.Request) -> web.Response:
        message = parse_body(_Rpc, await http.read())
        echo = {"method": message.method, "args": message.args, "kwargs": message.kwargs}
        return web.json_response({"results": [echo] * self.world_size})

    async def _sleep(self, http: web.Request) -> web.Response:
        level = http.query.get("level", "1")
        if level not in ("0", "1", "2"):
            raise bad_request("level must be 0, 1 or 2", "level")
        await self._driver.pause(_mode(http))
        if level != "0":
            self._driver.engine.pool.forget_all()
            self.asleep = set(MEMORY)
        return web.json_response({"status": "sleeping", "level": int(level)})

    async def _wake_up(self, http: web.Request) -> web.Response:
        tags = http.query.getall("tags", [])
        self.asleep -= set(tags) if tags else MEMORY
        if not self.asleep:
            self._driver.resume()
        return web.json_response({"status": "sleeping" if self.asleep else "awake", "tags": tags or None})

    async def _is_sleeping(self, _http: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self._driver.paused or bool(self.asleep)})

    async def _release_kv_cache(self, _http: web.Request) -> web.Response:
        if not self._driver.paused or self._driver.in_flight:
            raise _fault("release_kv_cache_memory() requires a completed pause first")
        if self.asleep:
            raise _fault("release_kv_cache_memory() requires all executor memory to be resident")
        self._driver.engine.pool.forget_all()
        self.asleep = {"kv_cache"}
        return web.json_response({"status": "kv_cache_released"})

    async def _reset_prefix_cache(self, http: web.Request) -> web.Response:
        """As vLLM, nothing while blocks are held; with `reset_running_requests` their holders keep them."""
        pool = self._driver.engine.pool
        done = pool.used_blocks == 0 or http.query.get("reset_running_requests", "").lower() in _TRUE
        if done:
            pool.forget_all()
        return web.json_response({"success": done})

    async def _nothing(self, _http: web.Request) -> web.Response:
        return web.Response()

    def _check_engine(self) -> None:
        if not self._settings.weight_transfer:
            raise _fault("Weight transfer not configured. Set --weight-transfer-config to enable it.")


def _mode(http: web.Request) -> PauseMode:
    mode = http.query.get("mode", "abort")
    if mode not in get_args(PauseMode):
        raise bad_request(f"mode must be one of {', '.join(get_args(PauseMode))}, not {mode!r}", "mode")
    return mode  # type: ignore[return-value]  # one of them


def _fault(message: str) -> ApiError:
    """What vLLM answers where its engine raises RuntimeError."""
    return ApiError(ErrorInfo(500, "InternalServerError", message))
