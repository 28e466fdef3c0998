"""Which weights the engines have: pauses, weight versions, the weight group, and engines that lag behind.

A trainer puts new weights into all engines while the pool is paused. An engine that missed it would go on
producing samples of an old policy without a sign, so an engine whose weights are not known to be the pool's
is stale, and no request is sent there. Nothing here waits or asks: `observed` takes what the engines said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from rolloutpool_router.core.weight_calls import (
    Call,
    Effect,
    EngineResult,
    empties_cache,
    fully_awake,
    stable_order,
    told_version,
)

BASE_VERSION = "default"
"""The version that vLLM names until a trainer sets one: the weights that an engine was started with."""
UNFINISHED = "was left in the middle of a weight update"
MISSED = "has not had the pool's weights since it joined or was restarted"


class PauseCause(StrEnum):
    """Why the pool is paused."""

    STARTING = "starting"
    """This router has not asked the engines yet."""
    PAUSE = "pause"
    SLEEP = "sleep"
    FOUND = "found"
    """All engines are paused, by somebody who did not ask this router (or asked it before it restarted)."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """The pool takes no requests."""

    since: float
    """Seconds of the caller's clock."""
    by: PauseCause


class Update(StrEnum):
    """Where an engine is in a weight update."""

    NONE = "none"
    OPEN = "open"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class EngineWeights:
    """One engine, as last seen."""

    connected: bool = True
    """False: nothing listens at its address."""
    version: str | None = None
    """Its weight version; None while unknown."""
    paused: bool | None = None
    """Whether its scheduler is paused; None while unknown."""
    update: Update = Update.NONE
    damage: str = ""
    """Why its weights are not the pool's, whatever version it names; empty: no reason is known."""


@dataclass(frozen=True, kw_only=True)
class WeightGroup:
    """The engines that take part in the trainer's collective; fixed until it is formed anew."""

    epoch: int
    """Membership epoch at which it was formed."""
    members: tuple[str, ...]
    """In rank order."""
    lost: frozenset[str] = frozenset()
    """Members that were restarted since: they have no part in the collective any more."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What an engine said of itself; None: it did not say."""

    connected: bool | None = None
    version: str | None = None
    paused: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of a pool."""

    pause: Pause | None = None
    given_up: bool = False
    """A pause lasted too long: engines that are still paused no longer hold the pool."""
    wanted: str | None = None
    """The version that engines must have; None: no version is known."""
    told: bool = False
    """A call through this router named it; else it was learned from the engines."""
    updated: bool = False
    """A weight update was finished through this router."""
    epoch: int = 0
    """Grows whenever an engine joins, leaves or restarts, and when a weight group is formed."""
    group: WeightGroup | None = None
    engines: Mapping[str, EngineWeights] = field(default_factory=dict)
    """The pool's engines, by name."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Whom a call goes to."""

    engines: tuple[str, ...]
    """In rank order."""
    absent: Mapping[str, str]
    """Engines that should take part and cannot, and why."""


def listed(state: Weights, names: Collection[str]) -> Weights:
    """Take over the list of the pool's engines."""
    if state.engines.keys() == set(names):
        return state
    fresh = EngineWeights(damage=MISSED if state.updated else "")
    engines = {name: state.engines.get(name, fresh) for name in names}
    return replace(state, engines=engines, epoch=state.epoch + 1)


def targets(state: Weights, call: Call) -> Targets:
    """The engines that a call goes to: those that are there; the group's members for a weight update."""
    present = {name for name, engine in state.engines.items() if engine.connected}
    group = state.group
    if not call.to_group or group is None:
        return Targets(engines=stable_order(present), absent={})
    absent = {
        name: "was restarted" if name in group.lost else "is not there"
        for name in group.members
        if name in group.lost or name not in present
    }
    return Targets(engines=tuple(name for name in group.members if name not in absent), absent=absent)


