"""Passive health of an engine: out after a connection error, for a time that grows, until one succeeds."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_BACKOFF_SECONDS = 0.5
"""How long an engine is out after its first connection error, in seconds; doubles with each further one."""
MAX_BACKOFF_SECONDS = 10.0
"""Longest time out, in seconds: how late a returned engine may be noticed."""


@dataclass(frozen=True)
class EngineHealth:
    """Connection errors in a row, and until when the engine is out."""

    failures: int = 0
    out_until: float = 0.0
    """Seconds of the caller's clock."""

    def failed(self, now: float) -> EngineHealth:
        """After a connection error. Errors of requests that started before the last one count once."""
        if now < self.out_until:
            return self
        backoff = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(self.failures, 16))
        return EngineHealth(self.failures + 1, now + backoff)

    def healthy(self, now: float) -> bool:
        """Whether the engine may be tried."""
        return now >= self.out_until


HEALTHY = EngineHealth()
