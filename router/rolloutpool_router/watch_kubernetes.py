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
from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource

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


Rounds = Callable[[AsyncClient], AsyncIterator[None]]
"""Lists and watches with one client for ever; yields after each list that succeeded."""


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

    def failed(error: Exception, pause: float) -> None:
        log.warning("Kubernetes API: %r; the last caps stay, next try within %.1f s", error, pause)

    await keep_connected(
        lambda client: _rounds(client, name, namespace, feed), connect=connect, failed=failed, rng=rng
    )


async def keep_connected(
    rounds: Rounds,
    *,
    connect: ClientFactory,
    failed: Callable[[Exception, float], None],
    rng: Random | None = None,
) -> None:
    """Go through rounds for ever; after any error with a new client, after a pause that grows.

    Args:
        rounds: what to do with a client.
        connect: makes a client, with the token as it is then.
        failed: is told of each error and of the longest pause after it, in seconds.
        rng: spreads the pauses.
    """
    spread = rng or Random()
    failures = 0
    while True:
        try:
            client = connect()
            try:
                async for _ in rounds(client):
                    failures = 0
            finally:
                await client.close()
        except Exception as error:
            pause = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 16))
            failures += 1
            failed(error, pause)
            await asyncio.sleep(pause * spread.uniform(0.5, 1.0))


async def follow(
    client: AsyncClient,
    resource: type[GenericNamespacedResource],
    namespace: str,
    version: str | None,
    tell: Callable[[str, dict[str, Any]], None],
    **selector: Any,
) -> None:
    """Tell of each change after a list, until the server ends the watch or has been silent for too long.

    Args:
        client: to watch with.
        resource: what to watch.
        namespace: where.
        version: `resourceVersion` of the list.
        tell: gets the kind and the object of each event.
        selector: `fields` or `labels`.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SILENCE_SECONDS):
            events = client.watch(
                resource,
                namespace=namespace,
                server_timeout=SERVER_TIMEOUT_SECONDS,
                resource_version=version,
                **selector,
            )
            async for kind, item in events:
                tell(kind, dict(item))


async def _rounds(client: AsyncClient, name: str, namespace: str, feed: PoolFeed) -> AsyncIterator[None]:
    """List and watch the object, again and again."""
    fields: dict[str, Any] = {"metadata.name": name}
    last_version: str | None = None

    def tell(kind: str, body: dict[str, Any]) -> None:
        nonlocal last_version
        last_version = _read_event(kind, body, feed)

    while True:
        found = client.list(RolloutPools, namespace=namespace, fields=fields)
        objects = [dict(item) async for item in found]
        last_version = _read_list(objects, last_version, feed)
        yield
        await follow(client, RolloutPools, namespace, found.resourceVersion, tell, fields=fields)


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
