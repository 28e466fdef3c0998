"""A policy to compare with: whole sessions ("programs") are let in, paused and resumed by KV footprint alone.

After ThunderAgent (arXiv 2602.13692, and `wiki/Scheduler.md` of its repository), its port in Dynamo
(`thunderagent_router`) and its proposals for vLLM's and llm-d's routers:

- a session counts with the tokens of its history, running or in a tool gap; a shared prompt counts once;
- a new session enters the engine with the most room if its prompt fits there, first come first served;
- where an engine's sessions exceed its capacity, sessions in a tool gap are paused, the smallest first, and
  where they are too few, running ones as soon as their turn ends: they no longer count, and their next turn
  waits in one queue for all engines;
- paused sessions with a waiting turn resume before new ones enter, where they fit with some hysteresis;
- a turn of a session that is not paused always goes straight to its engine;
- nobody waits longer than half an hour.

It knows no classes: the mixture is whatever comes of it. Kinder than the original here: it looks once a
second instead of every five, lets sessions in at once when another ends, knows the token counts of finished
turns exactly, and takes running ones to grow at their engine's pace instead of by a fixed buffer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolloutpool_router.core.outcomes import Refusal
from rolloutpool_router.core.requests import Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_sim.fleet.opened import OpenSample
from rolloutpool_sim.fleet.scenario import ProgramGate

LONGEST_WAIT_SECONDS = 1800.0
"""After this a waiting session enters the engine with the most room whether or not it fits, in seconds."""
PRIOR_PACE = 33.0
"""Tokens that a running turn is taken to gain per second before any turn of its engine ended."""
PACE_WEIGHT = 0.05
"""Weight of the latest turn in an engine's pace."""
MIN_PACE_TOKENS = 16
"""Tokens of an answer from which its pace counts."""
DECODE_TOKENS = 100
"""Tokens held ready for the answer of each session, as ThunderAgent's buffer per program."""


@dataclass(slots=True, eq=False)
class Program:
    """A session that is not over."""

    opened: OpenSample
    arrived_at: float
    """When it began to wait, in seconds."""
    engine: str | None = None
    """Where it counts; None while it waits or is paused."""
    tokens: float = 0.0
    """Tokens of its own history and the buffer, as it is counted."""
    turn_tokens: float = 0.0
    """The same when its turn began."""
    turn_began: float = 0.0
    """When its turn entered, in seconds."""
    acting: bool = False
    """In a tool gap."""
    marked: bool = False
    """To be paused when its turn ends."""

    def begin_turn(self, now: float) -> None:
        """A turn of it goes to its engine."""
        self.acting, self.turn_tokens, self.turn_began = False, self.tokens, now


class EngineRoom:
    """What counts against one engine."""

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.tokens = 0.0
        self.pace = PRIOR_PACE
        """Tokens that a running turn gains per second."""
        self.programs: dict[str, Program] = {}
        self._shared: Counter[object] = Counter()

    @property
    def filled(self) -> float:
        """Part of the capacity that counts as filled."""
        return self.tokens / self.capacity_tokens

    def missing(self, program: Program) -> float:
        """Tokens that it would add."""
        new = [part.tokens for part in program.opened.sample.group.prompt if not self._shared[part.key]]
        return program.tokens + sum(new)

    def add(self, name: str, program: Program) -> None:
        """It counts here from now on."""
        self.tokens += self.missing(program)
        self._shared.update(part.key for part in program.opened.sample.group.prompt)
        self.programs[name] = program

    def remove(self, name: str) -> Program:
        """It counts no more."""
        program = self.programs.pop(name)
        self.tokens -= program.tokens
        for part in program.opened.sample.group.prompt:
            self._shared[part.key] -= 1
            if not self._shared[part.key]:
                del self._shared[part.key]
                self.tokens -= part.tokens
        return program

    def grow(self, now: float) -> None:
        """Running turns have grown at the engine's pace."""
        for program in self.programs.values():
            if not program.acting:
                self.resize(program, program.turn_tokens + self.pace * (now - program.turn_began))

    def learn_pace(self, tokens: int, seconds: float) -> None:
        """A turn has generated as many tokens in this time."""
        if tokens >= MIN_PACE_TOKENS and seconds > 0:
            self.pace += PACE_WEIGHT * (tokens / seconds - self.pace)

    def resize(self, program: Program, tokens: float) -> None:
        """One of those here has this many tokens now."""
        self.tokens += tokens - program.tokens
        program.tokens = tokens


