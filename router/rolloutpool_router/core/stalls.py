"""Engines that fall silent: they took generations, and deliver nothing on any of them while others do.

Looked at once a second, from outside the data path: of each open answer only the time of its latest bytes is
read. An engine's quiet time grows while it owes something and delivers nothing (no piece of an answer's body,
no generation that ends well); any delivery ends it. It grows in full only while other engines of its kind
deliver: a fleet that is paused for new weights, or a router that was stopped for a while, is silent as a
whole, and that is no engine's fault. Where the others have nothing to do it grows slowly, alone not at all.

What is too quiet follows the engine's own pace: some times its longest quiet time that ended well, and never
less than a floor that depends on what is awaited: the next token, the first (its prompt may be long), or the
whole answer of a request that is not streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

MOST_STEP_SECONDS = 2.0
"""Most that quiet time grows from one look to the next, in seconds: the router may have been stopped."""
OTHERS_SECONDS = 5.0
"""Most silence that one delivery of another engine makes count, in seconds: longer ones were everybody's."""
IDLE_OTHERS_RATE = 0.2
"""Seconds of quiet time per second of silence where the other engines have nothing to do."""
SUSPECT_PART = 0.5
"""Part of its bound from which an engine is suspected: it is asked whether it is paused."""


class Heard(Protocol):
    """An answer whose head has arrived."""

    @property
    def last_byte_at(self) -> float:
        """When its latest bytes came, in seconds of the router's clock."""

    @property
    def is_held(self) -> bool:
        """Whether it is not read on, since its client is slower: what does not come then is not owed."""

    def close(self) -> None:
        """Break it off."""


class Awaited(IntEnum):
    """What an engine owes, the most telling last."""

    ANSWER = 0
    """The head of an answer: without streaming it comes with the whole."""
    FIRST_TOKEN = 1
    """The first piece of a body."""
    NEXT_TOKEN = 2
    """Another piece of a body."""


@dataclass(frozen=True, slots=True)
class StallBounds:
    """When an engine has been quiet for too long; seconds."""

    answer_seconds: float = 900.0
    """Floor while all that is open waits for its head: one long generation may be all that an engine has."""
    first_token_seconds: float = 300.0
    """Floor while streams have begun and none has a token: prompts of a million tokens take minutes."""
    next_token_seconds: float = 60.0
    """Floor while streams that had tokens are open."""
    factor: float = 4.0
    """Times the longest quiet time of the engine that ended with a delivery."""
    most_seconds: float = 7200.0
    """No bound is longer."""
    half_life_seconds: float = 1800.0
    """How fast the longest quiet time is forgotten."""

    def bound(self, awaited: Awaited, longest: float) -> float:
        """Seconds of quiet time after which an engine has stalled, given its longest that ended well."""
        floor = (self.answer_seconds, self.first_token_seconds, self.next_token_seconds)[awaited]
        return min(self.most_seconds, max(floor, self.factor * longest))


@dataclass(eq=False, slots=True)
class Attempt:
    """One generation (or leg of it) that was sent to an engine."""

    engine: str
    trial: bool = False
    """It is to show whether an ejected engine works again."""
    answer: Heard | None = None
    """None until its head has arrived."""
    heard_at: float = 0.0
    """`last_byte_at` as of the head, then as of the last look."""
    has_tokens: bool = False
    """A piece of the body came after the head."""
    stalled: bool = False
    """It was broken off because nothing came."""

    def head_arrived(self, answer: Heard) -> None:
        """The head of the answer is here; nothing of its body counts yet."""
        self.answer = answer
        self.heard_at = answer.last_byte_at

    def delivers(self) -> bool:
        """Whether a piece of its body came since the last look."""
        if self.answer is None or self.answer.last_byte_at <= self.heard_at:
            return False
        self.heard_at = self.answer.last_byte_at
        self.has_tokens = True
        return True

    @property
    def is_held(self) -> bool:
        """Whether the router itself does not read its answer on."""
        return self.answer is not None and self.answer.is_held

    @property
    def awaited(self) -> Awaited:
        """What comes next."""
        if self.answer is None:
            return Awaited.ANSWER
        return Awaited.NEXT_TOKEN if self.has_tokens else Awaited.FIRST_TOKEN


@dataclass(slots=True)
class _Pace:
    """One engine's deliveries."""

    quiet: float = 0.0
    """Seconds of silence that count."""
    waiting: float = 0.0
    """Further seconds of silence, which count if another engine delivers."""
    awaited: Awaited | None = None
    """What it owes; None: nothing."""
    delivered: bool = False
    """Since the last look."""
    delivered_at: float = float("-inf")
    longest: dict[Awaited, float] = field(default_factory=dict)
    """Longest quiet time that ended with a delivery, by what was awaited; fades."""

    def ends_quiet(self, now: float) -> None:
        """It delivered."""
        if self.awaited is not None and self.quiet > 0:
            self.longest[self.awaited] = max(self.longest.get(self.awaited, 0.0), self.quiet)
        self.start_anew()
        self.delivered, self.delivered_at = False, now

    def start_anew(self) -> None:
        """Nothing is held against it."""
        self.quiet = self.waiting = 0.0

    def is_silent(self, step: float, crowd: _Crowd) -> None:
        """It owes something and delivered nothing for `step` seconds more, in this crowd."""
        self.waiting += step
        if crowd.delivering:
            self.quiet += min(self.waiting, OTHERS_SECONDS)
            self.waiting = 0.0
        elif crowd.engines > 1 and crowd.busy == 1:
            self.quiet += IDLE_OTHERS_RATE * step
            self.waiting = 0.0


