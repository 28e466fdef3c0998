"""Runs a load generator as a process and reads what it tells."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from router_bench.errors import BenchError
from router_bench.processes import pinning


def told(arguments: Sequence[str], *, cpus: str | None) -> Iterator[dict[str, Any]]:
    """Run a generator's command; its JSON lines as they come. Ends it when the caller stops reading.

    Raises:
        BenchError: it failed.
    """
    with subprocess.Popen(
        [*pinning(cpus), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
            errors = process.stderr.read()
            if process.wait():
                raise BenchError(f"a load generator failed: {errors.strip()[-1000:]}")
        finally:
            process.kill()


def result(arguments: Sequence[str], *, cpus: str | None) -> dict[str, Any]:
    """Run a generator's command to its end; the last line that it told."""
    *_, last = told(arguments, cpus=cpus)
    return last
