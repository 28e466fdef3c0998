"""The routers of a pool as one of them sees the others: whose a session is, and who answers."""

from __future__ import annotations

from collections.abc import Sequence

from rolloutpool_api.status import RouterShare
from rolloutpool_router.core.health import HEALTHY, EngineHealth
from rolloutpool_router.core.ownership import ranking

REMEMBERED_SECONDS = 120.0
"""How long a router that is not listed any more is asked for its sessions, in seconds: as long as its pod may
take to end."""
MAX_REMEMBERED = 16
"""Most such routers."""


class Peers:
    """The routers that the status lists, and those that it listed lately."""

    def __init__(self, name: str) -> None:
        """Be the router of this name; know no other yet."""
        self.name = name
        self._routers: dict[str, RouterShare] = {}
        self._health: dict[str, EngineHealth] = {}
        self._left: dict[str, tuple[RouterShare, float]] = {}
        """Routers that are not listed any more, and since when."""
        self._changed_at = float("-inf")
        self.deserted = False
        """None of the listed routers is there, and this one is not among them: it goes on by itself."""

    @property
    def listed(self) -> bool:
        """Whether sessions may belong to this router: it is listed, or no router is."""
        return self.name in self._routers or not self._routers

    @property
    def others(self) -> list[RouterShare]:
        """The other routers."""
        return [router for router in self._routers.values() if router.name != self.name]

    def apply(self, routers: Sequence[RouterShare], now: float) -> None:
        """Take over the list of a status."""
        known = {router.name: router for router in routers}
        if known.keys() - {self.name} != self._routers.keys() - {self.name}:
            self._changed_at = now
        left = {name: (share, now) for name, share in self._routers.items() if name not in known}
        kept = {n: entry for n, entry in self._left.items() if n not in known and self._recent(entry, now)}
        self._left = dict([*kept.items(), *left.items()][-MAX_REMEMBERED:])
        self._routers = known
        self._health = {n: state for n, state in self._health.items() if n in known or n in self._left}

    def ahead(self, key: bytes, now: float, *, leaving: bool = False) -> list[RouterShare]:
        """Routers to try before a request is served here, in this order; those that just failed are left out.

        Whoever finds the owner gone turns to the same router, which owns the session once the status knows.

        Args:
            key: what the request belongs to (`ownership.session_key`).
            now: seconds.
            leaving: this router is about to go: it serves nothing that another can.
        """
        order = ranking(key, self._routers) if not self.deserted else ()
        if not leaving and self.name in self._routers:
            order = order[: order.index(self.name)]
        names = (name for name in order if name != self.name)
        return [self._routers[name] for name in names if self._health.get(name, HEALTHY).out_until <= now]

    def with_sessions(self, now: float) -> list[RouterShare]:
        """Routers that may have sessions that belong here now: the others, and those that left lately."""
        left = [entry[0] for entry in self._left.values() if self._recent(entry, now)]
        found = [share for share in (*self.others, *left) if share.name != self.name]
        return [share for share in found if self._health.get(share.name, HEALTHY).out_until <= now]

    def may_have_had(self, key: bytes, now: float, *, within: float) -> bool:
        """Whether another router may have admitted the session with this key.

        Args:
            key: the session's (`ownership.session_key`).
            now: seconds.
            within: how long a session may pause between two requests, in seconds.
        """
        return now - self._changed_at < within or ranking(key, self._routers)[:1] not in ((self.name,), ())

    def failed(self, router: str, now: float) -> None:
        """A router could not be reached, or takes no requests: it is passed over for a while."""
        if router in self._routers or router in self._left:
            self._health[router] = self._health.get(router, HEALTHY).failed(now)

    def answered(self, router: str) -> None:
        """A router answered."""
        self._health.pop(router, None)

    def _recent(self, entry: tuple[RouterShare, float], now: float) -> bool:
        return now - entry[1] < REMEMBERED_SECONDS
