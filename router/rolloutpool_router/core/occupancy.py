"""How full the engines are and may be, as one router sees them."""

from __future__ import annotations

from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.ledger import Ledger
from rolloutpool_router.core.placement import EngineLoad
from rolloutpool_router.core.retention import Retention
from rolloutpool_router.core.sessions import SessionTable
from rolloutpool_router.core.view import Engine

LEAST_IN_TURN = 0.05
"""Least part of the residents' blocks that turns are taken to hold."""


class Occupancy:
    """Puts together what the status allows, what residents hold, and the router's own pressure."""

    def __init__(self, fleet: Fleet, table: SessionTable, ledger: Ledger, retention: Retention) -> None:
        """Look at a router's state; nothing is changed."""
        self._fleet = fleet
        self._table = table
        self._ledger = ledger
        self._retention = retention

    def protected_blocks(self, engine: str) -> float:
        """Blocks of an engine that sessions may fill: what the status says, less this router's pressure.

        With a second tier in CPU memory sessions in a tool gap may live there, so that all residents have
        both tiers to fill while those in a turn, on average, fit the first.
        """
        known = self._fleet.engines.get(engine)
        if known is None:
            return 0.0
        first = known.protected_blocks * self._retention.factor(engine)
        if not known.offload_blocks or not known.capacity_blocks:
            return first
        second = known.offload_blocks * known.protected_blocks / known.capacity_blocks
        return min(first + second, first / max(self._ledger.in_turn(engine), LEAST_IN_TURN))

    def is_full(self, engine: str) -> bool:
        """Whether an engine holds what it may already: to allow less would change nothing now."""
        books = self._ledger.engines.get(engine)
        return books is not None and books.held >= self.protected_blocks(engine)

    def loads(self, now: float) -> list[EngineLoad]:
        """The engines that are up and hold sessions, as admission and placement see them."""
        return [self.load(engine) for engine in self._fleet.homes(now)]

    def load(self, engine: Engine) -> EngineLoad:
        """One engine."""
        books = self._ledger.engines.get(engine.name)
        return EngineLoad(
            name=engine.name,
            capacity_blocks=engine.capacity_blocks,
            protected_blocks=self.protected_blocks(engine.name),
            caps=engine.caps,
            active={name: tally.sessions for name, tally in self._table.tally(engine.name).items()},
            occupied_blocks=books.expected if books is not None else 0.0,
            closed=self._is_closed(engine),
        )

    def _is_closed(self, engine: Engine) -> bool:
        """Whether the status gives this router nothing of an engine; not where it says nothing yet."""
        if engine.protected_blocks:
            return False
        return engine.capacity_blocks > 0 or (self._fleet.has_status and not any(engine.caps.values()))
