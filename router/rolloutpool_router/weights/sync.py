"""Carries control calls out, keeps the pause gate, and keeps requests from engines with other weights."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from rolloutpool_api.snapshot import SnapshotWeights
from rolloutpool_router.core import weights
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.standing import Bar
from rolloutpool_router.core.weight_calls import (
    INIT,
    RESUME,
    WAKE,
    WORLD_SIZE,
    BadCall,
    Call,
    CallError,
    Effect,
    EngineResult,
    Merged,
    check_update,
    fully_awake,
    init_bodies,
    listing,
    merge,
    read_object,
    refusal,
    told_version,
)
from rolloutpool_router.core.weights import Pause, PauseCause, Targets, Weights
from rolloutpool_router.weights.fanout import Engines
from rolloutpool_router.weights.pause import PauseGate

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
"""How often engines are asked which weights they have: an engine takes longer than that to load its model, so
none is restarted unseen."""
BACK_SECONDS = 60.0
"""How long an engine may take to resume when the router ends a pause by itself."""
CLOSE_SECONDS = 5.0
"""How long a router that ends waits for the answers to a call; the engines carry it out all the same."""
MAX_WAITING_CALLS = 32
"""Calls that may wait for the one before them."""


class WeightSync:
    """Weight synchronisation of one pool."""

    def __init__(
        self,
        fleet: Fleet,
        gate: PauseGate,
        *,
        clock: Callable[[], float],
        limit: Callable[[], float],
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        """Begin with the gate closed, until the engines have said whether they are paused.

        Must be called within a running event loop.

        Args:
            fleet: the engines; those with other weights are barred, new ones as soon as they are listed.
            gate: closed while the pool is paused, and while a call that pauses it waits or runs.
            clock: monotonic seconds.
            limit: longest pause, in seconds.
            period_seconds: how often engines are asked.
        """
        self.gate = gate
        self.state = Weights(pause=Pause(since=clock(), by=PauseCause.STARTING))
        self.calls: Counter[tuple[str, bool]] = Counter()
        """Calls by path and whether they succeeded on every engine."""
        self.pauses_given_up = 0
        self.waiting = 0
        """Calls that wait for the one before them."""
        self._fleet = fleet
        self._clock = clock
        self._limit = limit
        self._period = period_seconds
        self._engines = Engines()
        self._alone = asyncio.Lock()
        self._pausing: deque[Pause] = deque()
        """Calls that pause the pool and wait or run, the next or running one first."""
        self._running: set[asyncio.Task[Merged]] = set()
        self._unserved_since: int | None = None
        """Since when no engine that sessions live on may be used, in Unix seconds; None: some may."""
        gate.close()
        fleet.on_apply = self._take_list

    async def close(self) -> None:
        """Give a call that was sent a moment to end, then close all connections."""
        self.gate.shut()
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_SECONDS)
        await self._engines.close()

    async def call(self, call: Call, query: str, body: bytes) -> Merged:
        """Carry out a call on all engines that it concerns.

        Once it was sent to one engine it goes to all of them, whether or not the trainer still waits. The
        gate closes before a pause is sent, and before it waits for the calls ahead of it; it stays closed
        until the pause has failed or ended, whatever those calls and the engines say.

        Args:
            call: what to do.
            query: of the trainer's request, passed on as it is.
            body: of the same.
        """
        if not call.alone:
            return await self._send(call, query, body)
        if self.waiting >= MAX_WAITING_CALLS:
            return refusal(
                503, CallError.BUSY, f"{self.waiting} calls wait already: send this one again later"
            )
        pause = self._hold(call)
        self.waiting += 1
        try:
            await self._alone.acquire()
        except asyncio.CancelledError:
            self._let_go(pause)
            raise
        finally:
            self.waiting -= 1
        task = asyncio.create_task(self._send_alone(call, query, body, pause))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def watch(self) -> None:
        """Ask the engines which weights they have and whether they are paused, for ever."""
        while True:
            if self._fleet.engines:
                async with self._alone:
                    await self._look()
                    if weights.expired(self.state, self._clock(), self._limit()):
                        await self._give_up()
            await asyncio.sleep(self._period)

    def missing(self) -> list[str]:
        """Engines of the pool at whose address nothing listens."""
        self._take_list()
        return [name for name, engine in self.state.engines.items() if not engine.connected]

    def stale(self) -> dict[str, str]:
        """Engines that get no requests for their weights, and why."""
        return weights.stale(self.state)

    def describe(self) -> dict[str, Any]:
        """The state, for people and for trainers that ask."""
        state, stale = self.state, self.stale()
        pause = self._pause()
        return {
            "paused": pause is not None,
            "pausedBy": str(pause.by) if pause else None,
            "pausedSeconds": round(self._clock() - pause.since, 3) if pause else 0,
            "maxPauseSeconds": self._limit(),
            "pausesGivenUp": self.pauses_given_up,
            "waitingRequests": self.gate.waiting,
            "version": state.wanted,
            "membershipEpoch": state.epoch,
            "group": {
                "epoch": state.group.epoch,
                "members": list(state.group.members),
                "lost": sorted(state.group.lost),
            }
            if state.group
            else None,
            "engines": [
                {
                    "engine": name,
                    "answers": engine.connected,
                    "version": engine.version,
                    "paused": engine.paused,
                    "update": str(engine.update),
                    "stale": stale.get(name),
                }
                for name, engine in sorted(state.engines.items())
            ],
        }

    def snapshot(self) -> SnapshotWeights:
        """What the operator is told."""
        pause, stale = self._pause(), sorted(self.stale().items())
        return SnapshotWeights(
            version=self.state.wanted,
            paused_seconds=round(self._clock() - pause.since, 3) if pause else 0.0,
            stale_engines=[name for name, _ in stale],
            stale_because=stale[0][1] if stale else "",
            unserved_since=self._unserved_since,
            membership_epoch=self.state.epoch,
        )

    def _pause(self) -> Pause | None:
        """Why requests wait: the pool is paused, or about to be."""
        return self.state.pause or next(iter(self._pausing), None)

    def _hold(self, call: Call) -> Pause | None:
        """Close the gate for a call that pauses the pool; None for all others."""
        if call.effect not in (Effect.PAUSE, Effect.SLEEP):
            return None
        by = PauseCause.SLEEP if call.effect is Effect.SLEEP else PauseCause.PAUSE
        pause = Pause(since=self._clock(), by=by)
        self._pausing.append(pause)
        self._move_gate()
        return pause

    def _let_go(self, pause: Pause | None) -> None:
        """That call ended: if it did not pause the pool, the gate need not stay closed for it."""
        if pause is not None:
            self._pausing.remove(pause)
            self._move_gate()

    async def _send_alone(self, call: Call, query: str, body: bytes, pause: Pause | None) -> Merged:
        """Send a call that runs alone; gives the lock back."""
        try:
            return await self._send(call, query, body)
        finally:
            self._let_go(pause)
            self._alone.release()

    async def _send(self, call: Call, query: str, body: bytes) -> Merged:
        self._take_list()
        whom = weights.targets(self.state, call)
        answer = self._not_sent(call, whom, body)
        if answer is None:
            answer = await self._fan_out(call, query, body, whom)
        self.calls[call.path, 200 <= answer.status < 300] += 1
        return answer

    def _not_sent(self, call: Call, whom: Targets, body: bytes) -> Merged | None:
        """The refusal of a call that must not be sent to anybody."""
        if whom.absent and (call.collective or not whom.engines):
            gone = "; ".join(f"{name} {why}" for name, why in whom.absent.items())
            return refusal(
                409,
                CallError.GROUP_BROKEN,
                f"the weight group is not whole ({gone}): nothing was sent. Form it anew with"
                " /init_weight_transfer_engine",
            )
        if not whom.engines:
            wait = "no engine of the pool answers: wait until GET /health is 200"
            return refusal(503, CallError.NO_ENGINE, wait)
        try:
            if call.effect in (Effect.INIT, Effect.FINISH, Effect.VERSION):
                read_object(body)
                told_version(call, body)
            if call.effect is Effect.UPDATE:
                check_update(body, len(whom.engines))
        except BadCall as error:
            return refusal(400, CallError.INVALID, str(error))
        return None

    async def _fan_out(self, call: Call, query: str, body: bytes, whom: Targets) -> Merged:
        target = f"{call.path}?{query}" if query else call.path
        urls = self._urls(whom.engines)
        bodies = dict.fromkeys(urls, body)
        if call is INIT:
            made = await self._init_bodies(urls, body)
            if isinstance(made, Merged):
                return made
            bodies = made
        results = await self._engines.ask_all(call.method, target, urls, bodies)
        asked = dict(parse_qsl(query, keep_blank_values=True))
        if call.alone:
            self._take_results(call, results, body, asked)
        if call.effect in (Effect.PAUSE, Effect.SLEEP) and not _all_ok(results):
            return await self._undo(call, results)
        if call.effect in (Effect.FINISH, Effect.VERSION):
            await self._look()
        absent = tuple(
            EngineResult(engine=name, url="", status=409, error=f"{name} {why}")
            for name, why in whom.absent.items()
        )
        return merge(call, (*results, *absent), self.stale())

    async def _init_bodies(self, urls: Mapping[str, str], body: bytes) -> dict[str, bytes] | Merged:
        """What each engine is to be sent to form a weight group; why none is formed."""
        worlds = await self._engines.ask_all("GET", WORLD_SIZE.path, urls)
        counts = [item.field(WORLD_SIZE.field) for item in worlds if item.ok]
        sizes = [count for count in counts if isinstance(count, int)]
        if len(sizes) < len(worlds):
            error = "an engine does not say how many workers it has: nothing was sent"
            return listing(worlds, self.stale(), status=502, error=error)
        try:
            return dict(zip(urls, init_bodies(body, sizes), strict=True))
        except BadCall as error:
            return refusal(400, CallError.INVALID, str(error))

    def _take_results(
        self, call: Call, results: tuple[EngineResult, ...], body: bytes, query: Mapping[str, str]
    ) -> None:
        state = weights.after(self.state, call, results, body=body, query=query)
        for engine in weights.emptied(call, results, query):
            self._fleet.prefixes.forget(engine)
        if _all_ok(results):
            if call.effect in (Effect.PAUSE, Effect.SLEEP):
                pause = self._pausing[0]  # calls run in the order in which they came: it is this one's
                state = weights.paused(state, pause.since, pause.by)
            by_sleep = state.pause is not None and state.pause.by is PauseCause.SLEEP
            opens = call.effect is Effect.RESUME and not by_sleep
            if opens or (call.effect is Effect.WAKE and fully_awake(results, query)):
                state = weights.resumed(state)
        self._set(state)

    async def _undo(self, call: Call, results: tuple[EngineResult, ...]) -> Merged:
        """A pause that failed on some engine: the others run on, unless they were paused before it."""
        if self.state.pause is not None:
            return listing(
                results, self.stale(), error=f"{call.path} failed; the pool stays paused as before"
            )
        back = WAKE if call.effect is Effect.SLEEP else RESUME
        urls = self._urls(item.engine for item in results if item.ok)
        undone = await self._engines.ask_all(back.method, back.path, urls, seconds=BACK_SECONDS)
        self._set(weights.resumed(self.state))
        words = f"{call.path} failed on an engine; the pool is not paused: {back.path} was sent to the others"
        told = {"undone": [item.listed(None) for item in undone]}
        return listing(results, self.stale(), error=words, extra=told)

    async def _give_up(self) -> None:
        """End a pause whose trainer did not come back in time."""
        pause = self.state.pause
        assert pause is not None
        back = WAKE if pause.by is PauseCause.SLEEP else RESUME
        urls = self._urls(name for name, engine in self.state.engines.items() if engine.connected)
        results = await self._engines.ask_all(back.method, back.path, urls, seconds=BACK_SECONDS)
        self.pauses_given_up += 1
        self._set(weights.give_up(self.state))
        failed = [f"{item.engine}: {item.why()}" for item in results if not item.ok]
        log.error(
            "the pool was paused for more than %.0f s (engine.rl.maxPauseSeconds) and goes on; %s",
            self._limit(),
            "; ".join(failed) or f"{back.path} was sent to all engines",
        )

    async def _look(self) -> None:
        """Take over what the engines say; the lock must be held, so that no call changes it meanwhile."""
        self._take_list()
        urls = self._urls(self.state.engines)
        said = await asyncio.gather(*(self._engines.look(name, url) for name, url in urls.items()))
        before = self.state
        self._take_list()
        state = weights.observed(self.state, dict(zip(urls, said, strict=True)), self._clock())
        for name, engine in state.engines.items():
            old = before.engines.get(name)
            if old is not None and old.version is not None and engine.version != old.version:
                self._fleet.prefixes.forget(name)
        self._set(state)

    def _take_list(self) -> None:
        self._set(weights.listed(self.state, self._fleet.engines.keys()))

    def _urls(self, names: Any) -> dict[str, str]:
        known = self._fleet.engines
        return {name: known[name].url for name in names if name in known}

    def _set(self, state: Weights) -> None:
        """Take over a state: gate and bars follow it."""
        before, self.state = self.state, state
        self._move_gate()
        old, new = weights.stale(before), weights.stale(state)
        for name in old.keys() - new.keys():
            log.info("engine %s has the pool's weights", name)
            self._fleet.unbar(name, Bar.STALE_WEIGHTS)
        for name, why in new.items():
            if old.get(name) != why:
                log.warning("engine %s gets no requests: it %s", name, why)
            self._fleet.bar(name, Bar.STALE_WEIGHTS)
        homes = (name for name, engine in self._fleet.engines.items() if engine.holds_sessions)
        if not weights.all_stale(state, homes):
            self._unserved_since = None
        elif self._unserved_since is None:
            self._unserved_since = int(time.time())
            log.error("no engine has the pool's weights: requests wait for a whole weight update")

    def _move_gate(self) -> None:
        pause = self._pause()
        if pause is None and not self.gate.is_open:
            log.info("the pool is not paused: %d requests go on", self.gate.waiting)
            self.gate.open()
        elif pause is not None and self.gate.is_open:
            log.info("the pool is paused (%s)", pause.by)
            self.gate.close()


def _all_ok(results: tuple[EngineResult, ...]) -> bool:
    return all(item.ok for item in results)
