"""The router's command line: `python3 -m rolloutpool_router.main`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import uvloop

from rolloutpool_api.labels import ROUTER_PORT, WEIGHTS_PORT
from rolloutpool_router import logs
from rolloutpool_router.app import Router, build_router
from rolloutpool_router.memory import memory_limit
from rolloutpool_router.server import WeightsPort, Work, serving
from rolloutpool_router.tracing import tracer_from_environment
from rolloutpool_router.watch_endpoints import watch_endpoints
from rolloutpool_router.watch_file import watch_file
from rolloutpool_router.watch_kubernetes import watch_kubernetes
from rolloutpool_router.wire.server import Limits
from rolloutpool_router.wire.sockets import allow_open_files

GRACE_SECONDS = 30.0
RESERVED_FILES = 200
"""Files for what is no request: watches, probes, the router's own pages."""
COLLECT_AFTER = (10_000, 2, 1_000)
"""Thresholds of Python's garbage collector. Requests leave next to nothing in cycles, and with the usual ones
it goes through all sessions every so often: with 100,000 that holds every request up for 0.1 to 0.5 s. What
survives moves on soon, so that the middle generation stays small too."""


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    args = _parser().parse_args(argv)
    logs.configure(args.log_level)
    # lightkube's client would log each watch, once a minute.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(args))


async def _run(args: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    tracer = tracer_from_environment(args.name)
    router = build_router(args.name, tracer=tracer, memory_bytes=memory_limit())
    weights = WeightsPort(args.weights_token_file, args.weights_port) if args.weights_token_file else None
    async with serving(
        router,
        *_watches(args, router),
        host=args.host,
        port=args.port,
        grace_seconds=args.grace_seconds,
        weights=weights,
        limits=_limits(),
    ) as port:
        gc.freeze()  # what is there now stays for good: it is not looked through again
        gc.set_threshold(*COLLECT_AFTER)
        logging.getLogger("rolloutpool_router").info("router %s listens on %s:%d", args.name, args.host, port)
        await stop.wait()
    if tracer is not None:
        await tracer.close()


def _limits() -> Limits:
    """As many connections as there are files for, two for each request."""
    files = allow_open_files() - RESERVED_FILES
    return Limits(max_connections=max(1, min(Limits().max_connections, files // 2)))


def _watches(args: argparse.Namespace, router: Router) -> list[Work]:
    if args.pool_file is not None:
        return [partial(watch_file, args.pool_file, router.feed)]
    fleet = router.gate.controller.fleet
    return [
        partial(watch_kubernetes, args.pool, args.namespace, router.feed),
        partial(watch_endpoints, args.pool, args.namespace, fleet),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rolloutpool-router", description="Router of one RolloutPool.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--pool", help="name of the RolloutPool to watch through the Kubernetes API")
    source.add_argument("--pool-file", type=Path, help="JSON file with the whole RolloutPool object")
    parser.add_argument("--namespace", default="default", help="namespace of --pool")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=ROUTER_PORT, help="port to listen on; 0: any free one")
    parser.add_argument("--name", default=socket.gethostname(), help="name in the admission snapshot")
    parser.add_argument(
        "--grace-seconds", type=float, default=GRACE_SECONDS, help="how long requests may go on after SIGTERM"
    )
    parser.add_argument(
        "--weights-token-file",
        type=Path,
        help="file with the token of weight synchronisation; without it there is no such listener",
    )
    parser.add_argument(
        "--weights-port",
        type=int,
        default=WEIGHTS_PORT,
        help="port of weight synchronisation; 0: any free one",
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least level logged",
    )
    return parser


if __name__ == "__main__":
    main()
