"""The router as a process in front of given engines, with a pool whose classes fit the tiny model."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rolloutpool_router.testing import pool_object, write_pool
from vllm_serving.engines import BLOCK_SIZE, Engine
from vllm_serving.model import NAME
from vllm_serving.processes import Process

START_SECONDS = 60.0
AGENT = {"X-Rollout-Class": "agentic"}
SAMPLES = {"X-Rollout-Class": "rlvr"}
_LENGTHS = {"promptTokens": {"p50": 200, "p95": 600}, "outputTokens": {"p50": 16, "p95": 64}}
WORKLOADS: Sequence[Mapping[str, Any]] = (
    {"name": "rlvr", "share": 0.5, "priors": {**_LENGTHS, "samplesPerPrompt": 8}},
    {
        "name": "agentic",
        "share": 0.5,
        "priors": {**_LENGTHS, "turns": 6, "turnTokens": 60, "toolGapSeconds": 0.2},
        "match": {"sessionPrefix": "agent-"},
    },
)


@dataclass(frozen=True)
class Router:
    """A router that serves."""

    url: str
    weights_url: str
    """Of its listener of weight synchronisation; empty where it has none."""


@contextmanager
def running(
    engines: Sequence[Engine],
    folder: Path,
    *,
    roles: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    engine: Mapping[str, Any] | None = None,
) -> Iterator[Router]:
    """Run a router over the engines within the block.

    Args:
        engines: that serve.
        folder: for its pool file and log.
        roles: of engines by name; those left out are aggregated.
        options: more of its command line.
        engine: more fields of the pool's spec.engine.
    """
    path = folder / "pool.json"
    write_pool(path, pool_of(engines, roles=roles, engine=engine))
    process = Process(
        [
            *(
                sys.executable,
                "-m",
                "rolloutpool_router.main",
                "--pool-file",
                str(path),
                "--name",
                "router-0",
            ),
            *("--host", "127.0.0.1", "--port", "0", "--grace-seconds", "1", *options),
        ],
        os.environ,
        folder / "router.log",
    )
    try:
        process.wait_for(lambda: _url(process, "listens on"), seconds=START_SECONDS)
        router = Router(_url(process, "listens on"), _url(process, "weights are synchronised at"))
        process.wait_for(lambda: _ready(router), seconds=START_SECONDS)
        yield router
    finally:
        process.stop()


def pool_of(
    engines: Sequence[Engine],
    *,
    roles: Mapping[str, str] | None = None,
    engine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A RolloutPool object with these engines, its classes fit for the tiny model."""
    pool = pool_object({each.name: each.url for each in engines}, roles=roles, workloads=WORKLOADS)
    pool["spec"].update({"model": {"name": NAME}, "engine": {"blockSize": BLOCK_SIZE, **(engine or {})}})
    for endpoint, each in zip(pool["status"]["endpoints"]["admin"], engines, strict=True):
        endpoint["kvEventsPort"] = each.settings.events_port
        endpoint["kvReplayPort"] = each.settings.replay_port
    return pool


def _url(process: Process, what: str) -> str:
    """Where the router says that it does this; empty before it does."""
    found = re.search(rf"{what} (127\.0\.0\.1:\d+)", process.log.read_text())
    return f"http://{found[1]}" if found else ""


def _ready(router: Router) -> bool:
    return httpx.get(f"{router.url}/readyz", timeout=10).status_code == 200
