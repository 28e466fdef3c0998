"""Opens streams and counts what comes, and how late."""

import asyncio
import json
import re
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import uvloop

from router_bench.clients.connection import chat, prompt
from router_bench.figures import percentile
from router_bench.processes import HOST

_MARK = re.compile(rb'"n":(\d+),"t":(\d+)\}\n\n')
_DONE = b"data: [DONE]"
_LONGEST_MARK = 40
OPEN_AT_ONCE = 50
OK = b"HTTP/1.1 200"


@dataclass(frozen=True)
class Settings:
    """What to open, and what to count."""

    port: int
    streams: int
    events: int
    """Events that each stream has."""
    rollout_class: str
    window_seconds: float = 0.0
    """Count for this long once all streams are open, and break off then; 0: until all have ended."""
    open_per_second: float = 1000.0
    most_seconds: float = 60.0
    """How long all streams may take to open, and to end."""


class Counts:
    """What all streams saw together."""

    def __init__(self) -> None:
        self.counting = False
        self.events = 0
        self.late_us: list[int] = []
        self.opened = self.ended = self.refused = self.broken = self.disordered = 0


class Stream(asyncio.Protocol):
    """One stream on a connection of its own."""

    def __init__(self, counts: Counts, request: bytes) -> None:
        self._counts = counts
        self._request = request
        self._tail = b""
        self._next = 0
        self._opened = self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count events; a mark may come in two pieces."""
        now = time.monotonic_ns() // 1000
        counts = self._counts
        data = self._tail + data
        if not self._opened:
            self._open(data)
        end = 0
        for mark in _MARK.finditer(data):
            end = mark.end()
            if int(mark[1]) != self._next:
                counts.disordered += 1
            self._next = int(mark[1]) + 1
            if counts.counting:
                counts.events += 1
                counts.late_us.append(now - int(mark[2]))
        self._tail = data[max(end, len(data) - _LONGEST_MARK) :]
        if _DONE in data[end:] and not self._ended:
            self._ended = True
            counts.ended += 1

    def _open(self, data: bytes) -> None:
        self._opened = True
        if data.startswith(OK):
            self._counts.opened += 1
        else:
            self._counts.refused += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a stream that ended before its end."""
        if not self._ended:
            self._counts.broken += 1

    @property
    def next_event(self) -> int:
        """Number of the event that should come next, and of those that came."""
        return self._next

    def close(self) -> None:
        """Break off."""
        self._transport.abort()


async def run(settings: Settings) -> dict[str, Any]:
    """Open, count, close."""
    counts = Counts()
    streams = await _open_all(settings, counts)
    try:
        async with asyncio.timeout(settings.most_seconds):
            while counts.opened + counts.refused < settings.streams:  # noqa: ASYNC110 (counted in callbacks)
                await asyncio.sleep(0.05)
            if not settings.window_seconds:
                while counts.ended + counts.broken + counts.refused < settings.streams:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    except TimeoutError:
        pass
    seconds = await _count_for(settings.window_seconds, counts) if settings.window_seconds else 0.0
    found = {
        "opened": counts.opened,
        "ended": counts.ended,
        "refused": counts.refused,
        "broken": counts.broken,
        "disordered": counts.disordered,
        "lost_events": sum(max(0, settings.events - stream.next_event) for stream in streams),
        "events": counts.events,
        "all_events": sum(stream.next_event for stream in streams),
        "seconds": seconds,
        "late_p50_ms": percentile(counts.late_us, 0.5) / 1000,
        "late_p99_ms": percentile(counts.late_us, 0.99) / 1000,
    }
    for stream in streams:
        stream.close()
    return found


async def _open_all(settings: Settings, counts: Counts) -> list[Stream]:
    loop = asyncio.get_running_loop()
    start = loop.time()
    streams = []
    for serial in range(settings.streams):
        body = prompt(serial, 200, stream=True, tokens=settings.events)
        request = chat(body, rollout_class=settings.rollout_class)
        try:
            _, stream = await loop.create_connection(partial(Stream, counts, request), HOST, settings.port)
            streams.append(stream)
        except OSError:
            counts.refused += 1
        due = start + serial / settings.open_per_second
        if serial % OPEN_AT_ONCE == 0 and due > loop.time():
            await asyncio.sleep(due - loop.time())
    return streams


async def _count_for(seconds: float, counts: Counts) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    counts.counting = True
    await asyncio.sleep(seconds)
    counts.counting = False
    return loop.time() - began


async def _main() -> None:
    found = await run(Settings(**json.loads(sys.argv[1])))
    sys.stdout.write(json.dumps(found) + "\n")


def arguments(settings: Settings) -> list[str]:
    """How to run this module as a process."""
    return [sys.executable, "-m", __name__, json.dumps(asdict(settings))]


if __name__ == "__main__":
    uvloop.run(_main())
