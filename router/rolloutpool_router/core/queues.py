"""Who waits to enter: one queue per class, first come first served, but for two groups that go before.

Parked sessions that want to go on are ahead of new ones, and the samples of a prompt of which some have just
entered follow them. A waiting session has one ticket, however many of its requests wait; bounds count
requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from rolloutpool_router.core.prefix import PrefixKey
from rolloutpool_router.core.shared import Mark


@dataclass(slots=True, eq=False)
class Ticket:
    """A session that waits to enter."""

    session: str
    class_name: str
    arrived_at: float
    """When its first request came, in seconds of the caller's clock."""
    prefix: tuple[PrefixKey, ...] = ()
    """Hashes of its prompt's blocks, for placement."""
    single: bool = False
    """The client named no session."""
    requests: int = 1
    """Its requests that wait."""
    prompt_tokens: int = 0
    """Tokens of its prompt, estimated and corrected; 0 if unknown."""
    prompt_estimate: int = 0
    """The same as it was estimated at first."""
    group: bytes | None = None
    """Samples of one prompt have one group."""
    pieces: tuple[Mark, ...] = ()
    """Marks of its prompt."""
    parked: bool = False
    """It was resident before."""
    ending: bool = False
    """Finished by the client: it ends with its requests that wait."""


class ClassQueue:
    """The waiting sessions of one class, next first. Operations cost O(1), `gather` O(group)."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        """All that wait, by session."""
        self._parked: OrderedDict[str, Ticket] = OrderedDict()
        self._gathered: OrderedDict[str, Ticket] = OrderedDict()
        self._new: OrderedDict[str, Ticket] = OrderedDict()
        self._parts = (self._parked, self._gathered, self._new)
        """Those that wait, in the order in which they enter."""
        self._groups: dict[bytes, dict[str, None]] = {}
        self.requests = 0
        """Requests that wait."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return chain.from_iterable(part.values() for part in self._parts)

    def push(self, ticket: Ticket) -> None:
        """Let a session wait behind all others of its kind; if it waits already, with one more request."""
        waiting = self._tickets.get(ticket.session)
        self.requests += ticket.requests
        if waiting is not None:
            waiting.requests += ticket.requests
            return
        self._tickets[ticket.session] = ticket
        (self._parked if ticket.parked else self._new)[ticket.session] = ticket
        if ticket.group is not None and not ticket.parked:
            self._groups.setdefault(ticket.group, {})[ticket.session] = None

    def get(self, session: str) -> Ticket | None:
        """The ticket of a waiting session."""
        return self._tickets.get(session)

    def head(self) -> Ticket | None:
        """The session that is next."""
        for part in self._parts:
            if part:
                return next(iter(part.values()))
        return None

    def siblings(self, group: bytes | None) -> int:
        """New sessions of a group that wait."""
        return len(self._groups.get(group, ())) if group is not None else 0

    def gather(self, group: bytes) -> None:
        """Let the waiting sessions of a group go before other new ones."""
        for session in self._groups.get(group, ()):
            if (ticket := self._new.pop(session, None)) is not None:
                self._gathered[session] = ticket

    def pop(self, session: str) -> Ticket:
        """Take a session out with all its requests.

        Raises:
            KeyError: it does not wait.
        """
        ticket = self._tickets.pop(session)
        for part in self._parts:
            if part.pop(session, None) is not None:
                break
        self.requests -= ticket.requests
        if ticket.group is not None and (group := self._groups.get(ticket.group)) is not None:
            group.pop(session, None)
            if not group:
                del self._groups[ticket.group]
        return ticket

    def cancel(self, session: str) -> bool:
        """One request of a session waits no more; False if the session does not wait."""
        ticket = self.get(session)
        if ticket is None:
            return False
        if ticket.requests == 1:
            self.pop(session)
        else:
            ticket.requests -= 1
            self.requests -= 1
        return True

    def oldest_wait(self, now: float) -> float:
        """Longest current wait, in seconds; 0 if nobody waits."""
        heads = (next(iter(part.values()), None) for part in self._parts)
        return max((max(0.0, now - head.arrived_at) for head in heads if head is not None), default=0.0)

    def late(self, before: float) -> list[Ticket]:
        """Sessions that came before this time; O(late) where few samples were gathered."""
        found = []
        for part in self._parts:
            for ticket in part.values():
                if ticket.arrived_at > before:
                    break
                found.append(ticket)
        return found
