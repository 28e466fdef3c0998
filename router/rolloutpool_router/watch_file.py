"""Reads the object from a JSON file that is replaced whenever it changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from rolloutpool_router.feed import PoolFeed

PERIOD_SECONDS = 0.2


async def watch_file(path: Path, feed: PoolFeed, *, period_seconds: float = PERIOD_SECONDS) -> None:
    """Read the file now and, for ever, after each change (seen by inode, size and time of modification)."""
    last: tuple[int, int, int] | None = None
    while True:
        stamp = _stamp(path)
        if stamp is None and last is not None:
            feed.gone()
        elif stamp is not None and stamp != last:
            _read(path, feed)
        elif stamp is not None:
            feed.seen()
        last = stamp
        await asyncio.sleep(period_seconds)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _read(path: Path, feed: PoolFeed) -> None:
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        feed.malformed(f"{path}: {error}")
        return
    if isinstance(body, dict):
        feed.read(body)
    else:
        feed.malformed(f"{path}: not a JSON object")
