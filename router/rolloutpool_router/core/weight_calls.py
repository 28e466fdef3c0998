"""The control calls of weight synchronisation: which there are, whom they go to, how answers are merged.

The calls are those that vLLM serves in development mode (`entrypoints/rl/online`, `entrypoints/serve/dev`)
and its two calls for LoRA adapters. A trainer that speaks to one engine speaks to all of them through these:
where every engine answers the same, it gets that answer, as from one engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rolloutpool_router.core.outcomes import Outcome, error_object


class Merge(StrEnum):
    """How the engines' answers become one."""

    SAME = "same"
    """The answer that all gave; else all answers, under the worst status."""
    ALL_OF = "all of"
    """The same, and where they differ `field` is true only if it is true everywhere."""
    SUM = "sum"
    """`field` added up."""
    FIRST = "first"
    """The first good answer: it is the same everywhere but for what nobody asks."""


class Effect(StrEnum):
    """What a call does to the pool's weights, besides what it does to the engines."""

    NONE = "none"
    PAUSE = "pause"
    RESUME = "resume"
    SLEEP = "sleep"
    WAKE = "wake"
    INIT = "init"
    SHUTDOWN = "shutdown"
    START = "start"
    UPDATE = "update"
    FINISH = "finish"
    VERSION = "version"
    FORGET = "forget"
    """Cached prefixes are gone."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One control call."""

    path: str
    method: str = "POST"
    merge: Merge = Merge.SAME
    field: str = ""
    """Field of the answer that ALL_OF and SUM speak of."""
    effect: Effect = Effect.NONE
    alone: bool = True
    """Calls of this kind run one at a time."""

    @property
    def to_group(self) -> bool:
        """Whether it goes to the weight group's members alone, where there is a group."""
        return self.effect in (Effect.SHUTDOWN, Effect.START, Effect.UPDATE, Effect.FINISH)

    @property
    def collective(self) -> bool:
        """Whether engines wait in it for each other, so that without one of them it is sent to none."""
        return self.effect in (Effect.START, Effect.UPDATE)


_ALL = (
    Call(path="/pause", effect=Effect.PAUSE),
    Call(path="/resume", effect=Effect.RESUME),
    Call(path="/is_paused", method="GET", merge=Merge.ALL_OF, field="is_paused", alone=False),
    Call(path="/init_weight_transfer_engine", effect=Effect.INIT),
    Call(path="/shutdown_weight_transfer_engine", effect=Effect.SHUTDOWN),
    Call(path="/start_weight_update", effect=Effect.START),
    Call(path="/start_draft_weight_update", effect=Effect.START),
    Call(path="/update_weights", effect=Effect.UPDATE),
    Call(path="/finish_weight_update", effect=Effect.FINISH),
    Call(path="/update_weight_version", effect=Effect.VERSION),
    Call(path="/weight_info", method="GET", alone=False),
    Call(path="/weight_checker"),
    Call(path="/get_world_size", method="GET", merge=Merge.SUM, field="world_size", alone=False),
    Call(path="/server_info", method="GET", merge=Merge.FIRST, alone=False),
    Call(path="/collective_rpc"),
    Call(path="/sleep", effect=Effect.SLEEP),
    Call(path="/wake_up", effect=Effect.WAKE),
    Call(path="/is_sleeping", method="GET", merge=Merge.ALL_OF, field="is_sleeping", alone=False),
    Call(path="/release_kv_cache_memory", effect=Effect.FORGET),
    Call(path="/reset_prefix_cache", effect=Effect.FORGET),
    Call(path="/reset_mm_cache"),
    Call(path="/reset_encoder_cache"),
    Call(path="/abort_requests", alone=False),
    Call(path="/v1/load_lora_adapter"),
    Call(path="/v1/unload_lora_adapter"),
)
CALLS: Mapping[str, Call] = {call.path: call for call in _ALL}
"""Every control call, by path. What is not here is no control call."""
INIT, WORLD_SIZE = CALLS["/init_weight_transfer_engine"], CALLS["/get_world_size"]
RESUME, WAKE = CALLS["/resume"], CALLS["/wake_up"]


