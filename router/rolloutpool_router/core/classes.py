"""What a router keeps of one class: its queue, its turn and its counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rolloutpool_router.core.queues import ClassQueue, Ticket

MOST_TOGETHER = 64
"""Samples of one prompt that enter in a row; without a bound, one prompt sampled for ever would go before
all other classes."""


PRESENT_SECONDS = 10.0
"""How long a class counts as present after its last request was in flight or waiting, in seconds."""


@dataclass(slots=True)
class ClassCounters:
    """What happened to a class since the router started."""

    finished: int = 0
    """Sessions that ended after at least one complete answer."""
    adopted: int = 0
    rejected: int = 0
    """Requests answered with an overload status."""
    parked: int = 0
    """Times that a session was parked."""


@dataclass(frozen=True, slots=True)
class Together:
    """Samples of one prompt that enter one after the other."""

    group: bytes
    engine: str
    """Where the last of them entered."""
    left: int
    """How many more may follow it before other classes."""


@dataclass(slots=True)
class ClassState:
    """Queue and counters of one class."""

    queue: ClassQueue = field(default_factory=ClassQueue)
    counters: ClassCounters = field(default_factory=ClassCounters)
    turn_since: float = 0.0
    """Since when sessions of the class wait without an entry, in seconds; of no meaning while none waits."""
    wanted_at: float = -math.inf
    """When a request of the class was last seen in flight or waiting, in seconds (`accounts`)."""
    moved_at: float = -math.inf
    """When a session of the class last entered or ended, in seconds."""
    together: Together | None = None
    """What the samples of the prompt that entered last are to do."""
    estimate_factor: float = 1.0
    """True prompt tokens, per estimated one."""

    def goes_with(self, ticket: Ticket) -> str | None:
        """The engine that a waiting sample follows the others of its prompt to."""
        run = self.together
        return run.engine if run is not None and run.left > 0 and run.group == ticket.group else None

    def sample_entered(self, group: bytes, engine: str) -> None:
        """A sample of a prompt entered; those of its prompt that wait then are next of their class."""
        run = self.together
        if run is None or run.group != group:
            self.queue.gather(group)
        going_on = run is not None and run.group == group and run.left > 0
        self.together = Together(group, engine, run.left - 1 if run and going_on else MOST_TOGETHER - 1)
