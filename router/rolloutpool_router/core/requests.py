"""What a router's gate asks of the admission controller, and what it is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rolloutpool_router.core.admission import EntryReason
from rolloutpool_router.core.outcomes import Refusal
from rolloutpool_router.core.prefix import PrefixKey
from rolloutpool_router.core.queues import Ticket


@dataclass(slots=True)
class Arrival:
    """A request whose session and class are known. Not frozen, for speed alone: nobody changes one."""

    session: str
    class_name: str
    prefix: tuple[PrefixKey, ...] = ()
    """Hashes of its prompt's chunks (`prefix.Prompt.prefix_keys`)."""
    single: bool = False
    """The client named no session: this request is all of it."""
    has_history: bool = False
    """The prompt holds an earlier answer (`identity.has_history`)."""
    prompt_tokens: int = 0
    """Tokens of the whole prompt, estimated; 0 if unknown."""
    group: bytes | None = None
    """Samples of one prompt have one group."""
    stray: bool = False
    """Another router may have admitted it: routers came or went lately, or its own is out of reach."""
    home: str | None = None
    """The engine that is told to hold the session's KV."""


class Entered(NamedTuple):
    """A request may go to its engine now; it must end with `end_turn`."""

    session: str
    class_name: str
    engine: str
    waited_seconds: float = 0.0
    adopted: bool = False
    """An unknown session with history, let in at once."""
    reason: EntryReason | None = None
    """Why a waiting session was let in."""


class Queued(NamedTuple):
    """A request waits: its session will be among those of `admit_waiting`, or `cancel` withdraws it."""

    session: str
    class_name: str
    resident: bool = False
    """The session is resident and no engine is up: the request counts as in flight while it waits."""


class Ticked(NamedTuple):
    """What a tick led to."""

    entered: list[Entered]
    refused: list[tuple[Ticket, Refusal]]
    """Sessions that waited longer than their class lets them."""
