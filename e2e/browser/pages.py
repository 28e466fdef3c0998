"""The debug page fed with states of a test's making."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from random import Random
from threading import Thread
from typing import Any

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.debug.handlers import PATH, content_security_policy
from rolloutpool_router.debug.state import Shown, debug_state
from rolloutpool_router.decisions import Decisions
from rolloutpool_router.state_metrics import DataPlane
from rolloutpool_router.testing import pool_object


def made_state(engines: int) -> dict[str, Any]:
    """The state of a pool with so many engines that nobody uses."""
    controller = AdmissionController(Random(1))
    urls = {f"engine-{number}": f"http://10.0.0.{number}:8000" for number in range(engines)}
    controller.apply(parse_pool(pool_object(urls, caps={"rlvr": 4, "rlhf": 3, "agentic": 2})), {})
    shown = Shown(
        router="router-0",
        controller=controller,
        peers=Peers("router-0"),
        plane=DataPlane(),
        decisions=Decisions(),
        status_age=lambda: 0.0,
        ignored=lambda: 0,
        draining=lambda: False,
    )
    return debug_state(shown, 0.0)


@dataclass
class ServedPage:
    """The page, and the state that it gets."""

    state: dict[str, Any]
    broken: bool = False
    """The state is answered with 500."""
    asked: int = 0
    """How often the state was asked for."""
    others: list[str] = field(default_factory=list)
    """Other paths that were asked for."""
    url: str = ""

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body."""
        if path == PATH:
            page = files("rolloutpool_router.debug").joinpath("page.html").read_bytes()
            return 200, "text/html; charset=utf-8", page
        if path == f"{PATH}/state":
            self.asked += 1
            return (500 if self.broken else 200), "application/json", json.dumps(self.state).encode()
        self.others.append(path)
        return 404, "text/plain", b""

    @contextmanager
    def running(self) -> Iterator[ServedPage]:
        """Serve within the block, on a free loopback port."""
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = page.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if kind.startswith("text/html"):
                    self.send_header("Content-Security-Policy", content_security_policy(body.decode()))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}{PATH}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
