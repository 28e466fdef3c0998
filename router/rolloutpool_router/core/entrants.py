"""Who enters next of those that wait: the next of each class, as `admission.decide` sees them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING

from rolloutpool_router.core.admission import Candidate, Entry, decide, headroom, is_ahead
from rolloutpool_router.core.classes import ClassState
from rolloutpool_router.core.fitting import Ask, several
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.ledger import ClassBooks, Ledger
from rolloutpool_router.core.occupancy import Occupancy
from rolloutpool_router.core.placement import EngineLoad, choose_engine
from rolloutpool_router.core.prefix import PrefixKey
from rolloutpool_router.core.queues import ClassQueue, Ticket
from rolloutpool_router.core.reach import Openings
from rolloutpool_router.core.sessions import MAX_SESSIONS, SessionTable
from rolloutpool_router.core.view import PoolView

if TYPE_CHECKING:
    from random import Random


Head = tuple[ClassState, Ticket]
"""The next waiting session of a class, and the class."""


class Entrant(Candidate):
    """The next waiting session of one class, kept from one decision to the next."""

    def __init__(
        self,
        class_name: str,
        fleet: Fleet,
        table: SessionTable,
        ledger: Ledger,
        occupancy: Occupancy,
        *,
        class_blind: bool,
        capless: bool,
    ) -> None:
        """Nobody yet: call `stand_for` before the first question.

        Args:
            class_name: the class.
            fleet: what engines have cached.
            table: open sessions.
            ledger: what is expected of new ones.
            occupancy: the engines; whoever asks has called its `loads` before.
            class_blind: each cap bounds the sessions of all classes together.
            capless: the class has no cap on any engine.
        """
        self.class_name = class_name
        self.capless = capless
        self.debt = self.arrived_at = 0.0
        self.together_on: str | None = None
        self.parked = self.overdue = False
        self._fleet = fleet
        self._table = table
        self._ledger = ledger
        self._occupancy = occupancy
        self._within = Openings(class_name, occupancy, class_blind=class_blind, beyond=False)
        self._beyond = Openings(class_name, occupancy, class_blind=class_blind, beyond=True)
        self._queue: ClassQueue | None = None
        self._ticket: Ticket | None = None
        self._books: ClassBooks | None = None
        self._ask: Ask | None = None
        """What the next session asks; None: not found out yet."""

    def stand_for(self, state: ClassState, ticket: Ticket, *, debt: float, overdue: bool) -> None:
        """This is the next session; `debt` and `overdue` as in `admission.Candidate`."""
        books = self._ledger.classes[self.class_name]
        if ticket is not self._ticket or overdue is not self.overdue or books is not self._books:
            self._ticket, self._books, self._ask = ticket, books, None
            self.arrived_at, self.parked, self.overdue = ticket.arrived_at, ticket.parked, overdue
        self.debt, self._queue = debt, state.queue
        self.together_on = state.goes_with(ticket) if state.together is not None else None

    def open_to(self, *, beyond: bool) -> list[EngineLoad]:
        """As in `admission.Candidate`."""
        fits = (self._beyond if beyond else self._within).look(self._ask or self._find_out())
        if 1 not in fits:
            return []
        return list(compress(self._occupancy.rows, fits))

    def emptiest(self, *, beyond: bool) -> str | None:
        """As in `admission.Candidate`."""
        fill, rows = self._occupancy.fill, self._occupancy.rows
        if beyond:
            return rows[fill.index(min(fill))].name if rows else None
        self._within.look(self._ask or self._find_out())
        if 1 not in self._within.all:
            return None
        lets_in = self._within.all
        within = [place for place in range(len(rows)) if lets_in[place]]
        return rows[min(within, key=fill.__getitem__)].name

    def fit_together(self, engines: Sequence[EngineLoad]) -> list[EngineLoad]:
        """As in `admission.Candidate`."""
        group = self._ticket.group if self._ticket is not None else None
        if group is None or self._queue is None or (sessions := self._queue.siblings(group)) < 2:
            return []
        fitting = self._occupancy.fitting
        ask = several(self._ask or self._find_out(), sessions, fitting)
        return [engine for engine in engines if fitting.fits(ask, engine)]

    def overlap(self) -> Mapping[str, int]:
        """As in `admission.Candidate`."""
        prefix = self._ticket.prefix if self._ticket is not None else ()
        return self._fleet.prefixes.overlaps(prefix) if prefix else {}

    def _find_out(self) -> Ask:
        """What the next session asks."""
        ticket, ledger = self._ticket, self._ledger
        assert ticket is not None, "stand_for comes first"
        parked = self._table.parked(ticket.session) if ticket.parked else None
        if parked is not None:
            pieces, outlay = parked.pieces, ledger.returning(parked, ticket.prompt_tokens)
        else:
            pieces = ticket.pieces
            outlay = ledger.newcomer(ticket.class_name, pieces, ticket.prompt_tokens)
        self._ask = self._occupancy.fitting.ask(outlay, pieces, overdue=self.overdue)
        return self._ask


class Entrants:
    """The waiting sessions of all classes, as decisions see them."""

    def __init__(self, fleet: Fleet, table: SessionTable, ledger: Ledger, occupancy: Occupancy) -> None:
        """Look at a router's state; nothing is changed."""
        self._fleet = fleet
        self._table = table
        self._ledger = ledger
        self._occupancy = occupancy
        self._view: PoolView | None = None
        self._entrants: dict[str, Entrant] = {}

    def apply(self, view: PoolView) -> None:
        """Take over a new view."""
        self._view = view
        blind = view.rules.admission.class_blind
        parts = self._fleet, self._table, self._ledger, self._occupancy
        self._entrants = {
            name: Entrant(name, *parts, class_blind=blind, capless=name in view.capless)
            for name in view.workloads
        }

    def heads(self, classes: Iterable[ClassState]) -> list[Head]:
        """The next session of each class in which some wait; parked ones alone while the router is full."""
        heads = [
            (state, head)
            for state in classes
            if state.queue.requests and (head := state.queue.head()) is not None
        ]
        if heads and len(self._table) >= MAX_SESSIONS:
            heads = [(state, head) for state, head in heads if head.parked]
        return heads

    def next(
        self, heads: Sequence[Head], debts: Mapping[str, float], *, now: float, rng: Random
    ) -> tuple[Ticket, Entry] | None:
        """The next session to enter, and where; None while nobody may.

        Args:
            heads: the next of each class; the occupancy was looked at for this moment.
            debts: samples that each class is behind its share.
            now: seconds.
            rng: breaks ties.
        """
        view = self._view
        assert view is not None, "apply comes first"
        entry = decide(self._candidates(view, heads, debts, now), rules=view.rules.admission, rng=rng)
        for _, head in heads:
            if entry is not None and head.class_name == entry.class_name:
                return head, entry
        return None

    def held_for_mixture(
        self, heads: Sequence[Head], debts: Mapping[str, float], *, now: float
    ) -> dict[str, float]:
        """Samples that a class is ahead of its share, of each class whose next session is held for that.

        Args:
            heads: the next of each class.
            debts: samples that each class is behind its share.
            now: seconds.
        """
        view = self._view
        most_ahead = view.rules.admission.most_ahead if view is not None else None
        if view is None or most_ahead is None:
            return {}
        candidates = self._candidates(view, heads, debts, now)
        return {one.class_name: -one.debt for one in candidates if is_ahead(one, most_ahead)}

    def place_now(
        self, class_name: str, prefix: Sequence[PrefixKey], *, avoid: Collection[str], now: float, rng: Random
    ) -> str | None:
        """The engine for a session that does not wait: with room for its class where there is one.

        Args:
            class_name: its class.
            prefix: hashes of its prompt's blocks.
            avoid: engines that it shall not go to.
            now: seconds.
            rng: breaks ties.
        """
        up = [load for load in self._occupancy.loads(now) if load.name not in avoid]
        if not up:
            return None
        blind = self._view is not None and self._view.class_blind
        room = [load for load in up if headroom(load, class_name, class_blind=blind) > 0]
        return choose_engine(room or up, self._fleet.prefixes.overlaps(prefix), rng).name

    def _candidates(
        self, view: PoolView, heads: Sequence[Head], debts: Mapping[str, float], now: float
    ) -> list[Entrant]:
        candidates = []
        for state, head in heads:
            name, waits = head.class_name, now - state.turn_since
            entrant = self._entrants[name]
            overdue = waits >= view.overdue_seconds
            entrant.stand_for(state, head, debt=debts.get(name, 0.0), overdue=overdue)
            candidates.append(entrant)
        return candidates
