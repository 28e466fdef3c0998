"""One generation: enter, prefill where it pays, send to the session's engine, pass the answer on, leave.

A request is sent to another engine only while none can have started on it: after a failed connect, or after
a 503 that came before any byte of an answer (vLLM's own queue is full). Both legs of a disaggregated request
end when the client closes its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from random import Random

from rolloutpool_router import comments
from rolloutpool_router.answers import error_event, refuse
from rolloutpool_router.bodies import BodyTooLong
from rolloutpool_router.core.outcomes import NO_ENGINE, SHUTTING_DOWN, Outcome, Refusal
from rolloutpool_router.core.requests import Entered, Queued
from rolloutpool_router.decisions import REASONS, reason_of
from rolloutpool_router.gate import Gate
from rolloutpool_router.intake import TOO_LARGE, Intake
from rolloutpool_router.legs import KeptAnswer, Legs, Turn, keep, verdict
from rolloutpool_router.metrics import EngineFault, Metrics
from rolloutpool_router.prefill import Prefills
from rolloutpool_router.telemetry import Leg, Watch
from rolloutpool_router.usage import UsageReader
from rolloutpool_router.weights import PauseGate
from rolloutpool_router.wire.client import Answer, ConnectionLost, NotSent, Unreachable, Upstream
from rolloutpool_router.wire.heads import decode, encode
from rolloutpool_router.wire.server import Exchange

log = logging.getLogger(__name__)

SERVICE_UNAVAILABLE = 503
WARN_SECONDS = 10.0
"""Least time between two log lines about one engine's faults, in seconds."""
AT_ONCE = (b"X-RolloutPool-Queue-Seconds", b"0.000")
REASON_HEADERS = {reason: (b"X-RolloutPool-Reason", reason.encode()) for reason in REASONS}


class Tap:
    """Sees the pieces of an answer as they pass: when the first came, and the usage that it tells."""

    __slots__ = ("_watch", "reader")

    def __init__(self, watch: Watch, prompt_bytes: int) -> None:
        self.reader = UsageReader(prompt_bytes)
        self._watch = watch

    def __call__(self, piece: bytes) -> None:
        """See the next piece."""
        if self.reader.size == 0:
            self._watch.first_byte()
        self.reader.feed(piece)