class CallError(StrEnum):
    """What may be wrong with a call: the `code` of its answer's error."""

    INVALID = "invalid_call"
    UNAUTHORIZED = "unauthorized"
    WRONG_METHOD = Outcome.WRONG_METHOD
    TOO_LARGE = Outcome.TOO_LARGE
    GROUP_BROKEN = "weight_group_broken"
    """The weight group lacks a member: it must be formed anew."""
    BUSY = "too_many_calls"
    NO_ENGINE = Outcome.NO_ENGINE
    NOT_READY = Outcome.NOT_READY
    FAILED = "engine_call_failed"
    """Some engine did not do it; `results` has all of them."""


class BadCall(ValueError):
    """A call that cannot be sent to several engines; the message says what to send instead."""


@dataclass(frozen=True, kw_only=True)
class EngineResult:
    """What one engine answered to a call."""

    engine: str
    url: str
    status: int
    """HTTP status; 502 and 504 with `error` where there was no answer."""
    body: bytes = b""
    content_type: str = "application/json"
    error: str = ""
    """Why there is no answer."""
    refused: bool = False
    """No connection was made: nothing listens there."""

    @property
    def ok(self) -> bool:
        """Whether the engine did it."""
        return not self.error and 200 <= self.status < 300

    def json(self) -> Any:
        """The answer's body; None if it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def field(self, name: str) -> Any:
        """A field of the body; None if there is none."""
        body = self.json()
        return body.get(name) if isinstance(body, dict) else None

    def why(self) -> str:
        """Why it failed, in words."""
        return self.error or f"status {self.status}: {self.body[:200].decode(errors='replace')}"

    def listed(self, stale: str | None) -> dict[str, Any]:
        """The entry in a list of results."""
        entry: dict[str, Any] = {
            "engine": self.engine,
            "url": self.url,
            "status": self.status,
            "ok": self.ok,
        }
        if self.error:
            entry["error"] = self.error
        elif self.body:
            parsed = self.json()
            entry["body"] = self.body.decode(errors="replace") if parsed is None else parsed
        return entry | ({"stale": stale} if stale else {})


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The answer to the trainer."""

    status: int
    body: bytes
    content_type: str = "application/json"
    retryable: bool = False
    """Nothing was done, and a later try may succeed."""


OVERLOADED = 503
MAX_TOLD = 8
"""Most engines whose failure an error's message tells; all are in the list of results."""


def merge(call: Call, results: Sequence[EngineResult], stale: Mapping[str, str] | None = None) -> Merged:
    """One answer from those of the engines; all-or-nothing: 2xx only if every engine answered 2xx.

    Args:
        call: what was asked.
        results: at least one.
        stale: engines whose weights are not the pool's, and why; said in a list of results.
    """
    if call.merge is Merge.FIRST and (good := next((item for item in results if item.ok), None)):
        return _as_is(good)
    all_ok = all(item.ok for item in results)
    if call.merge is Merge.SUM and all_ok:
        parts = [item.field(call.field) for item in results]
        if all(isinstance(part, int) for part in parts):
            return _made(200, {call.field: sum(parts)})
        return listing(results, stale, status=502, error=f"an engine's answer has no {call.field}")
    same = len({(item.status, item.body) for item in results}) == 1
    if call.merge is not Merge.SUM and same and not any(item.error for item in results):
        return _as_is(results[0])
    if call.merge is Merge.ALL_OF and all_ok:
        agreed = all(item.field(call.field) is True for item in results)
        return listing(results, stale, extra={call.field: agreed})
    return listing(results, stale)


def listing(
    results: Iterable[EngineResult],
    stale: Mapping[str, str] | None = None,
    *,
    status: int | None = None,
    error: str = "",
    extra: Mapping[str, Any] | None = None,
) -> Merged:
    """All results one by one, under the worst of their statuses unless another is given."""
    results = tuple(results)
    failed = [item for item in results if not item.ok]
    status = status or max((item.status if item.status >= 400 else 502 for item in failed), default=200)
    body: dict[str, Any] = {}
    if status >= 400:
        body["error"] = _error(status, CallError.FAILED, error or _told(failed, len(results)))
    entries = [item.listed((stale or {}).get(item.engine)) for item in results]
    return _made(status, body | dict(extra or {}) | {"results": entries})


def refusal(status: int, code: CallError, message: str) -> Merged:
    """The answer to a call that was sent to no engine."""
    made = _made(status, {"error": _error(status, code, message)})
    return replace(made, retryable=status == OVERLOADED)


def _error(status: int, code: CallError, message: str) -> dict[str, str | None]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status == OVERLOADED:
        kind = "overloaded_error"
    return error_object(message, error_type=kind, code=code.value)


