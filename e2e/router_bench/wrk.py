"""Runs wrk: as many requests as a router takes on a number of connections."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from router_bench.environment import program
from router_bench.errors import BenchError
from router_bench.processes import HOST, pinning

CONNECTIONS = 32
_SCRIPT = Path(__file__).with_name("load.lua")
_RESULT = "result "


@dataclass(frozen=True)
class Load:
    """What wrk sends (`load.lua`)."""

    mode: str = "single"
    """single, sessions or open."""
    prompt_bytes: int = 200
    sessions: int = 64
    """How many at a time."""
    name: str = "s"
    """What session ids begin with; must be new for each run of mode sessions."""


@dataclass(frozen=True)
class Outcome:
    """What a run of wrk saw."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds


def run(
    port: int, load: Load, *, seconds: float, cpus: str | None, connections: int = CONNECTIONS
) -> Outcome:
    """Load a port for whole seconds.

    Raises:
        BenchError: wrk failed, or an answer was not 2xx or broke off.
    """
    options = [
        "-t1",
        f"-c{connections}",
        f"-d{max(1, round(seconds))}s",
        "--timeout",
        "30s",
        "-s",
        str(_SCRIPT),
    ]
    arguments = [load.mode, str(load.prompt_bytes), str(load.sessions), load.name]
    argv = [*pinning(cpus), program("wrk"), *options, f"http://{HOST}:{port}", "--", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 60, check=False)
    return parse(done.stdout, done.stderr)


def parse(output: str, errors: str = "") -> Outcome:
    """Read what `load.lua` writes at its end.

    Raises:
        BenchError: it is not there, or tells of answers that were not 2xx.
    """
    lines = [line for line in output.splitlines() if line.startswith(_RESULT)]
    if not lines:
        raise BenchError(f"wrk failed: {(errors or output).strip()[-1000:]}")
    found = json.loads(lines[-1].removeprefix(_RESULT))
    if found["refused"] or found["broken"]:
        raise BenchError(
            f"of {found['requests']} requests {found['refused']} were not answered 2xx and"
            f" {found['broken']} broke off: see the router's log"
        )
    return Outcome(
        found["requests"], found["microseconds"] / 1e6, found["p50_us"] / 1e3, found["p99_us"] / 1e3
    )
