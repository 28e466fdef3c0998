"""The routers that are compared, and how each is started."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.ports import free_ports
from router_bench import pool
from router_bench.builds import Build
from router_bench.engines import CHAT, Engines
from router_bench.environment import python_of
from router_bench.processes import HOST, Process, running, wait_for

OURS, SGLANG, VLLM, BARE = "rolloutpool", "sglang-router", "vllm-router", "aiohttp proxy"
DIRECT = "no router"
"""The load generator straight to the engines: what both could do."""
ROUTERS = (OURS, SGLANG, VLLM)
ALL = (*ROUTERS, BARE)


@dataclass(frozen=True)
class Started:
    """A router that serves."""

    name: str
    port: int
    process: Process


@dataclass(frozen=True)
class _Setup:
    port: int
    metrics_port: int
    engines: Sequence[str]
    folder: Path
    idle_seconds: int
    cap: int
    build: Build


def _ours(setup: _Setup) -> list[str]:
    file = setup.folder / f"pool-{setup.port}.json"
    engines = {f"engine-{index}": url for index, url in enumerate(setup.engines)}
    pool.write(file, engines, idle_seconds=setup.idle_seconds, cap=setup.cap)
    options = ["--name", "bench", "--grace-seconds", "0", "--log-level", "warning", "--pool-file", str(file)]
    return [setup.build.python, "-m", "rolloutpool_router.main", *_listen(setup), *options]


def _sglang(setup: _Setup) -> list[str]:
    return [str(python_of(SGLANG)), "-m", "sglang_router.launch_router", *_listen(setup), *_peer(setup)]


def _vllm(setup: _Setup) -> list[str]:
    return [str(python_of(VLLM)), "-m", "vllm_router.launch_router", *_listen(setup), *_peer(setup)]


def _peer(setup: _Setup) -> list[str]:
    """Both peers take the same options. Their policy is the default one, which knows prefixes."""
    quiet = ["--log-level", "error", "--prometheus-port", str(setup.metrics_port)]
    return ["--worker-urls", *setup.engines, "--worker-startup-check-interval", "1", *quiet]


def _bare(setup: _Setup) -> list[str]:
    return [sys.executable, "-m", "router_bench.bare_proxy", str(setup.port), *setup.engines]


def _listen(setup: _Setup) -> list[str]:
    return ["--host", HOST, "--port", str(setup.port)]


_COMMANDS: dict[str, Callable[[_Setup], list[str]]] = {OURS: _ours, SGLANG: _sglang, VLLM: _vllm, BARE: _bare}


@contextlib.contextmanager
def started(
    name: str,
    engines: Engines,
    *,
    folder: Path,
    cpus: str | None,
    build: Build,
    idle_seconds: int = pool.IDLE_SECONDS,
    cap: int = pool.AMPLE_CAP,
) -> Iterator[Started]:
    """Run a router within the block, in front of these engines; it has answered a chat when it is entered.

    `build`, `idle_seconds` and `cap` are of our router; the latter two of its classes (`pool.write`).
    """
    port, metrics_port = free_ports(2)
    setup = _Setup(port, metrics_port, engines.urls, folder, idle_seconds, cap, build)
    env = build.env if name == OURS else None
    with running(
        name.replace(" ", "-"), _COMMANDS[name](setup), folder=folder, cpus=cpus, env=env
    ) as process:
        wait_for(process, lambda: _chats(port))
        yield Started(name, port, process)


def _chats(port: int) -> bool:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    headers = {"Content-Type": "application/json", "X-Rollout-Class": pool.SINGLE}
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("POST", CHAT, json.dumps(body), headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
