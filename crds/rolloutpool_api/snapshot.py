"""What a router tells the operator: the answer of GET /admission/snapshot."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rolloutpool_api.base import StatusModel

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Samples = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SnapshotEngineClass(StatusModel):
    """One class on one engine."""

    name: str
    """Class."""
    active: Count
    """Resident sessions."""
    blocks: Count
    """KV blocks that they are estimated to hold."""


class SnapshotEngine(StatusModel):
    """One engine as the router sees it."""

    name: str
    """Engine, as in status.endpoints.admin."""
    healthy: bool = True
    """False: the router does not route to it now."""
    pressure: Count = 0
    """Contraction by the router's own pressure loop, in percent."""
    classes: list[SnapshotEngineClass] = []
    """Residents by class."""


class SnapshotClass(StatusModel):
    """One class over all engines."""

    name: str
    """Class."""
    active: Count
    """Resident sessions."""
    waiting: Count
    """Sessions that wait to enter."""
    oldest_wait_seconds: Seconds = 0.0
    """Longest current wait, in seconds."""
    held: Count = 0
    """Requests that no cap holds: they wait for the end of a pause, or for an engine that may be sent any."""
    parked: Count = 0
    """Sessions between two turns that gave their place back."""
    footprint_blocks: Seconds = 0.0
    """Estimated mean KV footprint of a session, in blocks (k); 0 before the first estimate."""
    residency_seconds: Seconds = 0.0
    """Estimated mean residency, in seconds (T); 0 before the first estimate."""
    source: str = "Priors"
    """Where the two come from: Priors, Blend or Observed."""
    observations: Count = 0
    """Finished sessions behind them."""
    consumed: Count = 0
    """Finished sessions in the mixture's window."""
    debt: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """Samples behind the target mixture (negative: ahead), as this router orders entries by."""
    ahead: Samples = 0.0
    """Samples ahead of the target mixture, where sessions that wait are held for that (mixture.enforcement
    Hard); 0: they are not."""
    finished_total: Count = 0
    """Finished sessions since the router started."""
    adopted_total: Count = 0
    """Sessions with history that came from another router's time and were let in at once."""
    rejected_total: Count = 0
    """Requests answered with an overload status."""


class SnapshotWeights(StatusModel):
    """The pool's weights as the router sees them."""

    version: str | None = None
    """The version that engines must have; None: no version is known."""
    paused_seconds: Seconds = 0.0
    """How long the pool has been paused, in seconds; 0: it is not."""
    stale_engines: list[str] = []
    """Engines that get no requests, since their weights are not known to be the pool's."""
    stale_because: str = ""
    """Why the first of them is stale, as a sentence about it without its name."""
    unserved_since: Seconds | None = None
    """Since when no engine that sessions live on has the pool's weights, in Unix seconds; None: some have."""
    membership_epoch: Count = 0
    """Grows whenever an engine joins, leaves or restarts, and when a weight group is formed."""


class AdmissionSnapshot(StatusModel):
    """State of one router."""

    router: str
    """Which router: its pod's name."""
    taken_at: Seconds
    """When, in Unix seconds of the router's clock."""
    applied_revision: Count = 0
    """status.admission.revision in force; 0 while none is."""
    ignored_statuses: Count = 0
    """Statuses that were malformed or stale and left the caps as they were."""
    engines: list[SnapshotEngine] = []
    """Engines known."""
    classes: list[SnapshotClass] = []
    """Classes of the spec."""
    weights: SnapshotWeights | None = None
    """The pool's weights; None where they are not synchronised through the router."""
