"""Watches one RolloutPool through the Kubernetes API.

Lists, then watches from there. The server ends each watch after a while and the client gives up a bit later;
so a stream that has fallen silent (behind a load balancer, say) is noticed. After any error all is built
anew, the client with its token too, after a pause that grows and is spread at random.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

from lightkube import AsyncClient
from lightkube.generic_resource import create_namespaced_resource

from rolloutpool_api import labels
from rolloutpool_router.feed import PoolFeed

log = logging.getLogger(__name__)

SERVER_TIMEOUT_SECONDS = 60
"""The API server ends a watch after this; the next one follows at once."""
SILENCE_SECONDS = 75.0
"""The router gives a watch up that has not said anything, not even its end, for this long."""
FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 20.0

RolloutPools = create_namespaced_resource(labels.GROUP, labels.VERSION, labels.KIND, labels.PLURAL)

ClientFactory = Callable[[], AsyncClient]


async def watch_kubernetes(
    name: str,
    namespace: str,
    feed: PoolFeed,
    *,
    connect: ClientFactory = AsyncClient,
    rng: Random | None = None,
) -> None:
    """Read the object now and, for ever, after each change.

    Args:
        name: name of the RolloutPool.
        namespace: its namespace.
        feed: gets what was read.
        connect: makes a client; by default from the pod's service account, else KUBECONFIG.
        rng: spreads the pauses.
    """
    spread = rng or Random()
    failures = 0
    while True:
        try:
            client = connect()
            try:
                async for _ in _rounds(client, name, namespace, feed):
                    failures = 0
            finally:
                await client.close()
        except Exception as error:
            pause = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 16))
            failures += 1
            log.warning("Kubernetes API: %r; the last caps stay, next try within %.1f s", error, pause)
            await asyncio.sleep(pause * spread.uniform(0.5, 1.0))


async def _rounds(client: AsyncClient, name: str, namespace: str, feed: PoolFeed) -> AsyncIterator[None]:
    """List and watch, again and again; yields after each list that succeeded."""
    fields: dict[str, Any] = {"metadata.name": name}
    last_version: str | None = None
    while True:
        found = client.list(RolloutPools, namespace=namespace, fields=fields)
        objects = [dict(item) async for item in found]
        last_version = _read_list(objects, last_version, feed)
        yield
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENCE_SECONDS):
                events = client.watch(
                    RolloutPools,
                    namespace=namespace,
                    fields=fields,
                    server_timeout=SERVER_TIMEOUT_SECONDS,
                    resource_version=found.resourceVersion,
                )
                async for kind, item in events:
                    last_version = _read_event(kind, dict(item), feed)


def _read_list(objects: list[dict[str, Any]], last_version: str | None, feed: PoolFeed) -> str | None:
    if not objects:
        feed.gone()
        return None
    version = _version(objects[0])
    if version == last_version:
        feed.seen()
    else:
        feed.read(objects[0])
    return version


def _read_event(kind: str, body: dict[str, Any], feed: PoolFeed) -> str | None:
    if kind == "DELETED":
        feed.gone()
        return None
    feed.read(body)
    return _version(body)


def _version(body: dict[str, Any]) -> str:
    return str(body.get("metadata", {}).get("resourceVersion", ""))
