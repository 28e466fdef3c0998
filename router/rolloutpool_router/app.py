"""The HTTP server: routes, and what every answer has in common."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from aiohttp import web

from rolloutpool_router import intake
from rolloutpool_router.answers import error_response, refusal_response
from rolloutpool_router.core import identity
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.core.snapshot import take_snapshot
from rolloutpool_router.feed import PoolFeed
from rolloutpool_router.forwarding import NOT_SERVED, Forwarding
from rolloutpool_router.gate import Clock, Gate
from rolloutpool_router.generation import Generations
from rolloutpool_router.metrics import NO_CLASS, Metrics, StateCollector
from rolloutpool_router.proxy import FORWARDED, EngineLost, Unreachable, Upstream

log = logging.getLogger(__name__)

MODELS_TIMEOUT_SECONDS = 5.0
SHUTTING_DOWN = Refusal(Outcome.SHUTTING_DOWN, "this router is shutting down: send the request again")
NOT_READY = Refusal(Outcome.NOT_READY, "the router has not read its RolloutPool yet: try again")


@dataclass
class Router:
    """The parts of a running router."""

    name: str
    gate: Gate
    feed: PoolFeed
    upstream: Upstream
    metrics: Metrics
    generations: Generations
    forwarding: Forwarding
    clock: Clock
    draining: bool = False
    """True: no new request is taken."""
    open_requests: int = 0
    """Generations that were taken and have not ended, waiting ones too."""
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when draining and the last open request has ended."""

    def opened(self) -> None:
        """A generation was taken."""
        self.open_requests += 1

    def closed(self) -> None:
        """A generation ended."""
        self.open_requests -= 1
        self.settle()

    def may_pass_on(self, request: web.Request) -> bool:
        """Whether another router may answer the request."""
        return bool(self.forwarding.peers.others) and FORWARDED not in request.headers

    def settle(self) -> None:
        """Say so when draining is done."""
        if self.draining and self.open_requests == 0:
            self.quiet.set()


ROUTER = web.AppKey("router", Router)


def build_router(name: str, *, clock: Clock = time.monotonic, rng: Random | None = None) -> Router:
    """Wire the parts; needs a running event loop."""
    rng = rng or Random()
    controller = AdmissionController(rng, started=clock())
    gate = Gate(controller, clock)
    peers = Peers(name)
    feed = PoolFeed(gate, peers, clock)
    metrics = Metrics()
    metrics.registry.register(
        StateCollector(controller, peers, clock, lambda: feed.ignored, lambda: feed.age_seconds)
    )
    upstream = Upstream()
    generations = Generations(name, gate=gate, upstream=upstream, metrics=metrics, clock=clock, rng=rng)
    forwarding = Forwarding(peers, gate=gate, upstream=upstream, metrics=metrics, clock=clock)
    return Router(name, gate, feed, upstream, metrics, generations, forwarding, clock)


def build_app(router: Router) -> web.Application:
    """The aiohttp application of a router."""
    app = web.Application(middlewares=[_errors], client_max_size=intake.MAX_BODY_BYTES)
    app[ROUTER] = router
    app.add_routes(
        [
            web.post("/v1/chat/completions", _generate),
            web.post("/v1/completions", _generate),
            web.get("/v1/models", _models),
            web.post("/finish_session", _finish_session),
            web.get("/health", _health),
            web.get("/readyz", _readyz),
            web.get("/metrics", _metrics),
            web.get("/admission/snapshot", _snapshot),
            web.post("/admission/release", _release),
        ]
    )
    return app


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors of routing and faults of the router, in the format of the others."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        hint = f"{request.method} {request.path}: {error.reason}"
        return error_response(
            error.status, message=hint, error_type="invalid_request_error", code="http_error"
        )
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return refusal_response(Refusal(Outcome.INTERNAL, "the router failed; its log has the traceback"))


async def _generate(request: web.Request) -> web.StreamResponse:
    router = request.app[ROUTER]
    turn = _Turn()
    router.opened()
    try:
        return await _answer(router, request, turn)
    except Exception:
        turn.outcome = Outcome.INTERNAL
        raise
    finally:
        router.closed()
        router.metrics.ended(turn.class_name, turn.outcome)


@dataclass
class _Turn:
    """What is counted of a request; a cancelled handler leaves the outcome as it is."""

    class_name: str = NO_CLASS
    outcome: Outcome = Outcome.CLIENT_GONE


