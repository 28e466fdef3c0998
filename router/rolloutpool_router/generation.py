"""One generation: enter, prefill where it pays, send to the session's engine, pass the answer on, leave.

A request is sent to another engine only while none can have started on it: after a failed connect, or after
a 503 that came before any byte of an answer (vLLM's own queue is full). Both legs of a disaggregated request
end when the client closes its connection.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from rolloutpool_router.answers import refusal_response
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.pd import Local, decode_leg, one_sequence, prefill_leg
from rolloutpool_router.core.requests import Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.gate import Gate
from rolloutpool_router.intake import Intake
from rolloutpool_router.metrics import Metrics
from rolloutpool_router.proxy import (
    EngineLost,
    Unreachable,
    Upstream,
    chunks,
    forwarded_headers,
    request_headers,
)
from rolloutpool_router.usage import UsageReader, estimate_tokens

log = logging.getLogger(__name__)

SERVICE_UNAVAILABLE = 503
WARN_SECONDS = 10.0
"""Least time between two log lines about one engine's faults, in seconds."""


@dataclass(frozen=True)
class KeptAnswer:
    """An answer that was read whole: an error of an engine."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Turn:
    """One request on its way; filled in as it goes."""

    request: web.Request
    intake: Intake
    entered: Entered
    router: str
    """This router."""
    started: float
    """When it entered, in seconds of the clock."""
    outcome: Outcome = Outcome.CLIENT_GONE
    """What became of it; a cancelled handler leaves this."""
    usage: Usage | None = None
    refused_by: dict[str, KeptAnswer] = field(default_factory=dict)
    """503 answers by engine."""

    def headers(self) -> dict[str, str]:
        """What the router says of itself in the answer."""
        return {
            "X-RolloutPool-Engine": self.entered.engine,
            "X-RolloutPool-Router": self.router,
            "X-RolloutPool-Queue-Seconds": f"{self.entered.waited_seconds:.3f}",
            "X-RolloutPool-Session": self.entered.session,
        }


class Generations:
    """Serves generations."""

    def __init__(
        self,
        router: str,
        *,
        gate: Gate,
        upstream: Upstream,
        metrics: Metrics,
        clock: Callable[[], float],
        rng: Random,
    ) -> None:
        self._router = router
        self._gate = gate
        self._fleet = gate.controller.fleet
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._warned: dict[str, float] = {}
        """When an engine's fault was last logged, by engine."""

    async def serve(self, request: web.Request, intake: Intake) -> tuple[web.StreamResponse, Outcome]:
        """Serve a request to its end."""
        entered = await self._gate.enter(intake.arrival)
        if isinstance(entered, Refusal):
            return refusal_response(entered), entered.outcome
        self._metrics.queue_wait.labels(entered.class_name).observe(entered.waited_seconds)
        turn = Turn(request, intake, entered, self._router, self._clock())
        try:
            return await self._serve_entered(turn), turn.outcome
        finally:
            self._gate.leave(entered.session, ok=turn.outcome is Outcome.SERVED, usage=turn.usage)

    async def _serve_entered(self, turn: Turn) -> web.StreamResponse:
        while True:
            try:
                answer = await self._try_engine(turn)
            except Unreachable:
                self._gate.engine_failed(turn.entered.engine)
                answer = None
            except EngineLost as error:
                return self._lost(turn, error)
            if answer is not None:
                return answer
            session = turn.entered.session
            other = await self._gate.reroute(session, avoid=turn.refused_by.keys())
            if isinstance(other, Refusal):
                turn.outcome = other.outcome
                return refusal_response(other)
            if other is None:
                return self._kept(turn, next(reversed(turn.refused_by.values())))
            turn.entered = other

    async def _try_engine(self, turn: Turn) -> web.StreamResponse | None:
        """The answer of the session's engine, None if it has no place for the request."""
        data = await self._prefill(turn)
        if isinstance(data, KeptAnswer):
            return self._kept(turn, data)
        engine = turn.entered.engine
        async with self._upstream.post(
            self._url(engine, turn), headers=self._headers(turn), data=data
        ) as response:
            self._fleet.answered(engine)
            if response.status == SERVICE_UNAVAILABLE:
                turn.refused_by[engine] = await _keep(response)
                return None
            return await self._relay(turn, response)

    async def _prefill(self, turn: Turn) -> bytes | KeptAnswer:
        """Body for the session's engine; with the KV of a prefill engine where there is one.

        The prefill engine's own refusal (4xx) is the request's fault, so it is the answer. Any other failure
        of it leaves the prompt to the session's engine, which has seen nothing yet.
        """
        raw = turn.intake.raw
        if turn.intake.body.get("kv_transfer_params") is not None or not one_sequence(turn.intake.body):
            return raw
        tokens = estimate_tokens(raw)
        choice = self._fleet.choose_prefill(
            turn.entered.engine,
            prefix=turn.intake.arrival.prefix,
            prompt_tokens=tokens,
            now=self._clock(),
            rng=self._rng,
        )
        if isinstance(choice, Local):
            return raw
        self._fleet.prefill_started(choice.engine, tokens)
        try:
            answer = await self._first_leg(turn, choice.engine)
        except Unreachable:
            self._gate.engine_failed(choice.engine)
            return await self._prefill(turn)
        except EngineLost:
            self._metrics.prefills.labels("fallback").inc()
            return raw
        finally:
            self._fleet.prefill_ended(choice.engine, tokens)
        if 400 <= answer.status < 500:
            return answer
        params = _transfer_params(answer)
        self._metrics.prefills.labels("remote" if params is not None else "fallback").inc()
        if params is None:
            return raw
        self._fleet.prefixes.record(turn.intake.arrival.prefix, choice.engine)
        return json.dumps(decode_leg(turn.intake.body, params)).encode()

    async def _first_leg(self, turn: Turn, engine: str) -> KeptAnswer:
        data = json.dumps(prefill_leg(turn.intake.body)).encode()
        url = self._url(engine, turn)
        async with self._upstream.post(url, headers=self._headers(turn), data=data) as response:
            self._fleet.answered(engine)
            return await _keep(response)

    async def _relay(self, turn: Turn, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass an answer on chunk by chunk, as it comes."""
        headers = forwarded_headers(upstream.headers)
        headers.update(turn.headers())
        response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
        reader = UsageReader(turn.intake.raw)
        try:
            await response.prepare(turn.request)
            async for chunk in chunks(upstream):
                if reader.empty and upstream.ok:
                    ttft = self._metrics.ttft.labels(turn.entered.class_name)
                    ttft.observe(self._clock() - turn.started)
                reader.feed(chunk)
                await response.write(chunk)
            await response.write_eof()
        except EngineLost as error:
            return self._cut(turn, response, error)
        except ConnectionResetError:
            return response
        finally:
            turn.usage = reader.usage() if upstream.ok and not reader.empty else None
        turn.outcome = Outcome.SERVED if upstream.ok else Outcome.ENGINE_REFUSED
        return response

    def _cut(self, turn: Turn, response: web.StreamResponse, error: EngineLost) -> web.StreamResponse:
        """Break off an answer that cannot be completed, so that the client does not take it for whole."""
        self._warn(turn, f"broke off an answer: {error}")
        turn.outcome = Outcome.ENGINE_LOST
        if turn.request.transport is not None:
            turn.request.transport.abort()
        return response

    def _lost(self, turn: Turn, error: EngineLost) -> web.StreamResponse:
        self._warn(turn, f"took a request and went away: {error}")
        turn.outcome = Outcome.ENGINE_LOST
        message = (
            f"engine {turn.entered.engine} went away after it had taken the request; it was not repeated, "
            "since it may have run: send it again if a second sample does no harm"
        )
        return refusal_response(Refusal(Outcome.ENGINE_LOST, message), turn.headers())

    def _warn(self, turn: Turn, what: str) -> None:
        """Tell of an engine's fault, once in a while: all its requests fail at once. Metrics count each."""
        engine, now = turn.entered.engine, self._clock()
        if now - self._warned.get(engine, -WARN_SECONDS) >= WARN_SECONDS:
            self._warned[engine] = now
            log.warning("request %s: engine %s %s", turn.intake.request_id, engine, what)

    def _kept(self, turn: Turn, kept: KeptAnswer) -> web.StreamResponse:
        turn.outcome = Outcome.ENGINE_REFUSED
        return web.Response(status=kept.status, body=kept.body, headers=kept.headers | turn.headers())

    def _url(self, engine: str, turn: Turn) -> str:
        known = self._fleet.engines.get(engine)
        if known is None:
            raise Unreachable(f"engine {engine} is no longer part of the pool")
        return known.url + turn.request.path_qs

    def _headers(self, turn: Turn) -> CIMultiDict[str]:
        names = {"X-Session-ID": turn.intake.arrival.session, "X-Request-Id": turn.intake.request_id}
        return request_headers(turn.request.headers, names)


async def _keep(response: aiohttp.ClientResponse) -> KeptAnswer:
    headers = dict(forwarded_headers(response.headers, drop=frozenset({"content-length"})))
    return KeptAnswer(response.status, headers, await response.read())


def _transfer_params(answer: KeptAnswer) -> dict[str, Any] | None:
    """What a prefill engine's answer says about its blocks; None if it holds none."""
    if answer.status != 200:
        return None
    try:
        params = json.loads(answer.body).get("kv_transfer_params")
    except (ValueError, AttributeError):
        return None
    return params if isinstance(params, dict) else None
