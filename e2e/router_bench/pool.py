"""The object that our router reads in the benchmarks: two classes under MISA-T, with caps in its status."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rolloutpool_router.testing import pool_object, write_pool

IDLE_SECONDS = 2
"""When a session of several turns has ended that nobody finished, where sessions come and go."""
OPEN_SECONDS = 3600
"""The same where sessions are held open."""
AMPLE_CAP = 1_000_000
AMPLE_BLOCKS = 1_000_000_000
"""Caps and pots that all of the load fits into: they are computed with, and stop nobody."""

SINGLE, TURNS = "rlvr", "agentic"
"""Classes: of requests without a session id, and of sessions of several turns."""


def write(path: Path, engines: Mapping[str, str], *, idle_seconds: int, cap: int = AMPLE_CAP) -> None:
    """Write the object.

    Args:
        path: the file that the router watches.
        engines: URL by name.
        idle_seconds: when a session of several turns has ended that nobody finished.
        cap: sessions of each class that each engine may hold.
    """
    workloads = [
        {"name": SINGLE, "share": 0.5},
        {
            "name": TURNS,
            "share": 0.5,
            "priors": {"turns": 5, "toolGapSeconds": 1},
            "sessionIdleSeconds": idle_seconds,
        },
    ]
    # Each measurement sends one class only: with Hard enforcement it would have to wait for the other.
    pool = pool_object(engines, caps={SINGLE: cap, TURNS: cap}, workloads=workloads, blocks=AMPLE_BLOCKS)
    pool["spec"]["mixture"] = {"enforcement": "Soft"}
    write_pool(path, pool)
