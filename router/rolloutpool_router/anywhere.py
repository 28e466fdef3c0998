"""Requests that any engine answers without holding KV: tokenizers, chat templates, the list of models."""

from __future__ import annotations

from random import Random

from rolloutpool_router.answers import break_off, refuse
from rolloutpool_router.bodies import MAX_BODY_BYTES, Body, BodyTooLong, Budget
from rolloutpool_router.core.outcomes import NO_ENGINE, Outcome, Refusal
from rolloutpool_router.core.view import Engine
from rolloutpool_router.gate import Clock, Gate
from rolloutpool_router.headers import headers_for_engine
from rolloutpool_router.intake import TOO_LARGE
from rolloutpool_router.paths import Target
from rolloutpool_router.wire.client import ConnectionLost, Origin, Unreachable, Upstream
from rolloutpool_router.wire.server import Exchange

READ_BYTES = 1024 * 1024
"""How much of the body is read before an engine is asked; the rest streams."""


class Anywhere:
    """Asks engines in random order until one takes the request."""

    def __init__(self, gate: Gate, upstream: Upstream, budget: Budget, *, clock: Clock, rng: Random) -> None:
        self._gate = gate
        self._upstream = upstream
        self._budget = budget
        self._clock = clock
        self._rng = rng

    async def relay(self, exchange: Exchange, target: Target) -> None:
        """Have an engine answer the request."""
        length = exchange.body_length
        if length is not None and length > MAX_BODY_BYTES:
            return refuse(exchange, TOO_LARGE)
        with self._budget.reserved(length) as window:
            first = await exchange.read_body(min(window, READ_BYTES))
        body = Body(first, exchange.body_complete, length, exchange, self._budget)
        try:
            return await self._ask(exchange, target, body)
        except BodyTooLong:
            return break_off(exchange, TOO_LARGE)
        finally:
            body.release()

    async def _ask(self, exchange: Exchange, target: Target, body: Body) -> None:
        for engine in self._engines():
            try:
                async with await self._upstream.request(
                    Origin.of(engine.url),
                    exchange.head.method,
                    target.path,
                    headers_for_engine(exchange.head.headers),
                    body.first,
                    rest=body.rest(),
                    length=body.length,
                ) as answer:
                    body.release()
                    return await answer.relay(exchange, (), on_body=None)
            except Unreachable:
                self._gate.engine_failed(engine.name)
            except ConnectionLost as error:
                message = (
                    f"engine {engine.name} went away before it answered ({error}): send the request again"
                )
                return break_off(exchange, Refusal(Outcome.ENGINE_LOST, message))
        return refuse(exchange, NO_ENGINE)

    def _engines(self) -> list[Engine]:
        engines = list(self._gate.controller.fleet.homes(self._clock()))
        self._rng.shuffle(engines)
        return engines
