"""Readiness: who of the known processes answers, asked again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import httpx

STARTING_PERIOD_SECONDS = 0.3
"""Between probes while something is not ready."""
PERIOD_SECONDS = 2.0
"""Between probes while all is ready."""
TIMEOUT_SECONDS = 2.0
"""Longest wait for an answer."""
FAILURES = 3
"""Failed probes in a row after which what was ready is not, and what never was is taken to be away."""


class Prober:
    """Keeps track of who is ready."""

    def __init__(self, targets: Callable[[], Mapping[str, str]], *, on_change: Callable[[], None]) -> None:
        """Probe what `targets` gives.

        Args:
            targets: URL by name of everything that runs now.
            on_change: called when someone becomes ready or stops being so.
        """
        self._targets = targets
        self._on_change = on_change
        self._failures: dict[str, int] = {}
        self._ready: set[str] = set()
        self._ended: set[str] = set()

    def ready(self, name: str) -> bool:
        """Whether `name` answered lately."""
        return name in self._ready

    def silent(self, name: str) -> bool:
        """Whether `name` was asked a few times and never answered."""
        return self._failures.get(name, 0) >= FAILURES

    def forget(self, name: str) -> None:
        """`name` ended: it is not ready until it answers again."""
        self._ready.discard(name)
        self._ended.add(name)

    async def run(self) -> None:
        """Probe for ever."""
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            while True:
                targets = dict(self._targets())
                self._ended.clear()
                answers = await asyncio.gather(*(_answers(client, url) for url in targets.values()))
                current = self._targets()
                self._learn(
                    {
                        name: ok and name not in self._ended
                        for name, ok in zip(targets, answers, strict=True)
                        if name in current
                    }
                )
                waiting = any(name not in self._ready for name in current)
                await asyncio.sleep(STARTING_PERIOD_SECONDS if waiting else PERIOD_SECONDS)

    def _learn(self, answers: Mapping[str, bool]) -> None:
        before = set(self._ready)
        self._failures = {name: 0 if ok else self._failures.get(name, 0) + 1 for name, ok in answers.items()}
        still = {name for name in before & set(answers) - self._ended if self._failures[name] < FAILURES}
        self._ready = still | {name for name, ok in answers.items() if ok}
        if self._ready != before:
            self._on_change()


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
