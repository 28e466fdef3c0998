"""When a failed turn is sent again, and when its session is given up. Pure."""

from __future__ import annotations

RETRY_DELAYS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 15.0)
"""Waits before the second, third, ... attempt: ten attempts over a minute, as trainers commonly do."""
MOST_RETRY_AFTER_SECONDS = 60.0
"""A longer Retry-After is cut to this."""


def retryable(status: int) -> bool:
    """Whether a status is worth another attempt: overload and server faults are, a bad request is not."""
    return status in (408, 409, 425, 429) or status >= 500


def retry_delay(failures: int, *, retry_after: float | None = None) -> float | None:
    """Seconds until the next attempt, or None when the turn is given up.

    Args:
        failures: attempts of this turn that failed so far, at least 1.
        retry_after: what the server asked for, in seconds; the longer wait counts.
    """
    if failures > len(RETRY_DELAYS_SECONDS):
        return None
    asked = min(retry_after or 0.0, MOST_RETRY_AFTER_SECONDS)
    return max(RETRY_DELAYS_SECONDS[failures - 1], asked)
