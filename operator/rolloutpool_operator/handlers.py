"""Kopf's part: watch streams. Events mark pools as dirty; nothing else happens here.

Only `on.event` handlers are used: they leave no finalizer and no annotation on any object.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import kopf

from rolloutpool_api import labels
from rolloutpool_operator.core.liveness import WatchAudit
from rolloutpool_operator.core.observed import PoolKey
from rolloutpool_operator.core.watched import (
    CHILDREN,
    HEARTBEAT,
    LEASES,
    NODE,
    POD,
    POOL,
    Changes,
    Kind,
    owner,
)
from rolloutpool_operator.metrics import Metrics
from rolloutpool_operator.settings import Settings

SERVER_TIMEOUT_SECONDS = 300
"""The API server ends a watch after this long, so that none lives for ever. It takes whole seconds alone."""
CLIENT_TIMEOUT_SECONDS = 330.0
CONNECT_TIMEOUT_SECONDS = 10.0
BACKOFFS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Delays between attempts while the API server is away, in seconds; the last one repeats for ever."""

logger = logging.getLogger(__name__)


class Endless:
    """Delays that never run out: a watch that gave up would stay deaf until a restart."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(BACKOFFS, itertools.repeat(BACKOFFS[-1]))


class Watches:
    """What the watches deliver, turned into dirty pools."""

    def __init__(
        self,
        *,
        audit: WatchAudit,
        metrics: Metrics,
        add: Callable[[PoolKey], None],
        every: Callable[[], None],
        foreign: Callable[[PoolKey, Mapping[str, Any] | None], bool],
    ) -> None:
        """Make the sink of watch events.

        Args:
            audit: told of every delivery.
            metrics: counts events.
            add: marks a pool as dirty.
            every: marks all pools as dirty: a node changed.
            foreign: whether a pool's status was written by somebody else.
        """
        self._audit = audit
        self._metrics = metrics
        self._add = add
        self._every = every
        self._foreign = foreign
        self._changes = Changes()

    def deliver(self, kind: str, event: Mapping[str, Any]) -> None:
        """Take one event in."""
        body = event["object"]
        meta = body["metadata"]
        self._audit.delivered(kind, str(meta.get("uid", "")), str(meta.get("resourceVersion", "")))
        if kind == LEASES.kind:
            return
        key = owner(kind, body)
        relevant = self._changes.matters(kind, body, gone=event["type"] == "DELETED")
        if kind == POOL.kind and key and not relevant:
            relevant = self._foreign(key, body.get("status"))
        self._metrics.events.labels(kind=kind, relevant=str(relevant).lower()).inc()
        if not relevant:
            return
        if key:
            self._add(key)
        elif kind == NODE.kind:
            self._every()


def make_registry(watches: Watches, *, nodes: bool, heartbeat: bool) -> kopf.OperatorRegistry:
    """Handlers for the pools, their children and pods, nodes, and the heartbeat."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(kopf.login_via_client)
    kinds = [POOL, POD, *CHILDREN, *([NODE] if nodes else []), *([LEASES] if heartbeat else [])]
    for kind in kinds:
        _watch(registry, watches, kind)
    return registry


def make_kopf_settings(settings: Settings) -> kopf.OperatorSettings:
    """Kopf as a shell: watches that end and come back, server-side selectors, no Events, no peering."""
    found = kopf.OperatorSettings()
    found.watching.server_timeout = SERVER_TIMEOUT_SECONDS
    found.watching.client_timeout = CLIENT_TIMEOUT_SECONDS
    found.watching.connect_timeout = CONNECT_TIMEOUT_SECONDS
    found.watching.inactivity_timeout = settings.quiet_seconds
    for kind in (POD, *CHILDREN):
        found.watching.label_selectors[_selector(kind)] = labels.POOL
    found.watching.label_selectors[_selector(LEASES)] = f"{HEARTBEAT}=true"
    found.networking.error_backoffs = Endless()
    found.networking.connect_timeout = CONNECT_TIMEOUT_SECONDS
    found.posting.enabled = False
    found.posting.loggers = False
    found.peering.standalone = True
    # Following namespaces and CRDs takes rights on the whole cluster.
    found.scanning.disabled = bool(settings.watched_namespaces)
    return found


def _watch(registry: kopf.OperatorRegistry, watches: Watches, kind: Kind) -> None:
    async def handle(event: Mapping[str, Any], **_: Any) -> None:
        watches.deliver(kind.kind, event)

    kopf.on.event(kind.group, kind.version, kind.plural, id=f"watch-{kind.plural}", registry=registry)(handle)


def _selector(kind: Kind) -> Any:
    return (kind.group, kind.version, kind.plural)
