"""A running router's parts, and what becomes of each request that reaches it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from rolloutpool_router import intake
from rolloutpool_router.answers import answer_json, break_off, refuse
from rolloutpool_router.anywhere import Anywhere
from rolloutpool_router.bodies import Budget, Fields, split
from rolloutpool_router.core import identity
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import FAILED, NOT_READY, SHUTTING_DOWN, Outcome, Refusal
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.feed import PoolFeed
from rolloutpool_router.forwarding import NOT_SERVED, Forwarding
from rolloutpool_router.gate import Clock, Gate
from rolloutpool_router.generation import Generations
from rolloutpool_router.kv_events import KvCollector, KvEvents
from rolloutpool_router.metrics import Metrics
from rolloutpool_router.paths import Kind, Target, read_target
from rolloutpool_router.state_metrics import StateCollector
from rolloutpool_router.telemetry import Telemetry, Watch
from rolloutpool_router.weights import PauseGate, WeightSync
from rolloutpool_router.wire.client import ConnectionLost, Origin, Unreachable, Upstream
from rolloutpool_router.wire.heads import OF_THE_REQUEST, end_to_end
from rolloutpool_router.wire.server import Exchange

if TYPE_CHECKING:
    from rolloutpool_router.spans import Tracer

log = logging.getLogger(__name__)

WRONG_METHOD = Refusal(Outcome.WRONG_METHOD, "this path takes POST with a JSON object")
FINISH_BODY_BYTES = 64 * 1024
"""Longest body of /finish_session that is read."""


@dataclass
class Router:
    """The parts of a running router."""

    name: str
    gate: Gate
    feed: PoolFeed
    pause: PauseGate
    upstream: Upstream
    metrics: Metrics
    telemetry: Telemetry
    generations: Generations
    anywhere: Anywhere
    forwarding: Forwarding
    kv_events: KvEvents
    clock: Clock
    budget: Budget
    """What is held of requests' bodies."""
    admin: Origin | None = None
    """Where the router's own pages are served, once they are."""
    weights: WeightSync | None = None
    """Weight synchronisation, where it is on."""
    leaving: bool = False
    """True: not ready any more, so that no proxy sends new requests; those that come are served."""
    draining: bool = False
    """True: no new request is taken."""
    open_requests: int = 0
    """Requests for engines that were taken and have not ended, waiting ones too."""
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when draining and the last open request has ended."""

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request."""
        head = exchange.head
        target = read_target(head.method, head.path, head.query, self._prefixes())
        try:
            if target.kind is Kind.GENERATE:
                await self._generate(exchange, target)
            elif target.kind is Kind.FINISH:
                await self._finish(exchange, target)
            elif target.kind is Kind.ANY_ENGINE:
                await self._anywhere(exchange, target)
            elif target.kind is Kind.WRONG_METHOD:
                refuse(exchange, WRONG_METHOD, {"Allow": "POST"})
            else:
                await self._to_admin(exchange)
        except Exception:
            log.exception("%s %s failed", head.method, head.path)
            break_off(exchange, FAILED)

    def settle(self) -> None:
        """Say so when draining is done."""
        if self.draining and self.open_requests == 0:
            self.quiet.set()

    def turn_away(self) -> None:
        """Answer all who wait: another router, or a later try, must serve them."""
        self.pause.shut()
        self.gate.shut(SHUTTING_DOWN)

    def _prefixes(self) -> Mapping[str, str]:
        view = self.gate.controller.view
        return view.path_prefixes if view is not None else {}

    async def _generate(self, exchange: Exchange, target: Target) -> None:
        head = exchange.head
        path = target.path.partition("?")[0]  # a query may hold a secret
        watch = self.telemetry.begin(head.method, path, head.headers.lower)
        self.open_requests += 1
        received: intake.Received | Refusal | None = None
        try:
            view = self.gate.controller.view
            if self.draining and not self._may_pass_on(exchange):
                received = SHUTTING_DOWN
            elif view is None:
                received = NOT_READY
            else:
                received = await intake.receive(exchange, target, self.budget, view)
            if isinstance(received, Refusal):
                self._refuse(exchange, received, watch)
            else:
                await self._answer(exchange, received, watch)
        except Exception:
            watch.outcome = Outcome.INTERNAL
            raise
        finally:
            if isinstance(received, intake.Received):
                received.release()
            self.open_requests -= 1
            self.settle()
            watch.ended()

    async def _answer(self, exchange: Exchange, received: intake.Received, watch: Watch) -> None:
        """Pass a request on to the router that it belongs to, or serve it here."""
        if self.forwarding.peers.others:
            passed = await self.forwarding.pass_on(exchange, received, watch, leaving=self.draining)
            if passed is not None:
                watch.outcome = passed
                return None
        if self.draining:
            return self._refuse(exchange, SHUTTING_DOWN, watch)
        taken = intake.take(received, self.gate.controller, self.forwarding.peers, self.clock())
        if isinstance(taken, Refusal):
            return self._refuse(exchange, taken, watch)
        if taken.arrival.stray and taken.arrival.has_history:
            taken = taken.at(await self.forwarding.fetch(taken.arrival.session))
        watch.took(taken.arrival, received.request_id, streaming=taken.streaming)
        await self.generations.serve(exchange, taken, watch)
        if watch.outcome is Outcome.SHUTTING_DOWN and not exchange.started:
            await self._hand_over(exchange, received, watch)
        return None

    async def _hand_over(self, exchange: Exchange, received: intake.Received, watch: Watch) -> None:
        """Have another router serve a request that waited here."""
        passed = await self.forwarding.pass_on(exchange, received, watch, leaving=True)
        if passed is None:
            self._refuse(exchange, SHUTTING_DOWN, watch)
        else:
            watch.outcome = passed

    def _may_pass_on(self, exchange: Exchange) -> bool:
        return bool(self.forwarding.peers.others) and not self.forwarding.is_forwarded(exchange)

    @staticmethod
    def _refuse(exchange: Exchange, refusal: Refusal, watch: Watch) -> None:
        """Answer a request that nothing was done about; where another router may, tell it so."""
        watch.outcome = refusal.outcome
        untouched = refusal.outcome in (Outcome.SHUTTING_DOWN, Outcome.NOT_READY)
        refuse(exchange, refusal, {NOT_SERVED: refusal.outcome.value} if untouched else None)

    async def _anywhere(self, exchange: Exchange, target: Target) -> None:
        self.open_requests += 1
        try:
            await self.anywhere.relay(exchange, target)
        finally:
            self.open_requests -= 1
            self.settle()

    async def _finish(self, exchange: Exchange, target: Target) -> None:
        """End a session: named in the path, the query, or as requests name theirs. Always 200."""
        named: str | Refusal | None = target.session
        if named is None and (in_query := parse_qs(exchange.head.query).get("session_id")):
            named = in_query[0]
        if named is None:
            fields = split(await exchange.read_body(FINISH_BODY_BYTES) or b"{}")
            headers = exchange.head.headers
            named = identity.repeated_session(headers.repeated) or identity.session_id(
                headers.lower, fields if isinstance(fields, Fields) else {}
            )
        if not isinstance(named, str):
            why = named.message if named is not None else "no session is named: add ?session_id=..."
            return answer_json(exchange, {"finished": False, "message": why})
        finished = self.gate.finish(named)
        if not finished and not self.forwarding.is_forwarded(exchange):
            finished = await self.forwarding.finish(named)
        return answer_json(exchange, {"finished": finished})

    async def _to_admin(self, exchange: Exchange) -> None:
        """The router's own pages are an ordinary web application; it is asked like an engine."""
        if self.admin is None:
            return refuse(exchange, NOT_READY)
        head = exchange.head
        headers = end_to_end(head.headers, drop=OF_THE_REQUEST)
        body = await exchange.read_body(FINISH_BODY_BYTES)
        if not exchange.body_complete:
            return refuse(
                exchange, Refusal(Outcome.TOO_LARGE, f"send at most {FINISH_BODY_BYTES} bytes here")
            )
        try:
            async with await self.upstream.request(
                self.admin, head.method, head.target, headers, body
            ) as answer:
                await answer.relay(exchange, (), on_body=None)
        except (Unreachable, ConnectionLost) as error:
            log.warning("the router's own pages do not answer: %s", error)
            break_off(exchange, FAILED)
        return None


