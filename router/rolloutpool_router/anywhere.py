"""Requests that any engine answers without holding KV: tokenizers, chat templates, the list of models."""

from __future__ import annotations

from random import Random

from rolloutpool_router.answers import refuse
from rolloutpool_router.core.outcomes import NO_ENGINE, Outcome, Refusal
from rolloutpool_router.core.view import Engine
from rolloutpool_router.gate import Clock, Gate
from rolloutpool_router.headers import headers_for_engine
from rolloutpool_router.paths import Target
from rolloutpool_router.wire.client import ConnectionLost, Origin, Unreachable, Upstream
from rolloutpool_router.wire.server import Exchange

READ_BYTES = 1024 * 1024
"""How much of the body is read before an engine is asked; the rest streams."""


class Anywhere:
    """Asks engines in random order until one takes the request."""

    def __init__(self, gate: Gate, upstream: Upstream, clock: Clock, rng: Random) -> None:
        self._gate = gate
        self._upstream = upstream
        self._clock = clock
        self._rng = rng

    async def relay(self, exchange: Exchange, target: Target) -> None:
        """Have an engine answer the request."""
        body = await exchange.read_body(READ_BYTES)
        for engine in self._engines():
            rest = None if exchange.body_complete else exchange.body_rest()
            try:
                async with await self._upstream.request(
                    Origin.of(engine.url),
                    exchange.head.method,
                    target.path,
                    headers_for_engine(exchange.head.headers),
                    body,
                    rest=rest,
                    length=exchange.body_length,
                ) as answer:
                    return await answer.relay(exchange, (), on_body=None)
            except Unreachable:
                self._gate.engine_failed(engine.name)
            except ConnectionLost as error:
                if exchange.started:
                    return exchange.abort()
                message = (
                    f"engine {engine.name} went away before it answered ({error}): send the request again"
                )
                return refuse(exchange, Refusal(Outcome.ENGINE_LOST, message))
        return refuse(exchange, NO_ENGINE)

    def _engines(self) -> list[Engine]:
        engines = list(self._gate.controller.fleet.homes(self._clock()))
        self._rng.shuffle(engines)
        return engines