@dataclass(slots=True)
class _Crowd:
    """The engines of one kind."""

    engines: int = 0
    busy: int = 0
    """Engines that owe something."""
    delivering: int = 0
    """Engines that delivered since the last look."""

    def add(self, pace: _Pace | None, now: float) -> None:
        """Count one engine."""
        self.engines += 1
        if pace is not None:
            self.busy += pace.awaited is not None
            self.delivering += pace.delivered_at == now


@dataclass(frozen=True, slots=True)
class Stall:
    """An engine that has been quiet for too long."""

    engine: str
    why: str


class Stalls:
    """Watches the pace of all engines."""

    def __init__(self, bounds: StallBounds | None = None) -> None:
        self.bounds = bounds or StallBounds()
        self._paces: dict[str, _Pace] = {}
        self._looked_at: float | None = None

    def keep(self, engines: Iterable[str]) -> None:
        """Forget engines that are not among these."""
        self._paces = {name: self._paces[name] for name in engines if name in self._paces}

    def delivered(self, engine: str) -> None:
        """A generation of the engine ended well."""
        self._pace(engine).delivered = True

    def is_delivering(self, engine: str) -> bool:
        """Whether the engine delivered a moment before the last look, or since."""
        pace = self._paces.get(engine)
        lately = (self._looked_at or 0.0) - OTHERS_SECONDS
        return pace is not None and (pace.delivered or pace.delivered_at >= lately)

    def excuse(self, engine: str) -> None:
        """The engine's silence has a reason (it is paused): its quiet time starts anew."""
        if (pace := self._paces.get(engine)) is not None:
            pace.start_anew()

    def is_suspect(self, engine: str) -> bool:
        """Whether the engine has been quiet for a good part of what is too long."""
        pace = self._paces.get(engine)
        return pace is not None and pace.quiet > SUSPECT_PART * self._bound(pace)

    def look(
        self, attempts: Iterable[Attempt], kinds: Mapping[str, bool], now: float, *, paused: bool = False
    ) -> list[Stall]:
        """Engines that have been quiet for too long; each is told once per bound.

        Args:
            attempts: all that are open.
            kinds: the engines, by name; those of one kind are held against each other.
            now: seconds.
            paused: the pool is paused: silence means nothing.
        """
        step = 0.0 if self._looked_at is None else min(max(0.0, now - self._looked_at), MOST_STEP_SECONDS)
        self._looked_at = now
        kept = 0.5 ** (step / self.bounds.half_life_seconds)
        self._read(attempts, now)
        crowds = self._crowds(kinds, now)
        for name, pace in self._paces.items():
            pace.longest = {awaited: longest * kept for awaited, longest in pace.longest.items()}
            if pace.awaited is None or paused:
                pace.start_anew()
            elif pace.delivered_at < now and name in kinds:
                pace.is_silent(step, crowds[kinds[name]])
        return [stall for name, pace in self._paces.items() if (stall := self._stall(name, pace))]

    def _read(self, attempts: Iterable[Attempt], now: float) -> None:
        """Take up what was delivered since the last look, and what is owed now."""
        owed: dict[str, Awaited] = {}
        delivering: set[str] = set()
        for attempt in attempts:
            engine = attempt.engine
            if attempt.delivers():
                delivering.add(engine)
            if not attempt.is_held and attempt.awaited >= owed.get(engine, Awaited.ANSWER):
                owed[engine] = attempt.awaited
        for name in owed.keys() | delivering:
            self._pace(name).delivered |= name in delivering
        for name, pace in self._paces.items():
            if pace.delivered:
                pace.ends_quiet(now)
            pace.awaited = owed.get(name)

    def _crowds(self, kinds: Mapping[str, bool], now: float) -> dict[bool, _Crowd]:
        """What the engines of each kind do."""
        crowds = {True: _Crowd(), False: _Crowd()}
        for name, kind in kinds.items():
            crowds[kind].add(self._paces.get(name), now)
        return crowds

    def _stall(self, name: str, pace: _Pace) -> Stall | None:
        quiet = pace.quiet
        if pace.awaited is None or quiet <= self._bound(pace):
            return None
        pace.start_anew()
        return Stall(name, f"it delivered nothing for {quiet:.0f} s while others did")

    def _bound(self, pace: _Pace) -> float:
        awaited = Awaited.ANSWER if pace.awaited is None else pace.awaited
        return self.bounds.bound(awaited, pace.longest.get(awaited, 0.0))

    def _pace(self, engine: str) -> _Pace:
        pace = self._paces.get(engine)
        if pace is None:
            pace = self._paces[engine] = _Pace()
        return pace
