"""What admission decided about a request, in words: for traces, metrics, answers and the debug page."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from rolloutpool_router.core.admission import EntryReason
from rolloutpool_router.core.outcomes import Refusal
from rolloutpool_router.core.requests import Entered

REMEMBERED = 50
"""Decisions kept for the debug page."""


class Decision(StrEnum):
    """What became of a request at the gate."""

    ENTERED = "entered"
    """A new or parked session entered at once."""
    WAITED = "waited"
    """It waited first, to enter or for an engine."""
    ADOPTED = "adopted"
    """Another router, or this one before its restart, had admitted the session: it entered at once."""
    RESIDENT = "resident"
    """The session was in already."""
    REFUSED = "refused"
    """It was answered without an engine."""


ADOPTED = "adopted"
RESIDENT = "resident"
NO_ENGINE_WAS_UP = "no_engine_was_up"

REASONS: dict[str, str] = {
    EntryReason.ROOM.value: "its class had room under its cap, and the session fit the engine's pot",
    EntryReason.GROUP.value: "other samples of its prompt had just entered that engine",
    EntryReason.LENT.value: "its class was at its cap, and no other class waited",
    EntryReason.DEBT.value: "its class was at its cap and behind its share of the mixture",
    EntryReason.TURN.value: "its class had no cap anywhere, and it was its turn",
    EntryReason.OVERDUE.value: "its class had had no entry for too long",
    ADOPTED: "the session has history that this router did not see: somebody admitted it before",
    RESIDENT: "the session holds its place from an earlier turn",
    NO_ENGINE_WAS_UP: "the session holds its place, and waited for an engine to come back",
}
"""Every reason for which a request goes to an engine, with what it means."""

ENTRY_REASONS = frozenset({*(reason.value for reason in EntryReason), ADOPTED})
"""Reasons of requests that gave their session a place: labels of the metric of entries."""


def decision_of(answer: Entered | Refusal) -> Decision:
    """What was decided."""
    if isinstance(answer, Refusal):
        return Decision.REFUSED
    if answer.adopted:
        return Decision.ADOPTED
    if answer.waited_seconds > 0:
        return Decision.WAITED
    return Decision.RESIDENT if answer.reason is None else Decision.ENTERED


def reason_of(answer: Entered | Refusal) -> str:
    """Why: a key of REASONS; of a refusal, its outcome."""
    if isinstance(answer, Refusal):
        return answer.outcome.value
    if answer.reason is not None:
        return answer.reason._value_  # a plain attribute; `value` is a property that takes four times as long
    if answer.adopted:
        return ADOPTED
    return NO_ENGINE_WAS_UP if answer.waited_seconds > 0 else RESIDENT


class Noted(NamedTuple):
    """One decision, as it was noted; read out only when somebody looks."""

    at: float
    """Seconds of the router's clock."""
    session: str
    class_name: str
    answer: Entered | Refusal


class Decisions:
    """The latest decisions, but those about resident sessions; to note one costs next to nothing."""

    def __init__(self) -> None:
        self._entered: deque[Noted] = deque(maxlen=REMEMBERED)
        self._refused: deque[Noted] = deque(maxlen=REMEMBERED)
        """Apart, so that a storm of refusals leaves the entries to be seen."""

    def note(self, now: float, session: str, class_name: str, answer: Entered | Refusal) -> None:
        """Remember a decision."""
        kept = self._entered if isinstance(answer, Entered) else self._refused
        kept.append(Noted(now, session, class_name, answer))

    def entered(self) -> Iterator[Noted]:
        """Those that let a session in, the latest first."""
        return reversed(self._entered)

    def refused(self) -> Iterator[Noted]:
        """Those that refused one, the latest first."""
        return reversed(self._refused)
