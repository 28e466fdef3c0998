"""The sessions that are open: those resident, with the permits they hold, and those parked.

A resident session holds one permit of (engine, class); counts by engine and class are kept as sessions come
and go, so no question costs more with more sessions. A session ends when it is finished, when its last
request ended and its class's idle time passed without another, or at once when its first answer failed. A
parked one is between two turns and has given its permit back: it must enter again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rolloutpool_router.core.forecast import NOTHING, Outlay
from rolloutpool_router.core.shared import Mark

MAX_SESSIONS = 200_000
"""Most open sessions of one router."""


class Usage(NamedTuple):
    """Tokens of one answer."""

    prompt_tokens: int
    """Tokens of the prompt, cached or not."""
    completion_tokens: int
    """Tokens generated."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; None where the engine does not say."""
    estimated: bool = False
    """The engine said nothing: the numbers follow from bytes."""


@dataclass(slots=True, eq=False)
class Session:
    """One open session; times in seconds of the caller's clock."""

    id: str
    class_name: str
    engine: str
    """Where it is resident, or was before it was parked."""
    admitted_at: float
    """When it entered; moved on by the time that it was parked, so that its age is its residency."""
    tokens: float = 0.0
    """Tokens of its history when its last turn began or ended."""
    single: bool = False
    """The client named no session: it ends with its answer."""
    group: bytes | None = None
    """Samples of one prompt have one group."""
    pieces: tuple[Mark, ...] = ()
    """Marks of its first prompt: charged on the engine, not on the session."""
    marked_blocks: float = 0.0
    """Blocks of all those marks."""
    shared_blocks: float = 0.0
    """Blocks of those marks that others held already when it entered."""
    in_flight: int = 0
    """Requests that are being answered, or wait for an engine."""
    turn_started: float = 0.0
    """When its last turn began."""
    overlapping: bool = False
    """Several requests were in flight at once since the last time that there was none."""
    prompt_estimate: int = 0
    """Tokens that its last turn's prompt was thought to have."""
    cached_before: float = 0.0
    """Tokens that its engine should still have cached for its next turn."""
    succeeded: bool = False
    """At least one answer was complete and 2xx: the session counts as a consumed sample."""
    ending: bool = False
    """Finished by the client; its requests in flight still hold it."""
    parked: bool = False
    blocks: float = 0.0
    """KV blocks that it held when last looked at, shared ones included."""
    peak_blocks: float = 0.0
    block_seconds: float = 0.0
    """Private blocks integrated over the residency."""
    seen_at: float = 0.0
    """When it was last looked at."""
    outlay: Outlay = NOTHING
    """How it is counted in its engine's pot."""

    def age(self, now: float) -> float:
        """Residency so far, in seconds; while parked, up to then."""
        return max(0.0, (self.seen_at if self.parked else now) - self.admitted_at)


@dataclass(slots=True)
class Tally:
    """Residents of one class on one engine."""

    sessions: int = 0
    blocks: float = 0.0
    """KV blocks that they held when last looked at, shared ones counted for each."""


