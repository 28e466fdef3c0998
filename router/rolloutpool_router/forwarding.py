"""Passes requests on to the router that they belong to, by one hop: who gets a marked request serves it.

A router that does not answer, or takes no requests now, is passed over for the next in the session's order;
that router owns the session as soon as the status no longer lists the lost one. Nothing of an answer has been
passed on by then, and the lost connection has ended the request there, so the client gets one answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aiohttp
from aiohttp import web

from rolloutpool_api.status import RouterShare
from rolloutpool_router.core.outcomes import Outcome
from rolloutpool_router.core.ownership import session_key
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.gate import Gate
from rolloutpool_router.intake import Received
from rolloutpool_router.metrics import Metrics
from rolloutpool_router.proxy import (
    FORWARDED,
    ROUTER_CONNECT_SECONDS,
    EngineLost,
    Unreachable,
    Upstream,
    chunks,
    forwarded_headers,
    request_headers,
)

log = logging.getLogger(__name__)

NOT_SERVED = "X-RolloutPool-Not-Served"
"""Response header: the router did nothing about the request, since it is not ready or shuts down."""
FETCH_TIMEOUT_SECONDS = 1.0
"""How long another router may take to give a session up, in seconds; its next turn waits for that."""
SMALL_TIMEOUT_SECONDS = 5.0
"""How long another router may take to end a session, in seconds."""


class Forwarding:
    """Finds the router that a request belongs to, and passes on request and answer."""

    def __init__(
        self, peers: Peers, *, gate: Gate, upstream: Upstream, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self.peers = peers
        self._gate = gate
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock

    async def pass_on(
        self, request: web.Request, received: Received, *, leaving: bool = False
    ) -> tuple[web.StreamResponse, Outcome] | None:
        """The answer of the router that a request belongs to; None if it is to be served here.

        Args:
            request: not answered yet.
            received: what was read of it.
            leaving: this router shuts down: any other router will do.
        """
        if FORWARDED in request.headers or not self.peers.others:
            return None
        key = received.owned_as()
        if key is None or (not leaving and self._is_busy(received)):
            return None
        headers = request_headers(
            request.headers, {FORWARDED: self.peers.name, "X-Request-Id": received.request_id}
        )
        for peer in self.peers.ahead(key, self._clock(), leaving=leaving):
            url = peer.url + request.path_qs
            try:
                async with self._upstream.post(
                    url, headers=headers, data=received.raw, connect=ROUTER_CONNECT_SECONDS
                ) as answer:
                    if NOT_SERVED not in answer.headers:
                        self.peers.answered(peer.name)
                        self._metrics.forwards.labels("passed_on").inc()
                        return await self._relay(request, answer)
                    why = answer.headers[NOT_SERVED]
            except (Unreachable, EngineLost) as error:
                why = str(error)
            self._passed_over(peer.name, why)
        return None

    async def finish(self, request: web.Request, session: str) -> bool:
        """End a session that is not here: ask the routers that may have it, its owner first."""
        if FORWARDED in request.headers:
            return False
        headers = {FORWARDED: self.peers.name, "X-Session-ID": session}
        for peer in self.peers.ahead(session_key(session), self._clock(), leaving=True):
            try:
                async with self._upstream.post(
                    f"{peer.url}/finish_session", headers=headers, data=b"", timeout=SMALL_TIMEOUT_SECONDS
                ) as answer:
                    if answer.ok and (await answer.json()).get("finished"):
                        return True
            except (Unreachable, EngineLost) as error:
                self._passed_over(peer.name, str(error))
        return False

    async def fetch(self, session: str) -> str | None:
        """Take a session over from whoever has it: the engine that holds its KV; None if nobody had it."""
        asked = self.peers.with_sessions(self._clock())
        homes = await asyncio.gather(*(self._release(router, session) for router in asked))
        return next((home for home in homes if home), None)

    async def _release(self, router: RouterShare, session: str) -> str | None:
        headers = {FORWARDED: self.peers.name, "X-Session-ID": session}
        try:
            async with self._upstream.post(
                f"{router.url}/admission/release", headers=headers, data=b"", timeout=FETCH_TIMEOUT_SECONDS
            ) as answer:
                home = (await answer.json()).get("engine") if answer.ok else None
                return home if isinstance(home, str) else None
        except (Unreachable, EngineLost, ValueError) as error:
            self._passed_over(router.name, str(error))
            return None

    def _is_busy(self, received: Received) -> bool:
        """Whether requests of the session are being served or wait here: they stay together."""
        session, controller = received.session, self._gate.controller
        if not isinstance(session, str):
            return False
        resident = controller.table.get(session)
        if resident is not None:
            return resident.in_flight > 0
        return any(state.queue.get(session) is not None for state in controller.classes.values())

    def _passed_over(self, router: str, why: str) -> None:
        self.peers.failed(router, self._clock())
        self._metrics.forwards.labels("passed_over").inc()
        log.warning("router %s is passed over for a while: %s", router, why)

    async def _relay(
        self, request: web.Request, upstream: aiohttp.ClientResponse
    ) -> tuple[web.StreamResponse, Outcome]:
        """Pass an answer on as it comes; one that breaks off is broken off for the client too."""
        response = web.StreamResponse(
            status=upstream.status, reason=upstream.reason, headers=forwarded_headers(upstream.headers)
        )
        try:
            await response.prepare(request)
            async for chunk in chunks(upstream):
                await response.write(chunk)
            await response.write_eof()
        except EngineLost as error:
            log.warning("a forwarded answer broke off: %s", error)
            if request.transport is not None:
                request.transport.abort()
            return response, Outcome.ROUTER_LOST
        except ConnectionResetError:
            return response, Outcome.CLIENT_GONE
        return response, Outcome.FORWARDED