class ProgramScheduler:
    """A `SessionGate` that pauses and resumes whole sessions."""

    def __init__(self, settings: ProgramGate, engines: Sequence[str], capacity_tokens: int) -> None:
        self._settings = settings
        self._rooms = {name: EngineRoom(capacity_tokens) for name in engines}
        self._down: set[str] = set()
        self._known: dict[str, Program] = {}
        self._returning: OrderedDict[str, Program] = OrderedDict()
        self._new: OrderedDict[str, Program] = OrderedDict()

    def arrive(self, opened: OpenSample, now: float) -> list[Entered] | Refusal:
        """As in `SessionGate`."""
        name = opened.sample.name
        program = self._known.get(name)
        if program is not None and program.engine is not None:
            self._rooms[program.engine].resize(program, _own_tokens(opened))
            program.begin_turn(now)
            return [_entered(program)]
        if program is None:
            program = self._known[name] = Program(opened, now)
        program.arrived_at, program.tokens, program.acting = now, _own_tokens(opened), False
        (self._returning if opened.turn else self._new)[name] = program
        return self._admit(now)

    def reroute(self, session: str, now: float) -> list[Entered] | Refusal:
        """As in `SessionGate`: it waits for room elsewhere."""
        program = self._known[session]
        self._take_out(program)
        program.arrived_at = now
        self._returning[session] = program
        return self._admit(now)

    def end_turn(self, session: str, now: float, *, usage: Usage | None) -> None:
        """As in `SessionGate`."""
        program = self._known[session]
        program.acting = True
        if usage is not None and program.engine is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens
            room = self._rooms[program.engine]
            room.resize(program, tokens - program.opened.sample.group.prompt_tokens + DECODE_TOKENS)
            room.learn_pace(usage.completion_tokens, now - program.turn_began)
        if program.marked:
            self._take_out(program)

    def finish(self, session: str, now: float) -> None:
        """As in `SessionGate`."""
        program = self._known.pop(session)
        if program.engine is not None:
            self._rooms[program.engine].remove(session)

    def forget(self, session: str) -> None:
        """As in `SessionGate`: forgotten already."""

    def admit(self, session: str, now: float) -> list[Entered]:
        """As in `SessionGate`."""
        return self._admit(now)

    def tick(self, now: float) -> list[Entered]:
        """As in `SessionGate`; lost engines are tried again."""
        self._down.clear()
        for room in self._rooms.values():
            room.grow(now)
            self._pause(room)
        return self._admit(now)

    def engine_failed(self, session: str, engine: str, now: float) -> None:
        """As in `SessionGate`: nobody goes there before the next tick, and its sessions lost their cache."""
        self._down.add(engine)
        room = self._rooms[engine]
        for name in [name for name, program in room.programs.items() if program.acting]:
            self._take_out(room.programs[name])

    def is_resident(self, session: str) -> bool:
        """As in `SessionGate`."""
        program = self._known.get(session)
        return program is not None and program.engine is not None

    def active(self) -> Mapping[str, int]:
        """As in `SessionGate`."""
        return Counter(
            program.opened.sample.class_name
            for room in self._rooms.values()
            for program in room.programs.values()
        )

    def waiting(self) -> Mapping[str, int]:
        """As in `SessionGate`."""
        queued = (*self._returning.values(), *self._new.values())
        return Counter(program.opened.sample.class_name for program in queued)

    def caps(self) -> Mapping[str, int]:
        """As in `SessionGate`: there are none."""
        return {}

    def _take_out(self, program: Program) -> None:
        """It counts nowhere any more."""
        if program.engine is not None:
            self._rooms[program.engine].remove(program.opened.sample.name)
        program.engine, program.marked = None, False

    def _pause(self, room: EngineRoom) -> None:
        """An engine that is too full: sessions give their place back until it is below the low watermark."""
        if room.filled <= self._settings.high_watermark:
            return
        leaving = sum(program.tokens for program in room.programs.values() if program.marked)
        excess = room.tokens - leaving - self._settings.low_watermark * room.capacity_tokens
        for program in sorted(room.programs.values(), key=lambda p: (not p.acting, p.tokens)):
            if excess <= 0:
                return
            if program.marked:
                continue
            excess -= program.tokens
            if program.acting:
                self._take_out(program)
            else:
                program.marked = True

    def _admit(self, now: float) -> list[Entered]:
        """Whoever may go now, paused sessions first; the first that does not fit keeps the others waiting."""
        entered: list[Entered] = []
        settings = self._settings
        for queue, part in (
            (self._returning, settings.low_watermark),
            (self._new, settings.admit_fraction),
        ):
            while queue:
                name, program = next(iter(queue.items()))
                engine = self._engine_for(
                    program, part, forced=now - program.arrived_at >= LONGEST_WAIT_SECONDS
                )
                if engine is None:
                    return entered
                del queue[name]
                program.engine = engine
                self._rooms[engine].add(name, program)
                program.begin_turn(now)
                entered.append(_entered(program, now - program.arrived_at))
        return entered

    def _engine_for(self, program: Program, part: float, *, forced: bool) -> str | None:
        """The engine with the most room, if the session fits there or is forced in."""
        up = [
            (room.tokens + room.missing(program), name)
            for name, room in self._rooms.items()
            if name not in self._down
        ]
        if not up:
            return None
        tokens, name = min(up)
        room = self._rooms[name]
        fits = tokens <= part * room.capacity_tokens or not room.programs
        return name if fits or forced else None


def _own_tokens(opened: OpenSample) -> int:
    return opened.history_tokens + opened.next_turn.added_tokens + DECODE_TOKENS


def _entered(program: Program, waited: float = 0.0) -> Entered:
    sample = program.opened.sample
    assert program.engine is not None
    return Entered(sample.name, sample.class_name, program.engine, waited)
