"""Watches the EndpointSlices of the pool's engines: which pods are ready or about to go.

Addresses stay those of the status, since the engines' DNS names outlive their pods. A router that may not
read EndpointSlices, or cannot for a while, goes on with the status and its own probes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

from lightkube import AsyncClient
from lightkube.generic_resource import create_namespaced_resource

from rolloutpool_api import labels
from rolloutpool_router.core.endpoints import pods_of
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.watch_kubernetes import ClientFactory, follow, keep_connected

log = logging.getLogger(__name__)

SERVICE_NAME = "kubernetes.io/service-name"
"""Label of an EndpointSlice: the Service that it belongs to."""
LOST_SECONDS = 60.0
"""How long what was last told of the pods stays in force while the API cannot be reached, in seconds."""

EndpointSlices = create_namespaced_resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")


async def watch_endpoints(
    pool: str,
    namespace: str,
    fleet: Fleet,
    *,
    connect: ClientFactory = AsyncClient,
    clock: Callable[[], float] = time.monotonic,
    rng: Random | None = None,
) -> None:
    """Tell the fleet of its engines' pods now and, for ever, after each change.

    Args:
        pool: name of the RolloutPool.
        namespace: its namespace.
        fleet: gets what was read.
        connect: makes a client; by default from the pod's service account, else KUBECONFIG.
        clock: monotonic seconds.
        rng: spreads the pauses after errors.
    """
    watcher = _Watcher(labels.engine_service_name(pool), namespace, fleet, clock)
    await keep_connected(watcher.rounds, connect=connect, failed=watcher.failed, rng=rng)


class _Watcher:
    """Keeps the slices of one Service."""

    def __init__(self, service: str, namespace: str, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._labels: dict[str, Any] = {SERVICE_NAME: service}
        self._namespace = namespace
        self._fleet = fleet
        self._clock = clock
        self._seen_at = clock()
        self._forbidden = False
        self._slices: dict[str, dict[str, Any]] = {}
        """By name."""

    async def rounds(self, client: AsyncClient) -> AsyncIterator[None]:
        """List and watch, again and again."""
        while True:
            found = client.list(EndpointSlices, namespace=self._namespace, labels=self._labels)
            self._slices = {_name(item): dict(item) async for item in found}
            self._tell()
            yield
            version = found.resourceVersion
            await follow(
                client, EndpointSlices, self._namespace, version, self._read_event, labels=self._labels
            )

    def failed(self, error: Exception, pause: float) -> None:
        """The API did not answer as it should."""
        forbidden = _is_forbidden(error)
        if forbidden or self._clock() - self._seen_at > LOST_SECONDS:
            self._fleet.pods_seen(None)
        if not forbidden:
            log.warning("EndpointSlices: %r; next try within %.1f s", error, pause)
        elif not self._forbidden:
            log.warning(
                "this router may not read EndpointSlices and goes on without them: the operator alone tells "
                "which engines are about to go; grant get, list, watch of discovery.k8s.io endpointslices"
            )
        self._forbidden = forbidden

    def _read_event(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "DELETED":
            self._slices.pop(_name(body), None)
        else:
            self._slices[_name(body)] = body
        self._tell()

    def _tell(self) -> None:
        self._seen_at = self._clock()
        self._forbidden = False
        self._fleet.pods_seen(pods_of(self._slices.values()))


def _is_forbidden(error: Exception) -> bool:
    """Whether the API said 403; errors of lightkube and of its HTTP client both carry the response."""
    return getattr(getattr(error, "response", None), "status_code", None) == 403


def _name(body: Any) -> str:
    return str((body.get("metadata") or {}).get("name", ""))
