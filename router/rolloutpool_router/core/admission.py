"""Who enters next, and where: the choice among the waiting classes.

The class furthest behind its share of the mixture goes first. An engine takes a session if the class has
room under its cap there and the session fits the pot (`forecast`). A cap binds while another class waits and
is lent otherwise. Three rules keep any class from waiting for ever:

- where the class that goes first finds no room, the engine with the most room is kept free for it;
- a class with no cap anywhere (floors that do not fit together) takes turns on an engine that has room;
- a class without an entry for too long goes before all others and beyond its cap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from rolloutpool_router.core.placement import EngineLoad, choose_engine

if TYPE_CHECKING:
    from random import Random


class Candidate(ABC):
    """The next waiting session of a class. Engines are those that are up, in one order."""

    class_name: str
    debt: float
    """Samples that the class is behind its share; negative: ahead."""
    arrived_at: float
    """When it came, in seconds of the caller's clock."""
    together_on: str | None
    """Engine that samples of the same prompt have just entered."""
    parked: bool
    """It was resident before: the mixture has counted it already."""
    overdue: bool
    """Its class has had no entry for too long."""
    capless: bool
    """Its class has no cap on any engine, over all routers."""

    @abstractmethod
    def open_to(self, *, beyond: bool) -> list[EngineLoad]:
        """Engines whose pot it fits and where its class has room under its cap.

        With `beyond`, those too that are known to have room for one more than the caps say.
        """

    @abstractmethod
    def emptiest(self, *, beyond: bool) -> str | None:
        """The engine with the least load of those with room under the cap, or `beyond` of all; fit or not."""

    @abstractmethod
    def fit_together(self, engines: Sequence[EngineLoad]) -> list[EngineLoad]:
        """Those of some engines that fit all waiting samples of its prompt; none if there is but one."""

    @abstractmethod
    def overlap(self) -> Mapping[str, int]:
        """Leading prompt chunks that each engine holds; asked only of the session that enters."""


class EntryReason(StrEnum):
    """Why a session may enter."""

    ROOM = "room"
    """Its class has room on the engine."""
    GROUP = "group"
    """Other samples of its prompt have just entered there."""
    LENT = "lent"
    """Its class is at its cap, and no other class waits."""
    DEBT = "debt"
    """Its class is at its cap and behind its share."""
    TURN = "turn"
    """Its class has no cap anywhere, and it is its turn."""
    OVERDUE = "overdue"
    """Its class has had no entry for too long."""


class Entry(NamedTuple):
    """A decision: the next waiting session of a class enters an engine."""

    class_name: str
    engine: str
    reason: EntryReason


@dataclass(frozen=True, slots=True)
class Rules:
    """What the policy and its switches demand."""

    class_blind: bool = False
    """Each cap bounds the sessions of all classes together (policy Session)."""
    lending: bool = False
    """A class may exceed its cap while no other class waits."""
    by_debt: bool = True
    """The class furthest behind goes first; else the session that came first."""
    most_ahead: float | None = None
    """Samples that a class may be ahead of its share and still enter (enforcement Hard); None: any."""


def decide(candidates: Sequence[Candidate], *, rules: Rules, rng: Random) -> Entry | None:
    """The next session to enter, None while nobody may.

    Args:
        candidates: one for each class with a waiting session.
        rules: of the policy.
        rng: breaks ties between engines.
    """
    waiting = list(candidates)
    if rules.most_ahead is not None:
        waiting = [c for c in candidates if not is_ahead(c, rules.most_ahead)]
    if len(waiting) > 1:
        waiting.sort(key=_by_debt if rules.by_debt else _by_arrival)
    kept_free: str | None = None
    for candidate in waiting:
        beyond = _beyond_cap(candidate, rules, alone=len(waiting) == 1)
        open_to = candidate.open_to(beyond=beyond is not None)
        if kept_free is not None and open_to:
            open_to = [engine for engine in open_to if engine.name != kept_free]
        if beyond is EntryReason.TURN:
            open_to = [engine for engine in open_to if not engine.active.get(candidate.class_name)]
        if open_to:
            return _enter(candidate, open_to, rules, beyond=beyond, rng=rng)
        if kept_free is None:
            # Engines whose pot is too full are waited for, those at the class's cap are not.
            beyond_here = _beyond_cap(candidate, rules, alone=False) is not None
            kept_free = candidate.emptiest(beyond=beyond_here)
    return None


def headroom(engine: EngineLoad, class_name: str, *, class_blind: bool) -> int:
    """Sessions of a class that may still enter an engine; negative where its cap fell below its residents."""
    resident = sum(engine.active.values()) if class_blind else engine.active.get(class_name, 0)
    return engine.caps.get(class_name, 0) - resident


def is_ahead(candidate: Candidate, most_ahead: float) -> bool:
    """Whether a session is held since its class is more than `most_ahead` samples ahead of its share."""
    if candidate.parked or candidate.overdue or candidate.together_on:
        return False
    return -candidate.debt > most_ahead


def _by_debt(candidate: Candidate) -> tuple[bool, bool, float]:
    return not candidate.overdue, candidate.together_on is None, -candidate.debt


def _by_arrival(candidate: Candidate) -> tuple[bool, bool, float]:
    return not candidate.overdue, candidate.together_on is None, candidate.arrived_at


def _enter(
    candidate: Candidate,
    open_to: Sequence[EngineLoad],
    rules: Rules,
    *,
    beyond: EntryReason | None,
    rng: Random,
) -> Entry:
    name, together_on = candidate.class_name, candidate.together_on
    if together_on is not None and any(engine.name == together_on for engine in open_to):
        return Entry(name, together_on, EntryReason.GROUP)
    engine = choose_engine(candidate.fit_together(open_to) or open_to, candidate.overlap(), rng)
    within = headroom(engine, name, class_blind=rules.class_blind) > 0
    return Entry(name, engine.name, EntryReason.ROOM if within else beyond or EntryReason.ROOM)


def _beyond_cap(candidate: Candidate, rules: Rules, *, alone: bool) -> EntryReason | None:
    """Why the class may exceed its cap now, None where it may not."""
    if candidate.overdue:
        return EntryReason.OVERDUE
    if rules.lending and alone:
        return EntryReason.LENT
    if rules.by_debt and candidate.debt > 0:
        return EntryReason.DEBT
    if candidate.capless:
        return EntryReason.TURN
    return None
