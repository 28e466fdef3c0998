"""The router's command line: `python3 -m rolloutpool_router.main`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rolloutpool_api.labels import ROUTER_PORT
from rolloutpool_router.app import Router, build_router
from rolloutpool_router.server import Work, serving
from rolloutpool_router.watch_file import watch_file
from rolloutpool_router.watch_kubernetes import watch_kubernetes

GRACE_SECONDS = 30.0


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    args = _parser().parse_args(argv)
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # lightkube's client would log each watch, once a minute.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    router = build_router(args.name)
    watch = _watch(args, router)
    async with serving(
        router, watch, host=args.host, port=args.port, grace_seconds=args.grace_seconds
    ) as port:
        logging.getLogger("rolloutpool_router").info("router %s listens on %s:%d", args.name, args.host, port)
        await stop.wait()


def _watch(args: argparse.Namespace, router: Router) -> Work:
    if args.pool_file is not None:
        return partial(watch_file, args.pool_file, router.feed)
    return partial(watch_kubernetes, args.pool, args.namespace, router.feed)


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
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least level logged",
    )
    return parser


if __name__ == "__main__":
    main()
