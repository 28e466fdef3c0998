"""Who enters next, and where: the choice among the waiting classes.

The class furthest behind its share of the mixture goes first. An engine takes a session if the class has
room under its cap there and the session fits the pot (`forecast`). A cap binds while another class waits and
is lent otherwise. Three rules keep any class from waiting for ever:

- where the class that goes first finds no room, the engine with the most room is kept free for it;
- a class with no cap anywhere (floors that do not fit together) takes turns on an engine that has room;
- a class without an entry for too long goes before all others and beyond its cap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from rolloutpool_router.core.placement import EngineLoad, choose_engine

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True)
class Candidate:
    """The next waiting session of a class."""

    class_name: str
    debt: float
    """Samples that the class is behind its share; negative: ahead."""
    arrived_at: float
    """When it came, in seconds of the caller's clock."""
    overlap: Callable[[], Mapping[str, int]]
    """Leading prompt chunks that each engine holds; asked only of the session that enters."""
    fits: Callable[[EngineLoad], bool]
    """Whether the session fits an engine's pot."""
    spare: Callable[[EngineLoad], bool]
    """Whether an engine is known to have room for one more than the caps say."""
    group_fits: Callable[[EngineLoad], bool] | None = None
    """Whether all waiting samples of its prompt fit; None if there is but one."""
    together_on: str | None = None
    """Engine that samples of the same prompt have just entered."""
    parked: bool = False
    """It was resident before: the mixture has counted it already."""
    overdue: bool = False
    """Its class has had no entry for too long."""
    capless: bool = False
    """Its class has no cap on any engine, over all routers."""


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


@dataclass(frozen=True)
class Entry:
    """A decision: the next waiting session of a class enters an engine."""

    class_name: str
    engine: str
    reason: EntryReason


@dataclass(frozen=True)
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


def decide(
    candidates: Sequence[Candidate], engines: Sequence[EngineLoad], *, rules: Rules, rng: Random
) -> Entry | None:
    """The next session to enter, None while nobody may.

    Args:
        candidates: one for each class with a waiting session.
        engines: those that are up.
        rules: of the policy.
        rng: breaks ties between engines.
    """
    held = [c for c in candidates if _ahead(c, rules)]
    waiting = sorted((c for c in candidates if c not in held), key=lambda c: _order(c, rules))
    kept_free: str | None = None
    for candidate in waiting:
        open_engines = [engine for engine in engines if engine.name != kept_free]
        beyond = _beyond_cap(candidate, engines, rules, alone=len(waiting) == 1)
        entry = _enter(candidate, open_engines, rules, beyond=beyond, rng=rng)
        if entry is not None:
            return entry
        if kept_free is None and engines and (wanted := _wanted(candidate, engines, rules)):
            kept_free = min(wanted, key=lambda engine: engine.load).name
    return None


def headroom(engine: EngineLoad, class_name: str, *, class_blind: bool) -> int:
    """Sessions of a class that may still enter an engine; negative where its cap fell below its residents."""
    resident = sum(engine.active.values()) if class_blind else engine.active.get(class_name, 0)
    return engine.caps.get(class_name, 0) - resident


def _ahead(candidate: Candidate, rules: Rules) -> bool:
    if rules.most_ahead is None or candidate.parked or candidate.overdue or candidate.together_on:
        return False
    return -candidate.debt > rules.most_ahead


def _order(candidate: Candidate, rules: Rules) -> tuple[bool, bool, float]:
    last = -candidate.debt if rules.by_debt else candidate.arrived_at
    return not candidate.overdue, candidate.together_on is None, last


def _enter(
    candidate: Candidate,
    engines: Sequence[EngineLoad],
    rules: Rules,
    *,
    beyond: EntryReason | None,
    rng: Random,
) -> Entry | None:
    name = candidate.class_name
    open_to = [
        engine
        for engine in engines
        if headroom(engine, name, class_blind=rules.class_blind) > 0 or (beyond and candidate.spare(engine))
        if candidate.fits(engine)
    ]
    if beyond is EntryReason.TURN:
        open_to = [engine for engine in open_to if not engine.active.get(name)]
    if not open_to:
        return None
    together = [engine for engine in open_to if engine.name == candidate.together_on]
    if together:
        return Entry(name, together[0].name, EntryReason.GROUP)
    whole = [e for e in open_to if candidate.group_fits(e)] if candidate.group_fits is not None else []
    engine = choose_engine(whole or open_to, candidate.overlap(), rng)
    within = headroom(engine, name, class_blind=rules.class_blind) > 0
    return Entry(name, engine.name, EntryReason.ROOM if within else beyond or EntryReason.ROOM)


def _beyond_cap(
    candidate: Candidate, engines: Sequence[EngineLoad], rules: Rules, *, alone: bool
) -> EntryReason | None:
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


def _wanted(candidate: Candidate, engines: Sequence[EngineLoad], rules: Rules) -> list[EngineLoad]:
    """Engines that a class without room waits for: those whose pot is too full, not those at its cap."""
    if _beyond_cap(candidate, engines, rules, alone=False):
        return list(engines)
    return [e for e in engines if headroom(e, candidate.class_name, class_blind=rules.class_blind) > 0]
