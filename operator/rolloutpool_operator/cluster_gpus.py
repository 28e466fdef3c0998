"""Nodes of the cluster and the GPUs that are free on them, read once for all pools and kept for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rolloutpool_operator.core.cluster_facts import holds_devices, node_facts
from rolloutpool_operator.core.observed import NodeFacts, PoolKey
from rolloutpool_operator.core.watched import NODE, POD
from rolloutpool_operator.kubernetes_api import ApiError, Body, KubernetesApi

FRESH_SECONDS = 10.0
"""How long nodes and pods are taken as read, in seconds, unless a node changes."""
UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
"""Selects pods that may hold devices."""

logger = logging.getLogger(__name__)


class ClusterGpus:
    """Reads nodes and pods, cluster-wide where it may."""

    def __init__(self, api: KubernetesApi, *, monotonic: Callable[[], float], watch_nodes: bool) -> None:
        """Make the reader.

        Args:
            api: requests.
            monotonic: seconds of a clock that never goes back.
            watch_nodes: False where nodes may not be read.
        """
        self._api = api
        self._monotonic = monotonic
        self._watch_nodes = watch_nodes
        self._lock = asyncio.Lock()
        self._read_at: float | None = None
        self._nodes: list[Body] | None = None
        self._pods: list[Body] | None = None

    def invalidate(self) -> None:
        """Read anew next time: a node changed."""
        self._read_at = None

    async def facts(self, key: PoolKey, resource: str) -> tuple[tuple[NodeFacts, ...] | None, str]:
        """Nodes as a pool may use them, and what the count leaves out; None where nodes may not be read.

        Args:
            key: the pool; its own engines do not count as taken.
            resource: extended resource that a GPU is.
        """
        async with self._lock:
            await self._refresh()
            nodes, pods = self._nodes, self._pods
        if nodes is None:
            return None, "nodes may not be read: the budget is taken as free"
        if pods is None:
            own = await self._holders(key.namespace)
            note = f"only pods of namespace {key.namespace} may be read: GPUs that others hold count as free"
            return node_facts(nodes, own, resource=resource, pool=key), note
        return node_facts(nodes, pods, resource=resource, pool=key), ""

    async def _refresh(self) -> None:
        now = self._monotonic()
        if self._read_at is not None and now - self._read_at < FRESH_SECONDS:
            return
        self._nodes = await _unless_forbidden(self._api.objects(NODE, None)) if self._watch_nodes else None
        self._pods = None if self._nodes is None else await _unless_forbidden(self._holders(None))
        self._read_at = now

    async def _holders(self, namespace: str | None) -> list[Body]:
        """Pods that hold devices; the many others are dropped page by page."""
        pages = self._api.pages(POD, namespace, UNFINISHED)
        return [pod async for page in pages for pod in page if holds_devices(pod)]


async def _unless_forbidden(request: Awaitable[list[Body]]) -> list[Body] | None:
    try:
        return await request
    except ApiError as error:
        if error.status != 403:
            raise
        logger.debug("%s", error)
        return None
