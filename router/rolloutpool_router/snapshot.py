"""The router's state as the operator reads it."""

from __future__ import annotations

from rolloutpool_api.snapshot import AdmissionSnapshot, SnapshotClass, SnapshotEngine, SnapshotEngineClass
from rolloutpool_router.core.controller import AdmissionController, ClassState


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
    window = view.spec.admission.window_seconds if view is not None else 0
    return AdmissionSnapshot(
        router=router,
        taken_at=taken_at,
        applied_revision=view.revision if view is not None else 0,
        ignored_statuses=ignored_statuses,
        engines=[_engine(controller, name, now) for name in controller.fleet.engines],
        classes=[_class(controller, name, state, now, window) for name, state in controller.classes.items()],
    )


def _engine(controller: AdmissionController, name: str, now: float) -> SnapshotEngine:
    return SnapshotEngine(
        name=name,
        healthy=controller.fleet.reachable(name, now),
        classes=[
            SnapshotEngineClass(name=class_name, active=tally.sessions, blocks=tally.blocks)
            for class_name, tally in controller.table.tally(name).items()
        ],
    )


def _class(
    controller: AdmissionController, name: str, state: ClassState, now: float, window_seconds: float
) -> SnapshotClass:
    observed = state.window.observed(now=now, window_seconds=window_seconds)
    return SnapshotClass(
        name=name,
        active=controller.table.by_class[name],
        waiting=len(state.queue),
        oldest_wait_seconds=state.queue.oldest_wait(now),
        footprint_blocks=observed.cost.footprint_blocks,
        residency_seconds=observed.cost.residency_seconds,
        observations=observed.observations,
        consumed=controller.consumed.counts[name],
        finished_total=state.counters.finished,
        adopted_total=state.counters.adopted,
        rejected_total=state.counters.rejected,
    )
