"""How full the engines are and may be, as one router sees them; only engines that changed are looked at anew.

What is known of an engine follows from its line in the object, its residents, what is expected of their
classes, and the router's own pressure. The ledger marks the engines whose residents changed
(`Ledger.touched`); whatever else changes concerns all engines, and then all are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rolloutpool_router.core.fitting import Fitting, Room
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.ledger import ClassBooks, Ledger
from rolloutpool_router.core.placement import EngineLoad
from rolloutpool_router.core.policy import PolicyRules
from rolloutpool_router.core.retention import Retention
from rolloutpool_router.core.sessions import SessionTable
from rolloutpool_router.core.view import Engine

LEAST_IN_TURN = 0.05
"""Least part of the residents' blocks that turns are taken to hold."""
MOST_CHANGES = 2_000
"""Changes of single engines that are remembered; beyond that all engines count as changed."""


class Occupancy:
    """Puts together what the status allows, what residents hold, and the router's own pressure."""

    def __init__(self, fleet: Fleet, table: SessionTable, ledger: Ledger, retention: Retention) -> None:
        """Look at a router's state; nothing is changed."""
        self._fleet = fleet
        self._table = table
        self._ledger = ledger
        self._retention = retention
        self.fitting = Fitting(fleet, ledger)
        self._homes: Sequence[Engine] = ()
        self._classes: dict[str, ClassBooks] | None = None
        self._places: dict[str, int] = {}
        self.rows: list[EngineLoad] = []
        """Engines that were up and hold sessions, at the last look."""
        self.fill: list[float] = []
        """The load of each row."""
        self.rooms: list[Room] = []
        """The room of each row."""
        self._sure: list[float] = []
        """Blocks that fit each row for sure; -inf where it must be asked."""
        self.epoch = 0
        """Grows when all rows were made anew."""
        self.changes: list[int] = []
        """Indexes of the rows that were made anew since then, one after the other."""

    def protected_blocks(self, engine: str) -> float:
        """Blocks of an engine that sessions may fill: what the status says, less this router's pressure.

        With a second tier in CPU memory sessions in a tool gap may live there, so that all residents have
        both tiers to fill while those in a turn, on average, fit the first.
        """
        known = self._fleet.engines.get(engine)
        return self._protected(known) if known is not None else 0.0

    def is_full(self, engine: str) -> bool:
        """Whether an engine holds what it may already: to allow less would change nothing now."""
        books = self._ledger.engines.get(engine)
        return books is not None and books.held >= self.protected_blocks(engine)

    def apply(self, rules: PolicyRules) -> None:
        """These are the policy's rules from now on."""
        self.fitting.apply(rules)
        self.forget()

    def forget(self) -> None:
        """Look at all engines anew at the next look."""
        self._classes = None

    def loads(self, now: float) -> list[EngineLoad]:
        """The engines that are up and hold sessions, as admission and placement see them: `rows`."""
        homes, touched = self._fleet.homes(now), self._ledger.touched
        if homes is not self._homes or self._classes is not self._ledger.classes:
            self._look_at_all(homes)
        elif touched:
            if len(self.changes) > MOST_CHANGES:
                self._look_at_all(homes)
            else:
                self._look_at(touched)
        touched.clear()
        return self.rows

    def least_room(self) -> float:
        """Blocks that fit every row for sure."""
        return min(self._sure, default=math.inf)

    def load(self, engine: Engine) -> EngineLoad:
        """One engine."""
        books = self._ledger.engines.get(engine.name)
        return EngineLoad(
            engine.name,
            engine.capacity_blocks,
            self._protected(engine),
            engine.caps,
            {name: tally.sessions for name, tally in self._table.tally(engine.name).items()},
            books.expected if books is not None else 0.0,
            self._is_closed(engine),
        )

    def _look_at_all(self, homes: Sequence[Engine]) -> None:
        self._homes, self._classes = homes, self._ledger.classes
        self.epoch += 1
        self.changes.clear()
        self._places = {engine.name: place for place, engine in enumerate(homes)}
        self.rows = [self.load(engine) for engine in homes]
        self.fill = [row.load for row in self.rows]
        self.rooms = [self.fitting.room(row) for row in self.rows]
        self._sure = [_for_sure(room) for room in self.rooms]

    def _look_at(self, touched: set[str]) -> None:
        for name in touched:
            if (place := self._places.get(name)) is not None:
                row = self.rows[place] = self._changed(self.rows[place], self._homes[place])
                self.fill[place] = row.load
                room = self.rooms[place] = self.fitting.room(row)
                self._sure[place] = _for_sure(room)
                self.changes.append(place)

    def _changed(self, row: EngineLoad, engine: Engine) -> EngineLoad:
        """The row of an engine whose residents changed, and nothing else."""
        if engine.offload_blocks:
            return self.load(engine)  # What it may hold depends on what the residents do.
        books = self._ledger.engines.get(row.name)
        return EngineLoad(
            row.name,
            row.capacity_blocks,
            row.protected_blocks,
            row.caps,
            {name: tally.sessions for name, tally in self._table.tally(row.name).items()},
            books.expected if books is not None else 0.0,
            row.closed,
        )

    def _protected(self, engine: Engine) -> float:
        first = engine.protected_blocks * self._retention.factor(engine.name)
        if not engine.offload_blocks or not engine.capacity_blocks:
            return first
        second = engine.offload_blocks * engine.protected_blocks / engine.capacity_blocks
        return min(first + second, first / max(self._ledger.in_turn(engine.name), LEAST_IN_TURN))

    def _is_closed(self, engine: Engine) -> bool:
        """Whether the status gives this router nothing of an engine; not where it says nothing yet."""
        if engine.protected_blocks:
            return False
        return engine.capacity_blocks > 0 or (self._fleet.has_status and not any(engine.caps.values()))


def _for_sure(room: Room) -> float:
    return room.blocks if room.sure else -math.inf