class Generations:
    """Serves generations."""

    def __init__(
        self,
        router: str,
        *,
        gate: Gate,
        pause: PauseGate,
        upstream: Upstream,
        metrics: Metrics,
        clock: Callable[[], float],
        rng: Random,
    ) -> None:
        self._name_header = (b"X-RolloutPool-Router", router.encode())
        self._gate = gate
        self._pause = pause
        self._fleet = gate.controller.fleet
        self._legs = Legs(self._fleet, pause, upstream)
        self._prefills = Prefills(gate, self._legs, metrics, clock=clock, rng=rng)
        self._clock = clock
        self._warned: dict[str, float] = {}
        """When an engine's fault was last logged, by engine."""

    async def serve(self, exchange: Exchange, intake: Intake, watch: Watch) -> None:
        """Serve a request to its end. If the outcome is SHUTTING_DOWN nothing has been answered yet."""
        entered = self._gate.arrive(intake.arrival) if self._pause.is_open else None
        waited = 0.0
        if entered is None or isinstance(entered, Queued):
            began = self._clock()
            entered = await self._wait(exchange, intake, entered)
            waited = self._clock() - began
        if isinstance(entered, Refusal):
            watch.decided(entered)
            return _refuse(exchange, watch, entered)
        turn = Turn(exchange, intake, watch, entered, waited)
        try:
            watch.decided(entered)
            if not await self._try_engine(turn):
                await self._try_others(turn)
        finally:
            self._gate.leave(entered.session, ok=watch.outcome is Outcome.SERVED, usage=watch.usage)

    async def _wait(self, exchange: Exchange, intake: Intake, queued: Queued | None) -> Entered | Refusal:
        """Wait until the request may go to an engine; before it is queued, until the pool goes on."""
        waits_for = comments.WEIGHTS if queued is None else comments.ROOM
        with _comments(exchange, intake, waits_for):
            if queued is not None:
                return await self._gate.wait(queued)
            if not await self._pause.wait_open(intake.arrival.class_name):
                return SHUTTING_DOWN
            return await self._gate.enter(intake.arrival)

    async def _try_others(self, turn: Turn) -> None:
        """Have another engine answer, as long as those tried have no place for the request."""
        served = False
        while not served:
            began = self._clock()
            with _comments(turn.exchange, turn.intake, comments.ENGINE):
                other = await self._gate.reroute(turn.entered.session, avoid=turn.refused_by.keys())
            turn.waited_seconds += self._clock() - began
            if other is None and turn.refused_by:
                return self._answer_kept(turn, next(reversed(turn.refused_by.values())))
            other = other or NO_ENGINE
            turn.watch.decided(other)
            if isinstance(other, Refusal):
                return _refuse(turn.exchange, turn.watch, other)
            turn.entered = other
            served = await self._try_engine(turn)
        return None

    async def _try_engine(self, turn: Turn) -> bool:
        """Have the session's engine answer; False if it has no place for it, so that it may go elsewhere."""
        while True:
            try:
                return await self._try_once(turn)
            except NotSent:
                continue  # weights were synchronised before there was a connection: it waits for their end

    async def _try_once(self, turn: Turn) -> bool:
        """The same.

        Raises:
            NotSent: the pool was paused meanwhile; the engine has seen nothing of the request.
        """
        data = await self._data(turn)
        if data is None:
            _refuse(turn.exchange, turn.watch, SHUTTING_DOWN)
            return True
        if isinstance(data, KeptAnswer):
            self._answer_kept(turn, data)
            return True
        engine = turn.entered.engine
        attempt = self._fleet.generation_begins(engine, self._clock())
        if attempt is None:
            return False
        ok: bool | None = None
        try:
            answer = await self._legs.send(turn, Leg.ENGINE, engine, data)
            data = b""  # the answer may take an hour
            try:
                self._fleet.answered(engine)
                attempt.head_arrived(answer)
                ok = verdict(answer.head.status)
                if answer.head.status == SERVICE_UNAVAILABLE and turn.intake.received.body.repeatable:
                    turn.watch.failed(engine, EngineFault.BUSY)
                    turn.refused_by[engine] = await keep(answer)
                    return False
                await self._relay(turn, answer)
            finally:
                answer.close()
        except Unreachable:
            turn.watch.failed(engine, EngineFault.UNREACHABLE)
            self._gate.engine_failed(engine)
            return False
        except ConnectionLost as error:
            ok = False
            self._lost(turn, EngineFault.STALLED if attempt.stalled else EngineFault.LOST, error)
        except BodyTooLong:
            turn.watch.outcome = TOO_LARGE.outcome
            _end(turn, TOO_LARGE)
        except asyncio.CancelledError:
            ok = None
            raise
        finally:
            self._fleet.generation_ended(attempt, self._clock(), ok=ok)
        return True

    async def _data(self, turn: Turn) -> bytes | KeptAnswer | None:
        """The body to send now, or a prefill engine's refusal; None if the router shuts down.

        KV from before a pause is of the old weights: after one, the session's engine computes the prompt.
        """
        data: bytes | KeptAnswer = turn.intake.received.body.first
        if not await self._goes_on(turn):
            return None
        if self._fleet.has_prefill:
            epoch = self._pause.epoch
            data = await self._prefills.body(turn)
            if self._pause.epoch != epoch:
                data = turn.intake.received.body.first
                if not await self._goes_on(turn):
                    return None
        return data

    async def _goes_on(self, turn: Turn) -> bool:
        """Wait while weights are synchronised; False if the router shuts down."""
        if self._pause.is_open:
            return True
        began = self._clock()
        with _comments(turn.exchange, turn.intake, comments.WEIGHTS):
            goes_on = await self._pause.wait_open(turn.intake.arrival.class_name)
        turn.waited_seconds += self._clock() - began
        return goes_on

    async def _relay(self, turn: Turn, answer: Answer) -> None:
        """Pass an answer on as it comes."""
        received, watch, status = turn.intake.received, turn.watch, answer.head.status
        received.release()
        if status >= 300:
            return await self._relay_refusal(turn, answer)
        tap = Tap(watch, received.body.size)
        try:
            await answer.relay(turn.exchange, self._told(turn), on_body=tap)
        finally:
            turn.passed_on = answer.has_body
            if tap.reader.size:
                watch.usage = tap.reader.usage()
        watch.outcome = Outcome.SERVED
        return None

    async def _relay_refusal(self, turn: Turn, answer: Answer) -> None:
        """Pass on an answer that is not 2xx; in an event stream that has begun it is the last event."""
        if answer.head.status >= 500:
            turn.watch.failed(turn.entered.engine, EngineFault.ERROR)
        if turn.exchange.started:
            turn.exchange.write_piece(error_event(await answer.read()))
            turn.exchange.end()
        else:
            await answer.relay(turn.exchange, self._told(turn), on_body=None)
        turn.watch.outcome = Outcome.ENGINE_REFUSED

    def _told(self, turn: Turn) -> list[tuple[bytes, bytes]]:
        """What the router says of itself in the answer."""
        entered, waited = turn.entered, turn.waited_seconds
        return [
            (b"X-RolloutPool-Engine", entered.engine.encode()),
            self._name_header,
            (b"X-RolloutPool-Queue-Seconds", b"%.3f" % waited) if waited else AT_ONCE,
            REASON_HEADERS[reason_of(entered)],
            (b"X-RolloutPool-Session", encode(entered.session)),
        ]

    def _lost(self, turn: Turn, fault: EngineFault, error: ConnectionLost) -> None:
        """The engine's connection broke: break off the client's answer, or say why there is none."""
        turn.watch.outcome = Outcome.ENGINE_LOST
        turn.watch.failed(turn.entered.engine, fault)
        self._warn(
            turn,
            f"took a request and {'fell silent' if fault is EngineFault.STALLED else 'went away'}: {error}",
        )
        message = (
            f"engine {turn.entered.engine} went away after it had taken the request; it was not repeated, "
            "since it may have run: send it again if a second sample does no harm"
        )
        _end(turn, Refusal(Outcome.ENGINE_LOST, message), dict(_text(self._told(turn))))

    def _warn(self, turn: Turn, what: str) -> None:
        """Tell of an engine's fault, once in a while: all its requests fail at once. Metrics count each."""
        engine, now = turn.entered.engine, self._clock()
        if now - self._warned.get(engine, -WARN_SECONDS) >= WARN_SECONDS:
            self._warned = {n: at for n, at in self._warned.items() if n in self._fleet.engines}
            self._warned[engine] = now
            log.warning("request %s: engine %s %s", turn.intake.received.request_id, engine, what)

    def _answer_kept(self, turn: Turn, kept: KeptAnswer) -> None:
        turn.watch.outcome = Outcome.ENGINE_REFUSED
        if turn.exchange.started:
            turn.exchange.write_piece(error_event(kept.body))
            return turn.exchange.end()
        return turn.exchange.answer(kept.status, _text([*kept.headers, *self._told(turn)]), kept.body)


def _refuse(exchange: Exchange, watch: Watch, refusal: Refusal) -> None:
    """Answer a refusal; SHUTTING_DOWN only a stream that has begun, since another router may serve others."""
    watch.outcome = refusal.outcome
    if refusal.outcome is not Outcome.SHUTTING_DOWN or exchange.started:
        refuse(exchange, refusal)


def _end(turn: Turn, refusal: Refusal, headers: Mapping[str, str] | None = None) -> None:
    """Say why there is no answer, also in a stream that has only comments; break off one that has begun."""
    if turn.exchange.started and (turn.passed_on or not turn.exchange.has_own_head):
        turn.exchange.abort()
    else:
        refuse(turn.exchange, refusal, headers)


def _comments(exchange: Exchange, intake: Intake, comment: bytes) -> AbstractContextManager[object]:
    return comments.Comments(exchange, comment) if intake.streaming else nullcontext()


def _text(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(decode(name), decode(value)) for name, value in headers]
