"""/healthz and /metrics of the operator."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest

from rolloutpool_operator.core.liveness import WatchAudit
from rolloutpool_operator.metrics import Metrics

logger = logging.getLogger(__name__)


def make_app(audit: WatchAudit, metrics: Metrics, *, monotonic: Callable[[], float]) -> web.Application:
    """The application: /healthz is 503 while a watch is overdue, 200 else; /metrics is for Prometheus."""

    async def healthz(request: web.Request) -> web.Response:
        problem = audit.verdict(monotonic())
        metrics.alive.set(0 if problem else 1)
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def exposition(request: web.Request) -> web.Response:
        metrics.alive.set(0 if audit.verdict(monotonic()) else 1)
        content = generate_latest(metrics.registry)
        return web.Response(body=content, content_type="text/plain", charset="utf-8")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/metrics", exposition)])
    return app


async def start_server(app: web.Application, *, host: str, port: int) -> web.AppRunner:
    """Serve the application; port 0 takes a free one, which the log names. The caller cleans the runner up.

    Raises:
        OSError: where the address is taken.
    """
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    logger.info("serving /healthz and /metrics on http://%s:%d", *runner.addresses[0][:2])
    return runner