class SessionTable:
    """Open sessions by id, with their counts by engine and class.

    Callers ask `get` or `parked` first; other methods raise KeyError for a session that is not open.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._parked: dict[str, Session] = {}
        self._idle: dict[str, OrderedDict[str, float]] = {}
        """Sessions without a request, by class in the order in which classes came, the longest idle first."""
        self._tallies: dict[str, dict[str, Tally]] = {}
        self.by_class: Counter[str] = Counter()
        """Residents by class, over all engines."""
        self.parked_by_class: Counter[str] = Counter()
        self.running_by_class: Counter[str] = Counter()
        """Requests in flight, by class."""

    def __len__(self) -> int:
        """Open sessions."""
        return len(self._sessions) + len(self._parked)

    def __iter__(self) -> Iterator[Session]:
        """The residents."""
        return iter(self._sessions.values())

    def get(self, session: str) -> Session | None:
        """The resident session with this id."""
        return self._sessions.get(session)

    def parked(self, session: str) -> Session | None:
        """The parked session with this id."""
        return self._parked.get(session)

    def tally(self, engine: str) -> Mapping[str, Tally]:
        """Residents of an engine, by class; classes without any may be absent."""
        return self._tallies.get(engine, {})

    def idle(self, class_name: str, *, before: float) -> Iterator[Session]:
        """Residents of a class without a request since `before` or longer, the longest idle first."""
        for name, since in self._idle.get(class_name, {}).items():
            if since > before:
                return
            if (session := self._sessions.get(name)) is not None:
                yield session

    def admit(self, session: Session, *, turns: int = 0, now: float = 0.0) -> Session:
        """Make a new or parked session resident: it takes a permit of (engine, class).

        Args:
            session: that enters.
            turns: its requests that start at once.
            now: seconds; of no meaning without turns.

        Raises:
            ValueError: it is resident already, or the table is full.
        """
        if session.id in self._sessions:
            raise ValueError(f"session {session.id!r} is resident already")
        if self._parked.pop(session.id, None) is not None:
            self._uncount(self.parked_by_class, session.class_name)
            session.parked = False
            self.busy(session)
        elif len(self._sessions) + len(self._parked) >= MAX_SESSIONS:
            raise ValueError(f"{MAX_SESSIONS} sessions are open, the most one router keeps")
        self._sessions[session.id] = session
        self._count(session, +1)
        self.by_class[session.class_name] += 1
        if session.class_name not in self._idle:
            self._idle[session.class_name] = OrderedDict()
        if turns:
            session.in_flight = turns
            session.overlapping = turns > 1
            session.turn_started = now
            self.running_by_class[session.class_name] += turns
        else:
            self._set_idle(session, session.admitted_at)
        return session

    def park(self, session: Session) -> None:
        """A resident session gives its permit back until its next turn."""
        self._leave(session)
        session.parked = True
        self._parked[session.id] = session
        self.parked_by_class[session.class_name] += 1

    def begin_turn(self, session: str, *, now: float) -> None:
        """A request of the session starts."""
        current = self._sessions[session]
        current.overlapping = current.in_flight > 0
        current.in_flight += 1
        self.running_by_class[current.class_name] += 1
        current.turn_started = now
        self.busy(current)

    def busy(self, session: Session) -> None:
        """The session has a request, in flight or waiting: it does not expire."""
        if (idle := self._idle.get(session.class_name)) is not None:
            idle.pop(session.id, None)

    def rest(self, session: Session, *, now: float) -> None:
        """The session has no request any more."""
        self._set_idle(session, now)

    def end_turn(self, session: str, *, now: float, ok: bool, idle_seconds: float) -> Session | None:
        """A request of the session ended; the session itself, if that ended it.

        Args:
            session: its id.
            now: seconds.
            ok: whether the answer was 2xx and complete.
            idle_seconds: how long the session stays without a request; 0: not at all.
        """
        current = self._sessions[session]
        current.in_flight -= 1
        self._uncount(self.running_by_class, current.class_name)
        current.succeeded = current.succeeded or ok
        if current.in_flight > 0:
            return None
        current.overlapping = False
        if current.ending or current.single or idle_seconds <= 0 or not current.succeeded:
            return self._remove(current)
        self._set_idle(current, now)
        return None

    def finish(self, session: str) -> Session | None:
        """The client is done with the session: it ends now, or with its last request in flight."""
        current = self._sessions.get(session) or self._parked[session]
        current.ending = True
        return self._remove(current) if current.in_flight == 0 else None

    def expire(
        self, *, now: float, idle_seconds: Mapping[str, float], most: int | None = None
    ) -> list[Session]:
        """End the sessions that were idle for their class's time, at most so many; O(classes + ended).

        A class that is not in `idle_seconds` is no longer in the spec: its idle sessions end.
        """
        ended: list[Session] = []
        for class_name, idle in list(self._idle.items()):
            limit = idle_seconds.get(class_name, 0.0)
            while idle and (most is None or len(ended) < most):
                session, since = next(iter(idle.items()))
                if since + limit > now:
                    break
                ended.append(self._remove(self._sessions.get(session) or self._parked[session]))
            if not idle and class_name not in idle_seconds:
                del self._idle[class_name]
        return ended

    def move(self, session: Session, engine: str) -> None:
        """The session's permit is given back and one of another engine is taken."""
        self._count(session, -1)
        session.engine = engine
        self._count(session, +1)

    def hold(self, session: Session, blocks: float) -> None:
        """The session holds this many KV blocks now."""
        if session.id in self._sessions:
            self._tallies[session.engine][session.class_name].blocks += blocks - session.blocks
        session.blocks = blocks
        if blocks > session.peak_blocks:
            session.peak_blocks = blocks

    def _set_idle(self, session: Session, now: float) -> None:
        idle = self._idle.get(session.class_name)
        if idle is None:  # The class is not in the spec any more.
            idle = self._idle[session.class_name] = OrderedDict()
        idle[session.id] = now
        idle.move_to_end(session.id)

    def _remove(self, session: Session) -> Session:
        self.busy(session)
        if self._parked.pop(session.id, None) is not None:
            self._uncount(self.parked_by_class, session.class_name)
        else:
            self._leave(session)
        return session

    def _leave(self, session: Session) -> None:
        del self._sessions[session.id]
        self._count(session, -1)
        self._uncount(self.by_class, session.class_name)

    def _count(self, session: Session, step: int) -> None:
        classes = self._tallies.get(session.engine)
        if classes is None:
            classes = self._tallies[session.engine] = {}
        tally = classes.get(session.class_name)
        if tally is None:
            tally = classes[session.class_name] = Tally()
        tally.sessions += step
        tally.blocks += step * session.blocks
        if tally.sessions == 0:
            del classes[session.class_name]
            if not classes:
                del self._tallies[session.engine]

    @staticmethod
    def _uncount(counts: Counter[str], class_name: str) -> None:
        counts[class_name] -= 1
        if counts[class_name] == 0:
            del counts[class_name]
