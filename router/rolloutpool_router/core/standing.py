"""Which engines take new sessions, which only go on with theirs, and which are out: all of them at one time.

An engine that is ejected, or that leaves probes unanswered, is out only while another of its kind (those that
hold sessions, or those that only prefill) is sound. With none left, what was held against them is void:
requests are better tried than held for ever, and a fault that all engines share is no engine's. What is never
void: weights that are stale, pods that are gone, and the short back-off after connection errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from rolloutpool_router.core.health import HEALTHY, MOST_TRIALS, UNANSWERED_PROBES, EngineHealth
from rolloutpool_router.core.view import Engine


class Bar(StrEnum):
    """Why an engine must not be used, as told from outside."""

    DRAINING = "draining"
    """It is about to go: no new sessions; those there go on."""
    STALE_WEIGHTS = "stale_weights"
    """Its weights are not those of the pool: no request at all."""
    GONE = "gone"
    """Its pod does not exist: no request at all."""


CLOSED = frozenset({Bar.STALE_WEIGHTS, Bar.GONE})
"""Bars that let no request pass."""


class Standing(StrEnum):
    """How the router treats an engine: a closed set, for metrics."""

    UP = "up"
    NOT_READY = "not_ready"
    DRAINING = "draining"
    EJECTED = "ejected"
    STALE_WEIGHTS = "stale_weights"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine's standing, and why in words."""

    standing: Standing
    reason: str


class Passes(Enum):
    """Requests that may be sent to an engine."""

    NONE = 0
    TRIAL = 1
    """That of the session for which the trial is kept."""
    ANY = 2


@dataclass(slots=True)
class Signs:
    """What is known of an engine."""

    engine: Engine
    health: EngineHealth
    bars: Set[Bar]
    ready: bool
    """Whether it serves, as far as anybody saw."""

    @property
    def is_sound(self) -> bool:
        """Whether sessions can count on it; a connection error of a moment ago does not matter."""
        fit = self.health.ejection is None and not self.health.is_away
        return self.ready and not self.bars and fit

    @property
    def is_silent(self) -> bool:
        """Whether it leaves probes unanswered; void where no other engine is sound."""
        return self.health.unanswered >= UNANSWERED_PROBES

    @property
    def takes_sessions(self) -> bool:
        """Whether new sessions may go there, if any request may."""
        return self.ready and Bar.DRAINING not in self.bars

    def passes(self, now: float, *, void: bool) -> Passes:
        """Which requests may be sent now; `void`: no engine of its kind is sound."""
        health = self.health
        if self.bars & CLOSED or not health.healthy(now) or (self.is_silent and not void):
            return Passes.NONE
        if health.ejection is None or void or health.ejection.is_free(now):
            return Passes.ANY
        return Passes.TRIAL if health.ejection.is_due(now) else Passes.NONE

    def next_change(self, now: float) -> float:
        """When it may stand otherwise if nothing happens, in seconds; infinite: never."""
        if self.health is HEALTHY:
            return math.inf
        times = [self.health.out_until]
        if (ejection := self.health.ejection) is not None:
            times += [ejection.trial_from, ejection.reserved_until]
        return min((time for time in times if time > now), default=math.inf)


@dataclass(frozen=True)
class Standings:
    """All engines within some span of time."""

    reachable: frozenset[str]
    """Engines that requests of their residents go to."""
    reserved: frozenset[str]
    """Ejected engines whose trial is kept for a session that was let in."""
    up: frozenset[str]
    """Engines that take new sessions."""
    homes: tuple[Engine, ...]
    """Those that are up and hold sessions, in the order of the view."""
    void: frozenset[bool]
    """Kinds (`Engine.holds_sessions`) without a sound engine."""
    since: float
    until: float
    """When this may change by itself, in seconds."""

    def outdated(self) -> Standings:
        """The same, known to hold no longer."""
        return replace(self, since=math.inf)

    def with_homes(self, homes: tuple[Engine, ...]) -> Standings:
        """The same with an equal tuple."""
        return replace(self, homes=homes)


NOBODY = Standings(frozenset(), frozenset(), frozenset(), (), frozenset(), math.inf, -math.inf)
"""What stands while nothing is known."""


def stand(signs: Mapping[str, Signs], now: float) -> Standings:
    """How all engines stand now.

    Args:
        signs: what is known of each, by name.
        now: seconds.
    """
    sound = {sign.engine.holds_sessions for sign in signs.values() if sign.is_sound}
    passing = {
        name: sign.passes(now, void=sign.engine.holds_sessions not in sound) for name, sign in signs.items()
    }
    reachable = frozenset(name for name, passes in passing.items() if passes is Passes.ANY)
    up = [sign for name, sign in signs.items() if name in reachable and sign.takes_sessions]
    return Standings(
        reachable=reachable,
        reserved=frozenset(name for name, passes in passing.items() if passes is Passes.TRIAL),
        up=frozenset(sign.engine.name for sign in up),
        homes=tuple(sign.engine for sign in up if sign.engine.holds_sessions),
        void=frozenset({True, False} - sound),
        since=now,
        until=min((sign.next_change(now) for sign in signs.values()), default=math.inf),
    )


def describe(sign: Signs, now: float, *, void: bool) -> EngineState:
    """The state of one engine; `void`: no engine of its kind is sound."""
    health, bars = sign.health, sign.bars
    if Bar.GONE in bars:
        return EngineState(Standing.UNREACHABLE, "its pod does not exist")
    if Bar.STALE_WEIGHTS in bars:
        return EngineState(Standing.STALE_WEIGHTS, "its weights are not those of the pool")
    if not health.healthy(now):
        left = health.out_until - now
        text = f"{health.connect_failures} connection errors in a row; tried again in {left:.1f} s"
        return EngineState(Standing.UNREACHABLE, text)
    if health.ejection is not None:
        return EngineState(Standing.EJECTED, _ejected(health, now, void=void))
    if sign.is_silent:
        text = f"{health.unanswered} probes in a row were not answered"
        return EngineState(Standing.UNREACHABLE, f"{text}; {TRIED_ALL_THE_SAME}" if void else text)
    if Bar.DRAINING in bars:
        return EngineState(
            Standing.DRAINING, "it is about to go: its sessions go on, and it gets no new ones"
        )
    if not sign.ready:
        return EngineState(
            Standing.NOT_READY, "nobody saw it serve: its sessions go on, and it gets no new ones"
        )
    return EngineState(Standing.UP, "it serves")


TRIED_ALL_THE_SAME = "no other engine is sound, so it is tried all the same"


def _ejected(health: EngineHealth, now: float, *, void: bool) -> str:
    ejection = health.ejection
    assert ejection is not None
    if void:
        return f"{ejection.why}; {TRIED_ALL_THE_SAME}"
    why = ejection.why
    if ejection.trials:
        why += f"; trials under way: {ejection.trials}"
    if ejection.trials >= MOST_TRIALS:
        return why
    if now < ejection.trial_from:
        return f"{why}; the next trial in {ejection.trial_from - now:.1f} s"
    return f"{why}; the next generation is a trial"
