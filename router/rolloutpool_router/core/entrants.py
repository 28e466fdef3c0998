"""Waiting sessions as `admission.decide` sees them: debt, fit and prefix overlap of each class's next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rolloutpool_router.core.admission import Candidate
from rolloutpool_router.core.forecast import Outlay, times
from rolloutpool_router.core.placement import EngineLoad
from rolloutpool_router.core.queues import Ticket

ROUNDED = 0.5
"""Most that a percentage is off by being rounded."""

if TYPE_CHECKING:
    from rolloutpool_router.core.controller import AdmissionController


class Entrants:
    """Makes candidates of the waiting sessions at one moment."""

    def __init__(self, controller: AdmissionController, now: float) -> None:
        """Look at a controller that has read its pool."""
        self._controller = controller
        self._now = now
        self._debts = controller.debts()

    def candidate(self, ticket: Ticket) -> Candidate:
        """A waiting session as a candidate."""
        controller = self._controller
        view = controller.view
        assert view is not None
        state = controller.classes[ticket.class_name]
        waits = self._now - state.turn_since
        overdue = view.rules.rescue and waits >= view.spec.admission.starvation_seconds
        return Candidate(
            class_name=ticket.class_name,
            debt=self._debts[ticket.class_name],
            arrived_at=ticket.arrived_at,
            overlap=lambda: controller.fleet.prefixes.overlaps(ticket.prefix),
            fits=self._fits(ticket, 1, overdue=overdue),
            spare=lambda engine: self._is_spare(ticket.class_name, engine),
            group_fits=self._fits(ticket, siblings, overdue=overdue)
            if (siblings := state.queue.siblings(ticket.group)) > 1
            else None,
            together_on=state.goes_with(ticket),
            parked=ticket.parked,
            capless=self._is_capless(ticket.class_name),
            overdue=overdue,
        )

    def _is_capless(self, class_name: str) -> bool:
        view = self._controller.view
        if view is None:
            return False
        told = view.admission.classes if view.admission is not None else []
        caps = [known.cap for known in told if known.name == class_name]
        return not any(caps or (engine.caps.get(class_name, 0) for engine in view.engines.values()))

    def _is_spare(self, class_name: str, engine: EngineLoad) -> bool:
        view, classes = self._controller.view, self._controller.ledger.classes
        if engine.closed:
            return False
        if not any(engine.active.values()):
            return self._may_have_alone(engine, classes[class_name].cost.footprint_blocks)
        if view is None or view.rules.pot:
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
        view = self._controller.view
        known = self._controller.fleet.engines[engine.name]
        if view is None or not engine.capacity_blocks:
            return True
        factor = 1 - (known.pressure + ROUNDED) / 100
        return (
            min(blocks, view.rules.protected_blocks(engine.capacity_blocks, factor)) <= known.protected_blocks
        )

    def _fits(self, ticket: Ticket, sessions: int, *, overdue: bool) -> Callable[[EngineLoad], bool]:
        controller = self._controller
        view = controller.view
        if view is None or not view.rules.pot:
            return lambda engine: not engine.closed
        z = view.rules.z
        parked = controller.table.parked(ticket.session)
        pieces = parked.pieces if parked is not None else ticket.pieces
        one: Outlay = (
            controller.ledger.returning(parked, ticket.prompt_tokens)
            if parked is not None
            else controller.ledger.newcomer(ticket.class_name, pieces, ticket.prompt_tokens)
        )
        outlay = times(one, sessions)

        def fits(engine: EngineLoad) -> bool:
            if engine.closed or not engine.protected_blocks:
                return not engine.closed
            if not any(engine.active.values()):
                # One that is larger than this router's part would wait for ever, and all others behind it.
                return overdue or self._may_have_alone(engine, outlay.mean[0])
            books = controller.ledger.engine(engine.name)
            taken = books.shared.blocks + books.shared.missing(pieces)
            return books.pot.room(outlay, blocks=engine.protected_blocks - taken, z=z)

        return fits
