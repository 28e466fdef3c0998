"""The router's state as the operator reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rolloutpool_api.snapshot import AdmissionSnapshot, SnapshotClass, SnapshotEngine, SnapshotEngineClass
from rolloutpool_router.core.classes import ClassState
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.estimates import Source


@dataclass(frozen=True, kw_only=True)
class _ByClass:
    """What is found out for all classes at once."""

    debts: Mapping[str, float]
    """Samples behind the share."""
    ahead: Mapping[str, float]
    """Samples ahead of it, where sessions are held for that."""
    held: Mapping[str, int]
    """Requests that no cap holds."""


def take_snapshot(
    controller: AdmissionController,
    *,
    router: str,
    now: float,
    taken_at: float,
    ignored_statuses: int,
    paused: Mapping[str, int] | None = None,
) -> AdmissionSnapshot:
    """State of a router.

    Args:
        controller: its state.
        router: its name.
        now: seconds of the controller's clock.
        taken_at: Unix seconds.
        ignored_statuses: objects that were malformed or stale.
        paused: requests that wait for the end of a pause, by class; the controller does not know them.
    """
    view = controller.view
    found = _by_class(controller, paused or {}, now)
    return AdmissionSnapshot(
        router=router,
        taken_at=taken_at,
        applied_revision=view.revision if view is not None else 0,
        ignored_statuses=ignored_statuses,
        engines=[_engine(controller, name, now) for name in controller.fleet.engines],
        classes=[_class(controller, name, state, found, now) for name, state in controller.classes.items()],
    )


def _by_class(controller: AdmissionController, paused: Mapping[str, int], now: float) -> _ByClass:
    debts = controller.debts()
    heads = controller.entrants.heads(controller.classes.values())
    held = Counter(paused)
    for ticket in controller.stalled:
        held[ticket.class_name] += ticket.requests
    return _ByClass(debts=debts, ahead=controller.entrants.held_for_mixture(heads, debts, now=now), held=held)


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


def _class(
    controller: AdmissionController, name: str, state: ClassState, found: _ByClass, now: float
) -> SnapshotClass:
    books = controller.ledger.classes.get(name)
    return SnapshotClass(
        name=name,
        active=controller.table.by_class[name],
        waiting=len(state.queue),
        oldest_wait_seconds=state.queue.oldest_wait(now),
        held=found.held.get(name, 0),
        parked=controller.table.parked_by_class[name],
        footprint_blocks=books.cost.footprint_blocks if books is not None else 0.0,
        residency_seconds=books.cost.residency_seconds if books is not None else 0.0,
        source=books.source if books is not None else Source.PRIORS,
        observations=controller.ledger.finished(name),
        consumed=controller.consumed.counts[name],
        debt=found.debts[name],
        ahead=found.ahead.get(name, 0.0),
        finished_total=state.counters.finished,
        adopted_total=state.counters.adopted,
        rejected_total=state.counters.rejected,
    )
