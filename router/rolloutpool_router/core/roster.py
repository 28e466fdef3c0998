"""The routers that may be alive, as an operator finds them from one look to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rolloutpool_api.snapshot import AdmissionSnapshot

GONE_SECONDS = 30.0
"""How long a router that is not ready counts as alive after its last report, in seconds."""


@dataclass(frozen=True, kw_only=True)
class RouterState:
    """One router that exists."""

    name: str
    url: str
    """Base URL by which other routers reach it."""
    ready: bool
    """Whether it takes requests: sessions belong to ready routers only."""
    snapshot: AdmissionSnapshot | None = None
    """The last that it gave, however old; None before the first."""
    since: float = 0.0
    """When it last reported, or was first seen, in seconds of the operator's clock."""
    new: bool = False
    """It was not there when this operator first looked, so it never enforced what an earlier one wrote."""

    def holds_nothing(self, now: float) -> bool:
        """Whether it cannot have caps in force: it is starting, or it has been away for too long."""
        starting = self.new and self.snapshot is None
        return not self.ready and (starting or now - self.since >= GONE_SECONDS)


Roster = tuple[RouterState, ...]
"""Every router that exists, by name."""


def looked(
    before: Roster | None,
    routers: Iterable[tuple[str, str, bool]],
    snapshots: Mapping[str, AdmissionSnapshot],
    *,
    now: float,
) -> Roster:
    """The roster after another look; routers that do not exist any more are dropped.

    Args:
        before: the roster so far; None at the operator's first look.
        routers: name, base URL and readiness of every router that exists, those about to go too.
        snapshots: by name, of the routers that answered now.
        now: seconds.
    """
    known = {router.name: router for router in before or ()}
    found = []
    for name, url, ready in sorted(routers):
        state = known.get(name) or RouterState(
            name=name, url=url, ready=ready, since=now, new=before is not None
        )
        state = replace(state, url=url or state.url, ready=ready)
        if (snapshot := snapshots.get(name)) is not None:
            state = replace(state, snapshot=snapshot, since=now)
        found.append(state)
    return tuple(found)


def alive(roster: Roster, *, now: float) -> Roster:
    """The routers that may have caps in force."""
    return tuple(router for router in roster if not router.holds_nothing(now))
