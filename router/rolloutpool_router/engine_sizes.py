"""Asks engines how many KV blocks they have while no status says: a pool without operator has caps too."""

from __future__ import annotations

import asyncio
import re

from rolloutpool_router.feed import PoolFeed
from rolloutpool_router.wire.client import ConnectionLost, Unreachable, Upstream, fetch

PERIOD_SECONDS = 2.0
TIMEOUT_SECONDS = 5.0
_NUM_BLOCKS = re.compile(r'^vllm:cache_config_info\{.*num_gpu_blocks="(\d+)"', re.MULTILINE)


async def watch_sizes(feed: PoolFeed, upstream: Upstream) -> None:
    """Ask, for ever, every engine whose size is unknown."""
    while True:
        for name, url in feed.unsized_engines().items():
            blocks = await read_size(upstream, url)
            if blocks > 0:
                feed.engine_sizes({name: blocks})
        await asyncio.sleep(PERIOD_SECONDS)


async def read_size(upstream: Upstream, url: str) -> int:
    """KV blocks of an engine (`vllm:cache_config_info`); 0 if it does not say now."""
    try:
        answer = await fetch(upstream, "GET", f"{url}/metrics", timeout=TIMEOUT_SECONDS)
    except (Unreachable, ConnectionLost):
        return 0
    found = _NUM_BLOCKS.search(answer.body.decode(errors="replace"))
    return int(found.group(1)) if found is not None else 0
