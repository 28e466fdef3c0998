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
MOST_WRONG = 1000.0
"""How many times too long or short a prompt's estimate may be: images are many bytes and few tokens."""
ESTIMATE_WEIGHT = 0.1
"""Weight of the latest answer in the correction of a class's prompt estimates."""


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

    def correct(self, *, estimate: int, prompt_tokens: int) -> None:
        """A prompt of which `estimate` tokens were guessed from its bytes had so many."""
        ratio = prompt_tokens / estimate
        if not 1 / MOST_WRONG <= ratio <= MOST_WRONG:
            ratio = MOST_WRONG if ratio > 1 else 1 / MOST_WRONG
        self.estimate_factor += ESTIMATE_WEIGHT * (ratio - self.estimate_factor)

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
