"""What the watchers tell: objects, that the object is still there, or that it is gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from rolloutpool_api.v1alpha1 import InvalidPool, RolloutPool, parse_pool
from rolloutpool_router.core.grants import own_part, sharers
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.core.view import Ignored
from rolloutpool_router.gate import Gate

log = logging.getLogger(__name__)


class PoolFeed:
    """Hands this router's part of the objects to the gate, and keeps count of those that were no good."""

    def __init__(self, gate: Gate, peers: Peers, clock: Callable[[], float]) -> None:
        self._gate = gate
        self._peers = peers
        self._clock = clock
        self._seen_at = clock()
        self._last: RolloutPool | None = None
        self._capacities: dict[str, int] = {}
        self.ignored = 0
        """Objects that were malformed or stale and changed nothing."""

    @property
    def age_seconds(self) -> float:
        """Time since the object was last seen where it is kept; grows while its source cannot be reached."""
        return self._clock() - self._seen_at

    def seen(self) -> None:
        """The source answered, and the object is as it was."""
        self._seen_at = self._clock()

    def read(self, body: Mapping[str, Any]) -> None:
        """The object as it is now."""
        self.seen()
        try:
            pool = parse_pool(body)
        except InvalidPool as error:
            self.malformed(str(error))
            return
        ignored = self._apply(pool)
        if ignored is not None:
            self.malformed(ignored.reason)
            return
        new_spec = self._last is None or self._last.metadata.generation != pool.metadata.generation
        self._last = pool
        level = logging.INFO if new_spec else logging.DEBUG
        log.log(level, "generation %d, caps of revision %d", pool.metadata.generation, self._revision())

    def malformed(self, why: str) -> None:
        """What was read is stale or no RolloutPool that can be used: the last good one stays."""
        self.ignored += 1
        log.warning("object ignored, the last good one stays in force: %s", why)

    def gone(self) -> None:
        """The object does not exist: what was read last stays in force."""
        self.seen()
        log.warning(
            "the RolloutPool does not exist; %s", "going on with its last caps" if self._last else "waiting"
        )

    def engine_sizes(self, capacities: Mapping[str, int]) -> None:
        """KV blocks by engine as the engines said; they make the caps until the operator's come."""
        known = self._gate.controller.fleet.engines
        self._capacities = {n: b for n, b in (self._capacities | dict(capacities)).items() if n in known}
        if self._last is not None:
            self._apply(self._last)

    def unsized_engines(self) -> dict[str, str]:
        """URLs by name of ready engines whose size nobody has said yet."""
        engines = self._gate.controller.fleet.engines.values()
        return {e.name: e.url for e in engines if e.ready and e.holds_sessions and e.capacity_blocks == 0}

    def deserted(self, deserted: bool) -> None:
        """Whether none of the routers that the status lists is there, and this one is not among them."""
        if deserted is not self._peers.deserted and self._last is not None:
            log.warning("listed routers are %s", "gone: going on without them" if deserted else "back")
            self._peers.deserted = deserted
            self._apply(self._last)

    def _apply(self, pool: RolloutPool) -> Ignored | None:
        capacities = {name: blocks // sharers(pool) for name, blocks in self._capacities.items()}
        part = own_part(pool, self._peers.name, deserted=self._peers.deserted)
        ignored = self._gate.apply(part, capacities)
        view = self._gate.controller.view
        if ignored is None and view is not None and view.admission is not None:
            self._peers.apply(view.admission.routers, self._clock())
        return ignored

    def _revision(self) -> int:
        view = self._gate.controller.view
        return view.revision if view is not None else 0
