"""How much memory this process may have: the limit of its container."""

from __future__ import annotations

import contextlib
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_FILES = ("memory.max", "memory/memory.limit_in_bytes")
"""Where version 2 and version 1 of Linux's control groups have it, as a container sees them."""
_NO_LIMIT = 2**60
"""Version 1 says so by a number near 2**63."""


def memory_limit(cgroups: Path = CGROUPS) -> int | None:
    """Bytes of memory that this process's container may have; None where there is no limit to be seen."""
    for name in _FILES:
        with contextlib.suppress(OSError, ValueError):  # no such file; "max"
            limit = int((cgroups / name).read_text())
            return limit if limit < _NO_LIMIT else None
    return None
