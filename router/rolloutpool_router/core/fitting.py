"""Whether a waiting session fits an engine: the exact rules, and a glance that answers for most engines.

The exact question walks through the horizons of the engine's pot and the marks of the session's prompt. The
glance compares two numbers: what the engine has left at the horizon where it has least, and what the session
needs. Where these are too close the exact question is asked, so the answers are always those of `fits`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.forecast import LEAST_PART, Outlay, times
from rolloutpool_router.core.ledger import Ledger
from rolloutpool_router.core.placement import EngineLoad
from rolloutpool_router.core.policy import PolicyRules
from rolloutpool_router.core.shared import Mark, blocks_of

ROUNDED = 0.5
"""Most that a percentage is off by being rounded."""
CLOSE = 1e-6
"""Blocks by which a glance must be sure: far more than sums are off by rounding."""


class Ask(NamedTuple):
    """What a waiting session, or several alike at once, ask of an engine."""

    outlay: Outlay
    """Forecast without the marks."""
    pieces: tuple[Mark, ...]
    """Marks of its prompt."""
    overdue: bool
    """Its class has had no entry for too long."""
    matters: float
    """Blocks below which a later horizon does not count for it."""
    most: float
    """Blocks that it needs at any horizon at most, the pot's margin included."""


class Room(NamedTuple):
    """What an engine has left for newcomers at the horizon where it has least."""

    blocks: float
    """KV blocks left there: inf, all fit; -inf, nobody does."""
    horizon: int
    """That horizon."""
    sure: bool = True
    """Whether who needs no more than this fits; else always ask."""


ALL_FIT = Room(math.inf, 0)
NOBODY_FITS = Room(-math.inf, 0)


class Fitting:
    """Answers for one router."""

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        """Look at the engines and at what they hold; nothing is changed."""
        self._fleet = fleet
        self._ledger = ledger
        self._rules: PolicyRules | None = None

    def apply(self, rules: PolicyRules) -> None:
        """These are the rules from now on."""
        self._rules = rules

    def ask(self, outlay: Outlay, pieces: tuple[Mark, ...], *, overdue: bool) -> Ask:
        """What sessions with this forecast and these marks ask."""
        z = self._rules.z if self._rules is not None else 0.0
        largest = max(outlay.mean)
        most = largest + z * math.sqrt(max(outlay.variance))
        if pieces:
            most += blocks_of(pieces)
        return Ask(outlay, pieces, overdue, LEAST_PART * largest, most)

    def fits(self, ask: Ask, engine: EngineLoad) -> bool:
        """Whether the session fits the engine's pot; always where the policy has no pot."""
        rules = self._rules
        if engine.closed or rules is None:
            return False
        if not rules.pot or not engine.protected_blocks:
            return True
        if not engine.active:
            # One that is larger than this router's part would wait for ever, and all others behind it.
            return ask.overdue or self._may_have_alone(engine, ask.outlay.mean[0])
        books = self._ledger.engines[engine.name]
        taken = books.shared.blocks
        if ask.pieces:
            taken += books.shared.missing(ask.pieces)
        return books.pot.room(ask.outlay, blocks=engine.protected_blocks - taken, z=rules.z)

    def room(self, engine: EngineLoad) -> Room:
        """What an engine has left."""
        rules = self._rules
        if engine.closed or rules is None:
            return NOBODY_FITS
        if not rules.pot or not engine.protected_blocks:
            return ALL_FIT
        if not engine.active:
            return ALL_FIT if self._may_have_alone(engine, math.inf) else Room(math.inf, 0, sure=False)
        books = self._ledger.engines[engine.name]
        return Room(*books.pot.left(blocks=engine.protected_blocks - books.shared.blocks, z=rules.z))

    def fitting(
        self, ask: Ask, engines: Sequence[EngineLoad], rooms: Sequence[Room], among: Iterable[int]
    ) -> list[int]:
        """Which of some engines the session fits, by index, in their order.

        Args:
            ask: what it asks.
            engines: all engines.
            rooms: what each has left.
            among: indexes of those in question.
        """
        mean, matters, most = ask.outlay.mean, ask.matters, ask.most + CLOSE
        found = []
        for place in among:
            blocks, horizon, sure = rooms[place]
            if sure and most <= blocks:
                found.append(place)
                continue
            least = mean[horizon]
            too_much = least > blocks + CLOSE and (horizon == 0 or least >= matters)
            if not too_much and self.fits(ask, engines[place]):
                found.append(place)
        return found

    def is_spare(self, class_name: str, engine: EngineLoad) -> bool:
        """Whether an engine is known to have room for one more of a class than the caps say."""
        rules, classes = self._rules, self._ledger.classes
        if engine.closed or rules is None:
            return False
        if not engine.active:
            return self._may_have_alone(engine, classes[class_name].cost.footprint_blocks)
        if rules.pot:
            return engine.protected_blocks > 0
        residents = sum(
            sessions * classes[name].cost.footprint_blocks
            for name, sessions in engine.active.items()
            if name in classes
        )
        return residents + classes[class_name].cost.footprint_blocks <= engine.protected_blocks

    def _may_have_alone(self, engine: EngineLoad, blocks: float) -> bool:
        """Whether a session may have an empty engine for itself.

        It may, whatever its size and under pressure or not; but not other routers' part of it.
        """
        rules, known = self._rules, self._fleet.engines[engine.name]
        if rules is None or not engine.capacity_blocks:
            return True
        factor = 1 - (known.pressure + ROUNDED) / 100
        return min(blocks, rules.protected_blocks(engine.capacity_blocks, factor)) <= known.protected_blocks


def several(ask: Ask, sessions: int, fitting: Fitting) -> Ask:
    """What several sessions alike ask at once."""
    return fitting.ask(times(ask.outlay, sessions), ask.pieces, overdue=ask.overdue)
