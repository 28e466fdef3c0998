"""The sessions that are resident, and the permits they hold.

A session holds one permit of (engine, class) from admission to its end; counts by engine and class are kept
as sessions come and go, so no question costs more with more sessions. It ends when it is finished, when its
last request ended and its class's idle time passed without another, or at once when its first answer failed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rolloutpool_router.core.demand import SessionCost, blocks

MAX_SESSIONS = 200_000
"""Most resident sessions of one router."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer."""

    prompt_tokens: int
    """Tokens of the prompt, cached or not."""
    completion_tokens: int
    """Tokens generated."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""


@dataclass(slots=True, eq=False)
class Session:
    """One resident session; times in seconds of the caller's clock."""

    id: str
    class_name: str
    engine: str
    admitted_at: float
    blocks: int
    """KV blocks that it holds now, estimated."""
    single: bool = False
    """The client named no session: it ends with its answer."""
    in_flight: int = 0
    """Requests that are being answered, or wait for an engine."""
    succeeded: bool = False
    """At least one answer was complete and 2xx: the session counts as a consumed sample."""
    ending: bool = False
    """Finished by the client; its requests in flight still hold it."""
    block_seconds: float = 0.0
    """Blocks held so far, integrated over time up to `counted_to`."""
    counted_to: float = 0.0

    def cost(self, now: float) -> SessionCost:
        """Time-averaged footprint in blocks, and residency in seconds, up to now."""
        residency = now - self.admitted_at
        if residency <= 0:
            return SessionCost(self.blocks, 0.0)
        held = self.block_seconds + self.blocks * (now - self.counted_to)
        return SessionCost(held / residency, residency)


@dataclass(slots=True)
class Tally:
    """Residents of one class on one engine."""

    sessions: int = 0
    blocks: int = 0


class SessionTable:
    """Resident sessions by id, with their counts by engine and class.

    Callers ask `get` first; the other methods raise KeyError for a session that is not resident.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._idle: dict[str, OrderedDict[str, float]] = {}
        self._tallies: dict[str, dict[str, Tally]] = {}
        self.by_class: Counter[str] = Counter()
        """Residents by class, over all engines."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, session: str) -> Session | None:
        """The resident session with this id."""
        return self._sessions.get(session)

    def tally(self, engine: str) -> Mapping[str, Tally]:
        """Residents of an engine, by class; classes without any may be absent."""
        return self._tallies.get(engine, {})

    def admit(
        self, session: str, class_name: str, engine: str, *, now: float, blocks: int, single: bool = False
    ) -> Session:
        """Make a session resident: it takes a permit of (engine, class).

        Raises:
            ValueError: it is resident already, or the table is full.
        """
        if session in self._sessions:
            raise ValueError(f"session {session!r} is resident already")
        if len(self._sessions) >= MAX_SESSIONS:
            raise ValueError(f"{MAX_SESSIONS} sessions are resident, the most one router keeps")
        new = Session(session, class_name, engine, now, blocks, single=single, counted_to=now)
        self._sessions[session] = new
        self._count(new, +1)
        self.by_class[class_name] += 1
        self._set_idle(new, now)
        return new

    def begin_turn(self, session: str, *, now: float) -> None:
        """A request of the session starts."""
        current = self._sessions[session]
        self._integrate(current, current.blocks, now)
        current.in_flight += 1
        self._idle[current.class_name].pop(session, None)

    def end_turn(
        self,
        session: str,
        *,
        now: float,
        ok: bool,
        usage: Usage | None,
        block_size: int,
        idle_seconds: float,
    ) -> Session | None:
        """A request of the session ended; the session itself, if that ended it.

        Args:
            session: its id.
            now: seconds.
            ok: whether the answer was 2xx and complete.
            usage: its tokens, None where the engine generated nothing.
            block_size: KV block size, in tokens.
            idle_seconds: how long the session stays without a request; 0: not at all.
        """
        current = self._sessions[session]
        if usage is not None:
            mean_tokens = usage.prompt_tokens + usage.completion_tokens / 2
            self._integrate(current, blocks(mean_tokens, block_size), now)
            self._resize(current, blocks(usage.prompt_tokens + usage.completion_tokens, block_size))
        current.in_flight -= 1
        current.succeeded = current.succeeded or ok
        if current.in_flight > 0:
            return None
        if current.ending or current.single or idle_seconds <= 0 or not current.succeeded:
            return self._remove(current)
        self._set_idle(current, now)
        return None

    def finish(self, session: str) -> Session | None:
        """The client is done with the session: it ends now, or with its last request in flight."""
        current = self._sessions[session]
        current.ending = True
        return self._remove(current) if current.in_flight == 0 else None

    def expire(self, *, now: float, idle_seconds: Mapping[str, float]) -> list[Session]:
        """End the sessions that were idle for their class's time; O(classes + ended).

        A class that is not in `idle_seconds` is no longer in the spec: its idle sessions end.
        """
        ended = []
        for class_name, idle in list(self._idle.items()):
            limit = idle_seconds.get(class_name, 0.0)
            while idle:
                session, since = next(iter(idle.items()))
                if since + limit > now:
                    break
                ended.append(self._remove(self._sessions[session]))
            if not idle and class_name not in idle_seconds:
                del self._idle[class_name]
        return ended

    def move(self, session: str, engine: str) -> None:
        """The session's permit is given back and one of another engine is taken."""
        current = self._sessions[session]
        self._count(current, -1)
        current.engine = engine
        self._count(current, +1)

    def _set_idle(self, session: Session, now: float) -> None:
        idle = self._idle.setdefault(session.class_name, OrderedDict())
        idle[session.id] = now
        idle.move_to_end(session.id)

    def _remove(self, session: Session) -> Session:
        del self._sessions[session.id]
        if (idle := self._idle.get(session.class_name)) is not None:
            idle.pop(session.id, None)
        self._count(session, -1)
        self.by_class[session.class_name] -= 1
        if self.by_class[session.class_name] == 0:
            del self.by_class[session.class_name]
        return session

    def _count(self, session: Session, step: int) -> None:
        classes = self._tallies.setdefault(session.engine, {})
        tally = classes.setdefault(session.class_name, Tally())
        tally.sessions += step
        tally.blocks += step * session.blocks
        if tally.sessions == 0:
            del classes[session.class_name]
            if not classes:
                del self._tallies[session.engine]

    def _integrate(self, session: Session, held_blocks: int, now: float) -> None:
        session.block_seconds += held_blocks * max(0.0, now - session.counted_to)
        session.counted_to = now

    def _resize(self, session: Session, new_blocks: int) -> None:
        self._tallies[session.engine][session.class_name].blocks += new_blocks - session.blocks
        session.blocks = new_blocks
