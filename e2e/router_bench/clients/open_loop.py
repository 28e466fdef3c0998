"""Requests at a constant rate, whatever the answers: latencies without coordinated omission.

Requests are due in batches, one a millisecond. Each is counted from when it was due, also where it had to
wait for a free connection; only up to 1.5 ms of the timer's own lateness are not counted, since timers
have a resolution of a millisecond.
"""

import asyncio
import json
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass

import uvloop

from router_bench.clients.connection import Connection, chat, connect, prompt
from router_bench.figures import percentile

BATCH_SECONDS = 0.001
TIMER_SECONDS = 0.0015
PROMPTS, SAMPLES = 256, 16
OK = 200


@dataclass(frozen=True)
class Settings:
    """What to send."""

    port: int
    rate: float
    """Requests per second."""
    seconds: float
    prompt_bytes: int
    rollout_class: str
    warm_seconds: float = 1.0
    """Requests of this time are sent before, and not counted."""
    connections: int = 64
    drain_seconds: float = 5.0
    """How long answers may take after the last request."""


class OpenLoop:
    """The generator."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        bodies = [prompt(serial, settings.prompt_bytes) for serial in range(PROMPTS)]
        self._requests = [chat(body, rollout_class=settings.rollout_class) for body in bodies]
        self._idle: list[Connection] = []
        self._late: deque[float] = deque()
        self._sent = 0
        self._counted_from = 0.0
        self._latencies: list[float] = []
        self._failed = 0
        self._unanswered = 0
        self._loop = asyncio.get_running_loop()

    async def run(self) -> dict[str, float]:
        """Send everything; latencies in milliseconds."""
        settings = self._settings
        connections = await connect(settings.port, settings.connections, self._done)
        self._idle = list(connections)
        start = time.monotonic()
        self._counted_from = start + settings.warm_seconds
        await self._send_all(start, settings.warm_seconds + settings.seconds)
        try:
            async with asyncio.timeout(settings.drain_seconds):
                while self._unanswered:  # noqa: ASYNC110 (answers come by callback)
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self._failed += self._unanswered
        for connection in connections:
            connection.close()
        found = {f"p{q}_ms": 1000 * percentile(self._latencies, q / 100) for q in (50, 90, 99)}
        worst = 1000 * max(self._latencies, default=float("nan"))
        return {"answered": len(self._latencies), "failed": self._failed, **found, "worst_ms": worst}

    async def _send_all(self, start: float, seconds: float) -> None:
        """Each batch when it is due, or as soon as possible after."""
        rate = self._settings.rate
        for batch in range(int(seconds / BATCH_SECONDS)):
            due = start + batch * BATCH_SECONDS
            wait = due - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            now = time.monotonic()
            began = now if now - due < TIMER_SECONDS else due
            while self._sent < rate * (batch + 1) * BATCH_SECONDS:
                self._send(began)

    def _send(self, began: float) -> None:
        self._sent += 1
        self._unanswered += 1
        if self._idle:
            self._send_on(self._idle.pop(), began)
        else:
            self._late.append(began)

    def _send_on(self, connection: Connection, began: float) -> None:
        connection.began = began
        connection.send(self._requests[self._sent // SAMPLES % PROMPTS])

    def _done(self, connection: Connection, status: int) -> None:
        self._unanswered -= 1
        if status != OK:
            self._failed += 1
        elif connection.began >= self._counted_from:
            self._latencies.append(time.monotonic() - connection.began)
        if status == 0:
            return
        if self._late:
            self._send_on(connection, self._late.popleft())
        else:
            self._idle.append(connection)


async def _main() -> None:
    found = await OpenLoop(Settings(**json.loads(sys.argv[1]))).run()
    sys.stdout.write(json.dumps(found) + "\n")


def arguments(settings: Settings) -> list[str]:
    """How to run this module as a process."""
    return [sys.executable, "-m", __name__, json.dumps(asdict(settings))]


if __name__ == "__main__":
    uvloop.run(_main())