def stale(state: Weights) -> dict[str, str]:
    """Engines whose weights are not known to be the pool's, and why."""
    reasons = {name: _stale(state, name, engine) for name, engine in state.engines.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def all_stale(state: Weights, names: Iterable[str]) -> bool:
    """Whether none of these engines is known to have the pool's weights; False where there are none."""
    lagging, names = stale(state), tuple(names)
    return bool(names) and all(name in lagging for name in names)


def paused(state: Weights, now: float, by: PauseCause) -> Weights:
    """The pool is paused; a pause that lasts already goes on as it is, but sleep replaces pause."""
    if state.pause is None or state.pause.by in (PauseCause.STARTING, PauseCause.FOUND):
        return replace(state, pause=Pause(since=now, by=by), given_up=False)
    if by is PauseCause.SLEEP:
        return replace(state, pause=replace(state.pause, by=by))
    return state


def resumed(state: Weights) -> Weights:
    """The pool takes requests."""
    return replace(state, pause=None, given_up=False)


def expired(state: Weights, now: float, limit: float) -> bool:
    """Whether a pause lasts longer than `limit` seconds."""
    return state.pause is not None and now - state.pause.since >= limit


def give_up(state: Weights) -> Weights:
    """End a pause that lasts too long: engines left in the middle of an update are stale from now on."""
    engines = {
        name: replace(engine, damage=engine.damage or UNFINISHED, update=Update.NONE)
        if engine.update is not Update.NONE
        else engine
        for name, engine in state.engines.items()
    }
    return replace(state, pause=None, given_up=True, engines=engines)


def after(
    state: Weights, call: Call, results: Sequence[EngineResult], *, body: bytes, query: Mapping[str, str]
) -> Weights:
    """The state after a call was answered by the engines.

    Args:
        state: before.
        call: what was sent.
        results: of every engine that it was sent to.
        body: of the trainer's request.
        query: of the same.
    """
    match call.effect:
        case Effect.INIT:
            return _after_init(state, results)
        case Effect.SHUTDOWN:
            return replace(state, group=None) if all(item.ok for item in results) else state
        case Effect.START:
            return _with(state, results, _after_start)
        case Effect.UPDATE:
            return _after_update(state, call, results)
        case Effect.SLEEP if query.get("level") == "2":
            return _with(state, results, _after_start)
        case Effect.FINISH | Effect.VERSION:
            return _after_finish(state, call, results, told_version(call, body))
        case Effect.WAKE if fully_awake(results, query):
            return _with(state, results, lambda engine, _: replace(engine, update=Update.NONE))
        case _:
            return state


def emptied(call: Call, results: Iterable[EngineResult], query: Mapping[str, str]) -> tuple[str, ...]:
    """Engines whose cached prefixes a call made void."""
    if not empties_cache(call, query):
        return ()
    return tuple(item.engine for item in results if item.ok and item.field("success") is not False)


def observed(state: Weights, said: Mapping[str, Observation], now: float) -> Weights:
    """Take over what engines said of themselves.

    An engine at whose address nothing listens is being restarted: it comes back with the weights that it was
    started with, and without a part in the collective.
    """
    engines, gone, back = dict(state.engines), set(), False
    for name in said.keys() & engines.keys():
        before, new = engines[name], said[name]
        back |= new.connected is True and not before.connected
        if new.connected is False and before.connected:
            gone.add(name)
            engines[name] = EngineWeights(connected=False, damage=MISSED if state.updated else "")
        else:
            engines[name] = _seen(before, new, state.wanted)
    group = state.group
    if group is not None:
        group = replace(group, lost=group.lost | gone.intersection(group.members))
    moved = bool(gone) or back
    state = replace(state, engines=engines, group=group, epoch=state.epoch + moved)
    return _pause_as_seen(_learned(state), now)


def _stale(state: Weights, name: str, engine: EngineWeights) -> str:
    current = state.wanted is not None and engine.version == state.wanted
    if engine.damage:
        return engine.damage
    group = state.group
    if group is not None and (name not in group.members or name in group.lost) and not current:
        return (
            f"is not in the weight group of epoch {group.epoch}:"
            " it takes part once /init_weight_transfer_engine is called again"
        )
    if state.wanted is None and engine.version == BASE_VERSION and _set_by_trainer(state):
        return f"has the weights that it was started with ({BASE_VERSION!r}), others have newer ones"
    if state.wanted is None or current:
        return ""
    if not engine.connected:
        return "is being restarted: which weights it will have is not known"
    return f"has weights {engine.version!r}, the pool has {state.wanted!r}" if engine.version else ""


def _after_init(state: Weights, results: Sequence[EngineResult]) -> Weights:
    """A group of all that were asked, or none: with one missing the collective does not come about."""
    if not all(item.ok for item in results):
        return replace(state, group=None)
    epoch = state.epoch + 1
    members = tuple(item.engine for item in results)
    return replace(state, epoch=epoch, group=WeightGroup(epoch=epoch, members=members))


def _after_start(engine: EngineWeights, result: EngineResult) -> EngineWeights:
    """An update is open, or may be where no answer came; its weights are still those that it had."""
    if result.ok:
        return replace(engine, update=Update.OPEN)
    return replace(engine, update=Update.FAILED) if result.error else engine


def _after_update(state: Weights, call: Call, results: Sequence[EngineResult]) -> Weights:
    """A part of the weights has come, or engines lack it.

    An engine that takes one without a start has calls of its own, of which this is a whole update.
    """
    done = any(item.ok for item in results)
    names = {item.engine for item in results if item.ok}
    whole = any(state.engines[n].update is Update.NONE for n in names if n in state.engines)

    def step(engine: EngineWeights, result: EngineResult) -> EngineWeights:
        if result.ok:
            return replace(engine, damage="") if engine.update is Update.NONE else engine
        if not _lacks(engine, result, some=done):
            return engine
        return replace(engine, update=Update.FAILED, damage=_failed(call, result))

    state = _with(state, results, step)
    return _updated(state, results) if whole else state


def _updated(state: Weights, results: Sequence[EngineResult]) -> Weights:
    """Engines have new weights; those that were not asked have missed them."""
    asked = {item.engine for item in results}
    engines = {
        name: engine if name in asked else replace(engine, damage=engine.damage or MISSED)
        for name, engine in state.engines.items()
    }
    return replace(state, engines=engines, updated=True)


def _lacks(engine: EngineWeights, result: EngineResult, *, some: bool) -> bool:
    """Whether a step that failed leaves an engine without the pool's weights.

    One that no engine took changed nothing where it was refused, or where no update was begun (vLLM answers
    500 to that, as to a weight transfer that is not configured).
    """
    refused = 400 <= result.status < 500
    return some or not (refused or engine.update is Update.NONE)


def _failed(call: Call, result: EngineResult) -> str:
    return f"failed at {call.path}: {result.why()}"[:300]


def _after_finish(
    state: Weights, call: Call, results: Sequence[EngineResult], version: str | None
) -> Weights:
    """Engines that finished have the new weights; those that were not asked have missed them."""
    finished, done = call.effect is Effect.FINISH, any(item.ok for item in results)

    def step(engine: EngineWeights, result: EngineResult) -> EngineWeights:
        if not result.ok:
            lacks = finished and _lacks(engine, result, some=done)
            return replace(engine, damage=_failed(call, result)) if lacks else engine
        whole = not finished or engine.update is Update.OPEN
        return replace(
            engine,
            version=engine.version if version is None else version,
            update=Update.NONE if finished else engine.update,
            damage="" if whole else engine.damage,
        )

    state = _with(state, results, step)
    if not done:
        return state
    if finished:
        state = _updated(state, results)
    return state if version is None else replace(state, wanted=version, told=True)


def _with(
    state: Weights,
    results: Sequence[EngineResult],
    step: Callable[[EngineWeights, EngineResult], EngineWeights],
) -> Weights:
    changed = {
        item.engine: step(state.engines[item.engine], item)
        for item in results
        if item.engine in state.engines
    }
    return replace(state, engines={**state.engines, **changed})


def _seen(before: EngineWeights, new: Observation, wanted: str | None) -> EngineWeights:
    if new.connected is False:
        return before
    version = before.version if new.version is None else new.version
    brought_up = version != before.version and wanted is not None and version == wanted
    return replace(
        before,
        connected=before.connected or new.connected is True,
        version=version,
        paused=new.paused,
        damage="" if brought_up else before.damage,
    )


def _learned(state: Weights) -> Weights:
    """The version that the pool has, where nobody told: what all engines but fresh ones agree on.

    A version that was told gives way when every engine names the same other one: somebody set it engine by
    engine.
    """
    found = _set_by_trainer(state)
    only = next(iter(found)) if len(found) == 1 else None
    if not state.told:
        return replace(state, wanted=only)
    everywhere = all(e.version == only for e in state.engines.values() if e.connected)
    return replace(state, wanted=only) if only is not None and everywhere else state


def _set_by_trainer(state: Weights) -> set[str]:
    """Versions that engines name, but for the one that they start with."""
    versions = {e.version for e in state.engines.values() if e.connected and e.version is not None}
    return versions - {BASE_VERSION}


def _pause_as_seen(state: Weights, now: float) -> Weights:
    known = [e.paused for e in state.engines.values() if e.connected and e.paused is not None]
    if known and not any(known):
        return resumed(state)
    if known and all(known) and not state.given_up:
        return paused(state, now, PauseCause.FOUND) if state.pause is None else _settled(state)
    if state.pause is not None and state.pause.by in (PauseCause.STARTING, PauseCause.FOUND):
        return replace(state, pause=None)
    return state


def _settled(state: Weights) -> Weights:
    """A router that has just started found the engines paused."""
    pause = state.pause
    if pause is None or pause.by is not PauseCause.STARTING:
        return state
    return replace(state, pause=replace(pause, by=PauseCause.FOUND))