async def _answer(router: Router, request: web.Request, turn: _Turn) -> web.StreamResponse:
    """Pass a request on to the router that it belongs to, or serve it here."""
    if router.draining and not router.may_pass_on(request):
        return _not_served(SHUTTING_DOWN, turn)
    if router.gate.controller.view is None:
        return _not_served(NOT_READY, turn)
    received = await intake.receive(request)
    if isinstance(received, Refusal):
        turn.outcome = received.outcome
        return refusal_response(received)
    if (passed := await router.forwarding.pass_on(request, received, leaving=router.draining)) is not None:
        response, turn.outcome = passed
        return response
    if router.draining:
        return _not_served(SHUTTING_DOWN, turn)
    taken = intake.take(received, router.gate.controller, router.forwarding.peers, router.clock())
    if not isinstance(taken, Refusal) and taken.arrival.stray and taken.arrival.has_history:
        taken = taken.at(await router.forwarding.fetch(taken.arrival.session))
    if isinstance(taken, Refusal):
        turn.outcome = taken.outcome
        return refusal_response(taken)
    turn.class_name = taken.arrival.class_name
    response, turn.outcome = await router.generations.serve(request, taken)
    if turn.outcome is not Outcome.SHUTTING_DOWN:
        return response
    if (passed := await router.forwarding.pass_on(request, received, leaving=True)) is not None:
        response, turn.outcome = passed
        return response
    return _not_served(SHUTTING_DOWN, turn)


def _not_served(refusal: Refusal, turn: _Turn) -> web.Response:
    """The answer to a request that nothing was done about; tells another router to try the next."""
    turn.outcome = refusal.outcome
    own = {NOT_SERVED: refusal.outcome.value}
    if refusal is SHUTTING_DOWN:
        own["Connection"] = "close"
    return refusal_response(refusal, own)


async def _models(request: web.Request) -> web.StreamResponse:
    """An engine's own list, which has its context length; the names of the spec while no engine answers."""
    router = request.app[ROUTER]
    view = router.gate.controller.view
    for engine in router.gate.controller.fleet.homes(router.clock()):
        try:
            async with router.upstream.get(
                f"{engine.url}/v1/models", timeout=MODELS_TIMEOUT_SECONDS
            ) as answer:
                body = await answer.read()
                return web.Response(status=answer.status, body=body, content_type=answer.content_type)
        except (Unreachable, EngineLost):
            continue
    if view is None:
        return refusal_response(NOT_READY)
    names = [{"id": name, "object": "model", "owned_by": "rolloutpool"} for name in view.models]
    return web.json_response({"object": "list", "data": names})


async def _finish_session(request: web.Request) -> web.Response:
    """End a session, wherever it is: named in the query, or as requests name theirs. Always 200."""
    router = request.app[ROUTER]
    named: str | Refusal | None = request.query.get("session_id")
    if named is None:
        body = intake.parse_body(await request.read() or b"{}")
        headers = {name.lower(): value for name, value in request.headers.items()}
        named = identity.session_id(headers, body if isinstance(body, dict) else {})
    finished = False
    if isinstance(named, str):
        finished = router.gate.finish(named) or await router.forwarding.finish(request, named)
    return web.json_response({"finished": finished})


async def _release(request: web.Request) -> web.Response:
    """Give an idle session up to the router that asks: the engine that holds its KV. Always 200."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    named = identity.session_id(headers, {})
    engine = request.app[ROUTER].gate.release(named) if isinstance(named, str) else None
    return web.json_response({"engine": engine})


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _readyz(request: web.Request) -> web.Response:
    router = request.app[ROUTER]
    if router.draining:
        return refusal_response(SHUTTING_DOWN)
    if router.gate.controller.view is None:
        return refusal_response(NOT_READY)
    return web.json_response({"status": "ready"})


async def _metrics(request: web.Request) -> web.Response:
    text = request.app[ROUTER].metrics.text()
    return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def _snapshot(request: web.Request) -> web.Response:
    router = request.app[ROUTER]
    snapshot = take_snapshot(
        router.gate.controller,
        router=router.name,
        now=router.clock(),
        taken_at=time.time(),
        ignored_statuses=router.feed.ignored,
    )
    if router.forwarding.peers.deserted:
        # What is in force is not what the revision says: the operator must not count on it.
        snapshot = snapshot.model_copy(update={"applied_revision": 0})
    return web.json_response(snapshot.to_wire())
