"""The engines of a pool as the router sees them: which are up, what they hold, and what prefill owes.

How they stand is computed anew only after something changed or a back-off ended, so that asking costs one
look-up however many engines there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rolloutpool_api.planning import Role
from rolloutpool_router.core.endpoints import Pod
from rolloutpool_router.core.health import HEALTHY, EngineHealth
from rolloutpool_router.core.pd import Local, PrefillEngine, Remote, choose_prefill
from rolloutpool_router.core.prefix import PrefixIndex, PrefixKey
from rolloutpool_router.core.stalls import Attempt, Stalls
from rolloutpool_router.core.standing import (
    NOBODY,
    Bar,
    EngineState,
    Signs,
    Standing,
    Standings,
    describe,
    stand,
)
from rolloutpool_router.core.view import Engine, PoolView

if TYPE_CHECKING:
    from random import Random

NO_BARS: frozenset[Bar] = frozenset()


class Fleet:
    """Engines of the view in force, with their health, cached prefixes, and the generations under way."""

    def __init__(self) -> None:
        self.prefixes = PrefixIndex()
        self.stalls = Stalls()
        self.has_prefill = False
        """Whether any engine does nothing but prefill."""
        self.prefill_tokens: Counter[str] = Counter()
        """Prompt tokens that each prefill engine was sent and has not answered."""
        self.ejections: Counter[str] = Counter()
        """How often each engine was ejected; trials that fail do not count."""
        self.on_apply: Callable[[], None] = lambda: None
        """Called after a view was taken over, before anybody chooses an engine of it."""
        self._view: PoolView | None = None
        self._health: dict[str, EngineHealth] = {}
        """Engines that something speaks against."""
        self._bars: dict[str, frozenset[Bar]] = {}
        self._answering: set[str] = set()
        """Engines whose model answered this router when it last asked, whatever the object says."""
        self._pods: Mapping[str, Pod] | None = None
        """Pods by engine, as Kubernetes tells; None while it does not."""
        self._are_pods = False
        """Some engine has a pod: one without has gone. Engines elsewhere have none at all."""
        self._attempts: set[Attempt] = set()
        self._standings: Standings = NOBODY

    @property
    def engines(self) -> Mapping[str, Engine]:
        """Engines that the object lists, by name."""
        return self._view.engines if self._view is not None else {}

    @property
    def has_status(self) -> bool:
        """Whether the object tells caps."""
        return self._view is not None and self._view.admission is not None

    def apply(self, view: PoolView) -> None:
        """Take over a new view; what was known of engines that are gone is forgotten."""
        for gone in self.engines.keys() - view.engines.keys():
            self.prefixes.forget(gone)
            self._health.pop(gone, None)
            self._bars.pop(gone, None)
            self.ejections.pop(gone, None)
        self._view = view
        self._answering &= view.engines.keys()
        self.stalls.keep(view.engines)
        self.has_prefill = any(engine.role is Role.PREFILL for engine in view.engines.values())
        self._changed()
        self.on_apply()

    # Generations: what an engine is judged by.

    def generation_begins(self, engine: str, now: float) -> Attempt | None:
        """A generation is about to be sent to an engine; None: it must not be, so ask for another engine.

        After an attempt, `generation_ended` is due exactly once.
        """
        standings = self._at(now)
        if engine not in standings.reachable and engine not in standings.reserved:
            return None
        health = self._health.get(engine)
        trial = health is not None and health.ejection is not None and not self._is_void(engine, standings)
        if health is not None and trial:
            self._set(engine, health.trial_began(now))
        attempt = Attempt(engine, trial)
        self._attempts.add(attempt)
        return attempt

    def generation_ended(self, attempt: Attempt, now: float, *, ok: bool | None) -> None:
        """A generation ended.

        Args:
            attempt: as it began.
            now: seconds.
            ok: True: its answer was 2xx and came whole. False: the engine's fault (5xx, broken off, garbage,
                stalled). None: it says nothing of the engine (4xx, the client went away, no connection).
        """
        self._attempts.discard(attempt)
        engine = attempt.engine
        if ok:
            self.stalls.delivered(engine)
        if engine not in self.engines or (ok and engine not in self._health):
            return
        health = self._health.get(engine, HEALTHY)
        if ok:
            self._set(engine, health.succeeded(now))
        elif ok is False:
            self._set(engine, health.generation_failed(now, trial=attempt.trial))
        elif attempt.trial:
            self._set(engine, health.trial_ended(now))

    def entering(self, engine: str, now: float) -> None:
        """A session was put on an engine: where that one is ejected, the session is its trial."""
        health = self._health.get(engine)
        if health is None or health.ejection is None or self._is_void(engine, self._at(now)):
            return
        self._set(engine, health.trial_reserved(now))

    def stalled_answers(self, now: float, *, paused: bool = False) -> list[Attempt]:
        """Eject engines that have been silent for too long; their open answers, which must be broken off.

        To be called once a second. Requests without any answer yet are not among them: they may be long ones.

        Args:
            now: seconds.
            paused: the whole pool is paused: silence means nothing.
        """
        kinds = {name: engine.holds_sessions for name, engine in self.engines.items()}
        stalls = self.stalls.look(self._attempts, kinds, now, paused=paused)
        for stall in stalls:
            self._set(stall.engine, self._health.get(stall.engine, HEALTHY).ejected(now, stall.why))
        stalled = {stall.engine for stall in stalls}
        hit = [attempt for attempt in self._attempts if attempt.engine in stalled]
        for attempt in hit:
            # A trial that hangs has failed: what becomes of it later says nothing more.
            attempt.trial = False
            attempt.stalled = attempt.answer is not None and not attempt.is_held
        return [attempt for attempt in hit if attempt.stalled]

    # Connections and probes: whether it is there.

    def failed(self, engine: str, now: float) -> None:
        """A connection to the engine failed: it is out for a while."""
        self._answering.discard(engine)
        if engine in self.engines:
            self._set(engine, self._health.get(engine, HEALTHY).failed(now))
            self._changed()

    def answered(self, engine: str) -> None:
        """The engine answered something: it is there."""
        health = self._health.get(engine)
        if health is not None:
            self._set(engine, health.answered())

    def probed(self, engine: str, *, serves: bool | None) -> None:
        """An engine was asked for its models.

        Args:
            engine: its name.
            serves: True: it has them. False: no answer, or an error. None: it answers without them (4xx).
        """
        if engine not in self.engines:
            return
        if serves is not False:
            self.answered(engine)
        elif not self.stalls.is_delivering(engine):
            self._set(engine, self._health.get(engine, HEALTHY).unheard())
        if bool(serves) is not (engine in self._answering):
            (self._answering.add if serves else self._answering.discard)(engine)
            self._changed()

    # What others tell of engines.

    def bar(self, engine: str, reason: Bar) -> None:
        """Keep requests away from an engine, as far as the reason goes, until `unbar`."""
        if engine in self.engines and reason not in self._bars.get(engine, NO_BARS):
            self._bars[engine] = self._bars.get(engine, NO_BARS) | {reason}
            self._changed()

    def unbar(self, engine: str, reason: Bar) -> None:
        """That reason is no more."""
        if reason in self._bars.get(engine, NO_BARS):
            self._bars[engine] -= {reason}
            self._changed()

    def pods_seen(self, pods: Mapping[str, Pod] | None) -> None:
        """The pods of all engines as Kubernetes tells them now; None: it does not tell any more."""
        if pods == self._pods:
            return
        for name, before in (self._pods or {}).items():
            now = (pods or {}).get(name)
            if pods is not None and before.serving and (now is None or not now.serving):
                self.prefixes.forget(name)  # it comes back with an empty cache
        self._pods = pods
        self._changed()

    # How the engines stand.

    def reachable(self, engine: str, now: float) -> bool:
        """Whether requests of the engine's residents may go there."""
        return engine in self._at(now).reachable

    def is_up(self, engine: str, now: float) -> bool:
        """Whether new sessions may go there: reachable, not about to go, and somebody saw it serve."""
        return engine in self._at(now).up

    def homes(self, now: float) -> tuple[Engine, ...]:
        """Engines that are up and hold sessions: aggregated and decode. The same tuple while they are."""
        return self._at(now).homes

    def state(self, engine: str, now: float) -> EngineState:
        """How the router treats an engine, and why."""
        known = self.engines.get(engine)
        if known is None:
            return EngineState(Standing.UNREACHABLE, "it is not part of the pool")
        return describe(self._signs(known), now, void=self._is_void(engine, self._at(now)))

    def choose_prefill(
        self, home: str, *, prefix: Sequence[PrefixKey], prompt_tokens: int, now: float, rng: Random
    ) -> Local | Remote:
        """Where the prompt of a session on engine `home` is computed; `prompt_tokens` is an estimate."""
        engine = self.engines.get(home)
        if engine is None or engine.role is not Role.DECODE:
            return Local("the engine is not a decode engine")
        overlaps = self.prefixes.overlaps(prefix)
        candidates = [
            PrefillEngine(
                name=e.name,
                revision=e.revision,
                outstanding_tokens=self.prefill_tokens[e.name],
                cached_tokens=prompt_tokens * overlaps[e.name] // len(prefix) if prefix else 0,
            )
            for e in self.engines.values()
            if e.role is Role.PREFILL and self.is_up(e.name, now)
        ]
        return choose_prefill(candidates, revision=engine.revision, prompt_tokens=prompt_tokens, rng=rng)

    def prefill_started(self, engine: str, prompt_tokens: int) -> None:
        """A prompt was sent to a prefill engine."""
        self.prefill_tokens[engine] += prompt_tokens

    def prefill_ended(self, engine: str, prompt_tokens: int) -> None:
        """That prompt was answered, or given up."""
        self.prefill_tokens[engine] -= prompt_tokens
        if self.prefill_tokens[engine] <= 0:
            del self.prefill_tokens[engine]

    def _at(self, now: float) -> Standings:
        known = self._standings
        if known.since <= now < known.until:
            return known
        fresh = stand({name: self._signs(engine) for name, engine in self.engines.items()}, now)
        if len(fresh.homes) == len(known.homes) and all(map(_is_same, fresh.homes, known.homes)):
            fresh = fresh.with_homes(known.homes)
        self._standings = fresh
        return fresh

    def _changed(self) -> None:
        self._standings = self._standings.outdated()
        self._are_pods = self._pods is not None and not self._pods.keys().isdisjoint(self.engines)

    def _set(self, engine: str, health: EngineHealth) -> None:
        before = self._health.get(engine, HEALTHY)
        self.ejections[engine] += before.ejection is None and health.ejection is not None
        if health == HEALTHY:
            self._health.pop(engine, None)
        else:
            self._health[engine] = health
        if not before.stands_as(health):
            self._changed()

    def _is_void(self, engine: str, standings: Standings) -> bool:
        known = self.engines.get(engine)
        return known is not None and known.holds_sessions in standings.void

    def _signs(self, engine: Engine) -> Signs:
        name, bars, ready = engine.name, self._bars.get(engine.name, NO_BARS), engine.ready
        pod = self._pods.get(name) if self._pods is not None else None
        if engine.draining or (pod is not None and pod.terminating):
            bars |= {Bar.DRAINING}
        if pod is not None:
            ready = pod.serving
        elif self._are_pods:
            bars |= {Bar.GONE}
        return Signs(engine, self._health.get(name, HEALTHY), bars, ready or name in self._answering)


def _is_same(one: Engine, other: Engine) -> bool:
    return one is other
