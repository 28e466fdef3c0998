"""The router's state as the operator reads it."""

from __future__ import annotations

from rolloutpool_api.snapshot import AdmissionSnapshot, SnapshotClass, SnapshotEngine, SnapshotEngineClass
from rolloutpool_router.core.classes import ClassState
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.estimates import Source


def take_snapshot(
    controller: AdmissionController, *, router: str, now: float, taken_at: float, ignored_statuses: int
) -> AdmissionSnapshot:
    """State of a router.

    Args:
        controller: its state.
        router: its name.
        now: seconds of the controller's clock.
        taken_at: Unix seconds.
        ignored_statuses: objects that were malformed or stale.
    """
    view = controller.view
    return AdmissionSnapshot(
        router=router,
        taken_at=taken_at,
        applied_revision=view.revision if view is not None else 0,
        ignored_statuses=ignored_statuses,
        engines=[_engine(controller, name, now) for name in controller.fleet.engines],
        classes=[_class(controller, name, state, now) for name, state in controller.classes.items()],
    )


def _engine(controller: AdmissionController, name: str, now: float) -> SnapshotEngine:
    return SnapshotEngine(
        name=name,
        healthy=controller.fleet.reachable(name, now),
        pressure=round(100 * (1 - controller.retention.factor(name))),
        classes=[
            SnapshotEngineClass(name=class_name, active=tally.sessions, blocks=max(0, round(tally.blocks)))
            for class_name, tally in controller.table.tally(name).items()
        ],
    )


def _class(controller: AdmissionController, name: str, state: ClassState, now: float) -> SnapshotClass:
    books = controller.ledger.classes.get(name)
    return SnapshotClass(
        name=name,
        active=controller.table.by_class[name],
        waiting=len(state.queue),
        oldest_wait_seconds=state.queue.oldest_wait(now),
        parked=controller.table.parked_by_class[name],
        footprint_blocks=books.cost.footprint_blocks if books is not None else 0.0,
        residency_seconds=books.cost.residency_seconds if books is not None else 0.0,
        source=books.source if books is not None else Source.PRIORS,
        observations=controller.ledger.finished(name),
        consumed=controller.consumed.counts[name],
        debt=controller.debts()[name],
        finished_total=state.counters.finished,
        adopted_total=state.counters.adopted,
        rejected_total=state.counters.rejected,
    )
