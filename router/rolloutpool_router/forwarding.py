"""Passes requests on to the router that they belong to, by one hop: who gets a marked request serves it.

A router that does not answer, or takes no requests now, is passed over for the next in the session's order;
that router owns the session as soon as the status no longer lists the lost one. Nothing of an answer has been
passed on by then, and the lost connection has ended the request there, so the client gets one answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from rolloutpool_api.status import RouterShare
from rolloutpool_router.answers import break_off, refuse
from rolloutpool_router.bodies import BodyTooLong
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.ownership import session_key
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.gate import Gate
from rolloutpool_router.headers import FORWARDED, headers_for_router
from rolloutpool_router.intake import TOO_LARGE, Received
from rolloutpool_router.metrics import Metrics
from rolloutpool_router.telemetry import Leg, Watch
from rolloutpool_router.wire.client import Answer, ConnectionLost, Origin, Unreachable, Upstream, fetch
from rolloutpool_router.wire.heads import encode
from rolloutpool_router.wire.server import Exchange

log = logging.getLogger(__name__)

NOT_SERVED = "X-RolloutPool-Not-Served"
"""Response header: the router did nothing about the request, since it is not ready or shuts down."""
LOST = Refusal(
    Outcome.ROUTER_LOST,
    "the router that the session belongs to went away in the middle of the body: send it again",
)
CONNECT_SECONDS = 1.0
"""How long a connection to another router, which is near, may take: then the next one is tried."""
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
        self, exchange: Exchange, received: Received, watch: Watch, *, leaving: bool = False
    ) -> Outcome | None:
        """Have the router that a request belongs to answer it; None if it is to be served here.

        Args:
            exchange: not answered yet.
            received: what was read of it.
            watch: of the request.
            leaving: this router shuts down: any other router will do.
        """
        if self.is_forwarded(exchange) or not self.peers.others:
            return None
        key = received.owned_as()
        if key is None or (not leaving and self._is_busy(received)):
            return None
        for peer in self.peers.ahead(key, self._clock(), leaving=leaving):
            try:
                async with await self._send(exchange, received, watch, peer) as answer:
                    why = answer.head.headers.get(NOT_SERVED)
                    if why is None or not received.body.repeatable:
                        self.peers.answered(peer.name)
                        self._metrics.forwards.labels("passed_on").inc()
                        received.release()
                        return await self._relay(exchange, answer)
            except BodyTooLong:
                break_off(exchange, TOO_LARGE)
                return TOO_LARGE.outcome
            except (Unreachable, ConnectionLost) as error:
                why = str(error)
            self._passed_over(peer.name, why)
            if not received.body.repeatable:
                refuse(exchange, LOST)
                return LOST.outcome
        return None

    @staticmethod
    def is_forwarded(exchange: Exchange) -> bool:
        """Whether another router passed the request on."""
        return exchange.head.headers.get(FORWARDED) is not None

    async def finish(self, session: str) -> bool:
        """End a session that is not here: ask the routers that may have it, its owner first."""
        for peer in self.peers.ahead(session_key(session), self._clock(), leaving=True):
            answer = await self._ask(peer, "/finish_session", session, SMALL_TIMEOUT_SECONDS)
            if answer.get("finished"):
                return True
        return False

    async def fetch(self, session: str) -> str | None:
        """Take a session over from whoever has it: the engine that holds its KV; None if nobody had it."""
        asked = self.peers.with_sessions(self._clock())
        answers = await asyncio.gather(
            *(self._ask(router, "/admission/release", session, FETCH_TIMEOUT_SECONDS) for router in asked)
        )
        homes = (answer.get("engine") for answer in answers)
        return next((home for home in homes if isinstance(home, str) and home), None)

    async def _send(self, exchange: Exchange, received: Received, watch: Watch, peer: RouterShare) -> Answer:
        headers = headers_for_router(exchange.head.headers)
        headers.append((FORWARDED.encode(), self.peers.name.encode()))
        headers.append((b"X-Request-Id", encode(received.request_id)))
        if (traceparent := watch.sent(Leg.ROUTER, peer.name)) is not None:
            headers.append(traceparent)
        return await self._upstream.request(
            Origin.of(peer.url),
            exchange.head.method,
            exchange.head.target,
            headers,
            received.body.first,
            rest=received.body.rest(),
            length=received.body.length,
            connect_timeout=CONNECT_SECONDS,
        )

    async def _ask(self, router: RouterShare, path: str, session: str, timeout: float) -> dict[str, Any]:
        """Ask another router something small about a session; {} if it does not answer."""
        headers = [(FORWARDED.encode(), self.peers.name.encode()), (b"X-Session-ID", session.encode())]
        try:
            answer = await fetch(self._upstream, "POST", router.url + path, headers=headers, timeout=timeout)
            value = msgspec.json.decode(answer.body) if answer.status == 200 else {}
        except (Unreachable, ConnectionLost, msgspec.DecodeError) as error:
            self._passed_over(router.name, str(error))
            return {}
        return value if isinstance(value, dict) else {}

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

    async def _relay(self, exchange: Exchange, answer: Answer) -> Outcome:
        """Pass an answer on as it comes; one that breaks off is broken off for the client too."""
        try:
            await answer.relay(exchange, (), on_body=None)
        except ConnectionLost as error:
            log.warning("a forwarded answer broke off: %s", error)
            exchange.abort()
            return Outcome.ROUTER_LOST
        return Outcome.FORWARDED
