"""Asks the listed routers whether they are there while this one is not listed: the operator may be away.

A router that is replaced has another name, and may admit nothing until the operator lists it. Should the
operator be away as well, nobody would serve the pool; so after a while without any sign of a listed router,
this one goes on by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rolloutpool_router.core.peers import Peers
from rolloutpool_router.core.roster import GONE_SECONDS
from rolloutpool_router.feed import PoolFeed
from rolloutpool_router.wire.client import ConnectionLost, Unreachable, Upstream, fetch

PERIOD_SECONDS = 2.0
TIMEOUT_SECONDS = 2.0


async def watch_listed(
    feed: PoolFeed,
    peers: Peers,
    upstream: Upstream,
    clock: Callable[[], float],
    *,
    period_seconds: float = PERIOD_SECONDS,
    after_seconds: float = GONE_SECONDS,
) -> None:
    """Ask, for ever; tell the feed when nobody answers for `after_seconds`, and when somebody does again."""
    silent_since: float | None = None
    while True:
        if peers.listed or any(await asyncio.gather(*(_lives(upstream, peer.url) for peer in peers.others))):
            silent_since = None
        elif silent_since is None:
            silent_since = clock()
        feed.deserted(silent_since is not None and clock() - silent_since >= after_seconds)
        await asyncio.sleep(period_seconds)


async def _lives(upstream: Upstream, url: str) -> bool:
    """Whether a router's process answers, ready or not."""
    try:
        return (await fetch(upstream, "GET", f"{url}/health", timeout=TIMEOUT_SECONDS)).status == 200
    except (Unreachable, ConnectionLost):
        return False
