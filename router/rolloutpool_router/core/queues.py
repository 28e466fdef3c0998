"""Who waits to enter: one first-come-first-served queue per class.

A waiting session has one ticket, however many of its requests wait; bounds count requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Ticket:
    """A session that waits to enter."""

    session: str
    class_name: str
    arrived_at: float
    """When its first request came, in seconds of the caller's clock."""
    prefix: tuple[bytes, ...] = ()
    """Hashes of its prompt's blocks, for placement."""
    single: bool = False
    """The client named no session."""
    requests: int = 1
    """Its requests that wait."""


class ClassQueue:
    """The waiting sessions of one class, oldest first. Every operation but iteration is O(1)."""

    def __init__(self) -> None:
        self._tickets: OrderedDict[str, Ticket] = OrderedDict()
        self.requests = 0
        """Requests that wait."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets.values())

    def push(self, ticket: Ticket) -> None:
        """Let a session wait behind all others; if it waits already, with one more request."""
        waiting = self._tickets.get(ticket.session)
        if waiting is None:
            self._tickets[ticket.session] = ticket
        else:
            waiting.requests += ticket.requests
        self.requests += ticket.requests

    def get(self, session: str) -> Ticket | None:
        """The ticket of a waiting session."""
        return self._tickets.get(session)

    def head(self) -> Ticket | None:
        """The session that waits longest."""
        return next(iter(self._tickets.values()), None)

    def pop(self, session: str) -> Ticket:
        """Take a session out with all its requests.

        Raises:
            KeyError: it does not wait.
        """
        ticket = self._tickets.pop(session)
        self.requests -= ticket.requests
        return ticket

    def cancel(self, session: str) -> bool:
        """One request of a session waits no more; False if the session does not wait."""
        ticket = self._tickets.get(session)
        if ticket is None:
            return False
        ticket.requests -= 1
        self.requests -= 1
        if ticket.requests == 0:
            del self._tickets[session]
        return True

    def oldest_wait(self, now: float) -> float:
        """Longest current wait, in seconds; 0 if nobody waits."""
        head = self.head()
        return max(0.0, now - head.arrived_at) if head is not None else 0.0
