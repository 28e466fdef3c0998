"""The first leg of a disaggregated request: a prefill engine computes the prompt."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from rolloutpool_router.bodies import Fields
from rolloutpool_router.core.outcomes import Refusal
from rolloutpool_router.core.pd import (
    PREFILL_LEG_DROPS,
    Local,
    Remote,
    decode_leg,
    one_sequence,
    prefill_leg,
)
from rolloutpool_router.gate import Gate
from rolloutpool_router.legs import KeptAnswer, Legs, Turn, keep, verdict
from rolloutpool_router.metrics import EngineFault, Metrics
from rolloutpool_router.telemetry import Leg
from rolloutpool_router.usage import BYTES_PER_TOKEN
from rolloutpool_router.wire.client import ConnectionLost, NotSent, Unreachable

TWO_LEGS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/inference/v1/generate"})
"""Paths whose requests and answers carry kv_transfer_params in vLLM 0.32."""
MOST_TRIES = 2
"""Prefill engines that are tried; then the session's engine computes the prompt."""
LOST = KeptAnswer(502, [], b"")
"""Stands for the answer of a prefill engine that gave none: the session's engine computes the prompt."""


class Prefills:
    """Has prompts computed elsewhere where that pays."""

    def __init__(
        self, gate: Gate, legs: Legs, metrics: Metrics, *, clock: Callable[[], float], rng: Random
    ) -> None:
        self._gate = gate
        self._fleet = gate.controller.fleet
        self._legs = legs
        self._metrics = metrics
        self._clock = clock
        self._rng = rng

    async def body(self, turn: Turn) -> bytes | KeptAnswer:
        """Body for the session's engine; with the KV of a prefill engine where one computed it.

        The prefill engine's own refusal (4xx) is the request's fault, so it is the answer. Any other failure
        of it leaves the prompt to the session's engine, which has seen nothing yet.
        """
        received = turn.intake.received
        raw, fields = received.body.first, received.fields
        for _ in range(MOST_TRIES):
            choice = self._choose_prefill(turn)
            if isinstance(choice, Local) or not isinstance(fields, Fields):
                self._metrics.prefills.labels("local").inc()
                return raw
            answer = await self._first_leg(turn, choice.engine, fields)
            if answer is not None:
                return self._second_body(turn, answer, choice.engine, fields)
        self._metrics.prefills.labels("fallback").inc()
        return raw

    def _second_body(self, turn: Turn, answer: KeptAnswer, engine: str, fields: Fields) -> bytes | KeptAnswer:
        """What goes to the session's engine after a prefill engine has answered."""
        if 400 <= answer.status < 500:
            return answer
        params = _transfer_params(answer)
        self._metrics.prefills.labels("remote" if params is not None else "fallback").inc()
        if params is None:
            return turn.intake.received.body.first
        self._fleet.prefixes.record(turn.intake.arrival.prefix, engine)
        return fields.replaced(decode_leg(params))

    def _choose_prefill(self, turn: Turn) -> Local | Remote:
        received = turn.intake.received
        fields = received.fields
        if isinstance(fields, Refusal) or not received.body.complete:
            return Local("the body is too long to be sent twice")
        if received.target.path.partition("?")[0] not in TWO_LEGS:
            return Local("vLLM takes no KV over for this path")
        if fields.get("kv_transfer_params") is not None or not one_sequence(fields, prompts=fields.prompts()):
            return Local("the request is not one sequence")
        return self._fleet.choose_prefill(
            turn.entered.engine,
            prefix=turn.intake.arrival.prefix,
            prompt_tokens=received.body.size // BYTES_PER_TOKEN,
            now=self._clock(),
            rng=self._rng,
        )

    async def _first_leg(self, turn: Turn, engine: str, fields: Fields) -> KeptAnswer | None:
        """What a prefill engine answers; None if it cannot be reached, so that another may be asked."""
        attempt = self._fleet.generation_begins(engine, self._clock())
        if attempt is None:
            return LOST
        tokens = turn.intake.received.body.size // BYTES_PER_TOKEN
        self._fleet.prefill_started(engine, tokens)
        ok: bool | None = None
        try:
            data = fields.replaced(prefill_leg(fields), drop=PREFILL_LEG_DROPS)
            async with await self._legs.send(turn, Leg.PREFILL, engine, data) as leg:
                self._fleet.answered(engine)
                attempt.head_arrived(leg)
                answer = await keep(leg)
                ok = verdict(answer.status)
                return answer
        except Unreachable:
            turn.watch.failed(engine, EngineFault.UNREACHABLE)
            self._gate.engine_failed(engine)
            return None
        except ConnectionLost:
            ok = False
            turn.watch.failed(engine, EngineFault.LOST)
            return LOST
        except NotSent:
            return LOST
        finally:
            self._fleet.prefill_ended(engine, tokens)
            self._fleet.generation_ended(attempt, self._clock(), ok=ok)


def _transfer_params(answer: KeptAnswer) -> dict[str, Any] | None:
    """What a prefill engine's answer says about its blocks; None if it holds none."""
    if answer.status != 200:
        return None
    try:
        params = msgspec.json.decode(answer.body, type=dict[str, msgspec.Raw]).get("kv_transfer_params")
        decoded = msgspec.json.decode(params) if params is not None else None
    except (msgspec.DecodeError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None
