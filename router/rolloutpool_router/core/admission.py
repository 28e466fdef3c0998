"""Who enters next, and where.

Classes take turns: of the classes with a waiting session and room on some engine, the one furthest behind its
share of the samples goes first. Within a class the oldest goes first. Nobody is evicted: where a cap shrinks
below the residents, nobody enters until enough have ended.

Where the floors of all classes do not fit (see `caps`), some class has cap 0 everywhere. It is not left out:
the emptiest engine is kept free for it from those further ahead, until the session fits or the engine is
empty; one such session at a time runs on an engine. As samples of the others are counted, every class becomes
the one furthest behind, so its wait is bounded.
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
    """The oldest waiting session of a class."""

    class_name: str
    debt: float
    """Samples that the class is behind its share; negative: ahead."""
    footprint_blocks: float
    """Blocks that a session of the class is expected to hold on average (k)."""
    overlap: Callable[[], Mapping[str, int]]
    """Leading prompt chunks that each engine holds; asked only of the session that enters."""


class EntryReason(StrEnum):
    """Why a session may enter."""

    ROOM = "room"
    """Its class has room on the engine."""
    TURN = "turn"
    """Its class has no cap anywhere, and it is its turn."""


@dataclass(frozen=True)
class Entry:
    """A decision: the oldest waiting session of a class enters an engine."""

    class_name: str
    engine: str
    reason: EntryReason


def decide(
    candidates: Sequence[Candidate], engines: Sequence[EngineLoad], *, class_blind: bool, rng: Random
) -> Entry | None:
    """The next session to enter, None while nobody may.

    Args:
        candidates: one for each class with a waiting session.
        engines: those that are up.
        class_blind: each cap bounds the sessions of all classes together (policy Session).
        rng: breaks ties between engines.
    """
    kept_free: str | None = None
    for candidate in sorted(candidates, key=lambda c: -c.debt):
        if _shut_out(candidate, engines):
            free = [engine for engine in engines if not engine.active.get(candidate.class_name)]
            if not free:
                continue
            emptiest = choose_engine(_emptiest(free), candidate.overlap(), rng)
            if _fits(candidate, emptiest):
                return Entry(candidate.class_name, emptiest.name, EntryReason.TURN)
            kept_free = kept_free or emptiest.name
            continue
        room = [
            engine
            for engine in engines
            if engine.name != kept_free
            and headroom(engine, candidate.class_name, class_blind=class_blind) > 0
        ]
        if room:
            engine = choose_engine(room, candidate.overlap(), rng)
            return Entry(candidate.class_name, engine.name, EntryReason.ROOM)
    return None


def headroom(engine: EngineLoad, class_name: str, *, class_blind: bool) -> int:
    """Sessions of a class that may still enter an engine; negative where its cap fell below its residents."""
    resident = sum(engine.active.values()) if class_blind else engine.active.get(class_name, 0)
    return engine.caps.get(class_name, 0) - resident


def _shut_out(candidate: Candidate, engines: Sequence[EngineLoad]) -> bool:
    return bool(engines) and all(engine.caps.get(candidate.class_name, 0) == 0 for engine in engines)


def _emptiest(engines: Sequence[EngineLoad]) -> list[EngineLoad]:
    least = min(engine.occupied_blocks for engine in engines)
    return [engine for engine in engines if engine.occupied_blocks == least]


def _fits(candidate: Candidate, engine: EngineLoad) -> bool:
    free = engine.protected_blocks - engine.occupied_blocks
    return candidate.footprint_blocks <= free or not any(engine.active.values())
