"""One look of the operator at a pool: from what routers and engines say to the caps that are worth a write.

The operator's admission loop and the simulator's both go through here, so that the order of the steps (who is
there, what is in force, caps for all, each router's part) exists once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import AdmissionStatus
from rolloutpool_router.core.control import (
    EngineCapacity,
    Merged,
    compute_admission,
    matters,
    merge_snapshots,
    next_revision,
)
from rolloutpool_router.core.grants import History, seen
from rolloutpool_router.core.roster import Roster, alive, looked
from rolloutpool_router.core.sharing import share, shares_matter


@dataclass(frozen=True)
class Remembered:
    """What is kept between two looks; all of it can be lost and found again."""

    roster: Roster | None = None
    """The routers as last seen; None before the first look."""
    history: History = ()
    """The caps written lately: what routers may still enforce."""


@dataclass(frozen=True)
class Proposal:
    """What a look led to."""

    remembered: Remembered
    snapshots: tuple[AdmissionSnapshot, ...]
    """The last word of every router that may still be there."""
    merged: Merged
    """The same, added up."""
    admission: AdmissionStatus | None
    """Caps to write; None where nothing in them would matter."""


def propose(
    spec: RolloutPoolSpec,
    *,
    stored: AdmissionStatus | None,
    remembered: Remembered,
    routers: Iterable[tuple[str, str, bool]],
    answers: Mapping[str, AdmissionSnapshot],
    engines: Sequence[EngineCapacity],
    now: float,
    known_revision: int = 0,
    park_idle_seconds: int = 0,
) -> Proposal:
    """Look once.

    Args:
        spec: the pool's spec.
        stored: the caps in the object.
        remembered: from the look before.
        routers: name, base URL and readiness of every router that exists.
        answers: snapshots of those that answered now, by name.
        engines: engines that sessions live on, with known capacity.
        now: Unix seconds.
        known_revision: the last that this process computed.
        park_idle_seconds: see `compute_admission`.
    """
    roster = looked(remembered.roster, routers, answers, now=now)
    living = alive(roster, now=now)
    # A router that does not answer once is still there: its last word counts until it is gone.
    snapshots = tuple(router.snapshot for router in living if router.snapshot is not None)
    history = seen(remembered.history, stored)
    merged = merge_snapshots([workload.name for workload in spec.workloads], snapshots)
    fresh = None
    if answers and engines:
        together = compute_admission(
            spec,
            merged=merged,
            engines=engines,
            revision=next_revision(stored, snapshots, known_revision),
            now=now,
            park_idle_seconds=park_idle_seconds,
        )
        fresh = share(together, routers=living, replicas=spec.router.replicas, history=history)
        if not (matters(fresh, stored, now=now) or shares_matter(fresh, stored)):
            fresh = None
    return Proposal(Remembered(roster, history), snapshots, merged, fresh)