def build_router(
    name: str,
    *,
    clock: Clock = time.monotonic,
    rng: Random | None = None,
    tracer: Tracer | None = None,
    memory_bytes: int | None = None,
) -> Router:
    """Wire the parts; needs a running event loop. `memory_bytes`: what the process may have, if limited."""
    rng = rng or Random()
    controller = AdmissionController(rng, started=clock())
    gate = Gate(controller, clock)
    peers = Peers(name)
    feed = PoolFeed(gate, peers, clock)
    metrics = Metrics(controller)
    metrics.registry.register(
        StateCollector(controller, peers, clock, lambda: feed.ignored, lambda: feed.age_seconds)
    )
    pause = PauseGate()
    upstream, budget = Upstream(), Budget.within(memory_bytes)
    router = Router(
        name=name,
        gate=gate,
        feed=feed,
        pause=pause,
        upstream=upstream,
        metrics=metrics,
        telemetry=Telemetry(metrics, clock, tracer),
        generations=Generations(
            name, gate=gate, pause=pause, upstream=upstream, metrics=metrics, clock=clock, rng=rng
        ),
        anywhere=Anywhere(gate, upstream, budget, clock=clock, rng=rng),
        forwarding=Forwarding(peers, gate=gate, upstream=upstream, metrics=metrics, clock=clock),
        kv_events=KvEvents(controller.fleet.prefixes, lambda: controller.view),
        clock=clock,
        budget=budget,
    )
    metrics.registry.register(KvCollector(router.kv_events))
    metrics.plane.requests = lambda: router.open_requests
    metrics.plane.waiting = lambda: gate.waiting + pause.waiting
    metrics.plane.buffered_bytes = lambda: router.budget.held
    metrics.plane.paused = lambda: not pause.is_open
    return router