def _told(failed: Sequence[EngineResult], engines: int) -> str:
    why = "; ".join(f"{item.engine}: {item.why()}" for item in failed[:MAX_TOLD])
    return f"{len(failed)} of {engines} engines failed: {why}"


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request; an empty body is an empty one.

    Raises:
        BadCall: it is none.
    """
    try:
        parsed = json.loads(body or b"{}")
    except ValueError:
        raise BadCall("the body is no JSON") from None
    if not isinstance(parsed, dict):
        raise BadCall("the body must be a JSON object")
    return parsed


def rank_offsets(base: int, worlds: Sequence[int]) -> tuple[int, ...]:
    """First rank of each engine: `base` for the first, then after all workers of those before it."""
    return tuple(base + sum(worlds[:index]) for index in range(len(worlds)))


def init_bodies(body: bytes, worlds: Sequence[int]) -> tuple[bytes, ...]:
    """The body of /init_weight_transfer_engine for each engine: its own `rank_offset`, all else as it came.

    Args:
        body: as the trainer sent it, for one engine: `{"init_info": {"rank_offset", "world_size", ...}}`.
            Without a rank_offset (no collective) every engine gets it as it is.
        worlds: workers of each engine, in the order in which ranks are given out.

    Raises:
        BadCall: no such object, or the group has no room for all workers.
    """
    parsed = read_object(body)
    info = parsed.get("init_info")
    if not isinstance(info, dict) or "rank_offset" not in info:
        return (body,) * len(worlds)
    base, size = info["rank_offset"], info.get("world_size")
    if not _is_count(base):
        raise BadCall("init_info.rank_offset must be a whole number of at least 0")
    if _is_count(size) and base + sum(worlds) > size:
        raise BadCall(
            f"init_info.world_size {size} has no room for the {sum(worlds)} workers of the pool's"
            f" {len(worlds)} engines after rank_offset {base}: ask GET /get_world_size again"
        )
    return tuple(
        json.dumps({**parsed, "init_info": {**info, "rank_offset": offset}}).encode()
        for offset in rank_offsets(base, worlds)
    )


def check_update(body: bytes, engines: int) -> None:
    """Whether /update_weights may go to several engines.

    Raises:
        BadCall: `update_info` is a list by worker rank of one engine, which several cannot share.
    """
    if engines > 1 and isinstance(read_object(body).get("update_info"), list):
        raise BadCall(
            "update_info is a list by worker of one engine: send it to each engine by its own address"
            " (GET /workers lists them)"
        )


def told_version(call: Call, body: bytes) -> str | None:
    """The weight version that a call sets; None if it sets none."""
    names = {Effect.FINISH: "weight_version", Effect.VERSION: "new_version"}
    if call.effect not in names:
        return None
    version = read_object(body).get(names[call.effect])
    return version if isinstance(version, str) else None


def fully_awake(results: Iterable[EngineResult], query: Mapping[str, str]) -> bool:
    """Whether engines run again after /wake_up: they say so, or (before vLLM 0.32) all tags were woken."""
    return all(
        item.ok and (item.field("status") or ("sleeping" if "tags" in query else "awake")) == "awake"
        for item in results
    )


def empties_cache(call: Call, query: Mapping[str, str]) -> bool:
    """Whether a call that succeeded left an engine without cached prefixes."""
    if call.effect is Effect.PAUSE:
        return query.get("mode", "abort") != "keep" and query.get("clear_cache", "true").lower() in _TRUE
    if call.effect is Effect.SLEEP:
        return query.get("level", "1") != "0"
    return call.effect in (Effect.FORGET, Effect.FINISH, Effect.VERSION)


def stable_order(names: Iterable[str]) -> tuple[str, ...]:
    """Engines in the order in which ranks are given out: by name, with numbers in names as numbers."""
    return tuple(sorted(names, key=lambda name: (_numbered(name), name)))


_TRUE = ("true", "1", "yes", "on", "t", "y")
_PARTS = re.compile(r"([0-9]+)")


def _numbered(name: str) -> tuple[tuple[int, int, str], ...]:
    parts = _PARTS.split(name)  # every other part is a number
    return tuple((0, int(part), "") if index % 2 else (1, 0, part) for index, part in enumerate(parts))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _as_is(result: EngineResult) -> Merged:
    return Merged(status=result.status, body=result.body, content_type=result.content_type)


def _made(status: int, body: Mapping[str, Any]) -> Merged:
    return Merged(status=status, body=json.dumps(body).encode())
