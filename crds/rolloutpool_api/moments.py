"""Times as the API writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """Unix seconds as RFC 3339 in UTC with whole seconds, e.g. 2026-01-31T12:00:00Z."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(seconds: float) -> str:
    """Unix seconds as Kubernetes' MicroTime (Leases)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def unix_seconds(text: str) -> float | None:
    """Unix seconds of an RFC 3339 text; None where it is none."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
