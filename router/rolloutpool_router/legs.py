"""The legs of a generation: what is sent to an engine, and what is known of the request on its way."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.requests import Entered
from rolloutpool_router.headers import headers_for_engine
from rolloutpool_router.intake import Intake
from rolloutpool_router.telemetry import Leg, Watch
from rolloutpool_router.weights import PauseGate
from rolloutpool_router.wire.client import Answer, Origin, Unreachable, Upstream
from rolloutpool_router.wire.heads import encode, end_to_end
from rolloutpool_router.wire.server import Exchange


@dataclass(frozen=True)
class KeptAnswer:
    """An answer that was read whole: an error of an engine, or a prefill engine's."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass(slots=True, eq=False)
class Turn:
    """One request on its way; filled in as it goes."""

    exchange: Exchange
    intake: Intake
    watch: Watch
    entered: Entered
    waited_seconds: float = 0.0
    """How long it waited for room, an engine, or new weights."""
    refused_by: dict[str, KeptAnswer] = field(default_factory=dict)
    """503 answers by engine."""
    passed_on: bool = False
    """The client may have got a piece of an engine's answer."""


class Legs:
    """Sends requests to engines."""

    def __init__(self, fleet: Fleet, pause: PauseGate, upstream: Upstream) -> None:
        self._fleet = fleet
        self._pause = pause
        self._upstream = upstream

    def send(self, turn: Turn, leg: Leg, engine: str, data: bytes) -> Coroutine[Any, Any, Answer]:
        """Send the client's request with this body; to be awaited: the answer, once its head is there.

        Raises:
            Unreachable: the engine has seen nothing of the request.
            NotSent: nor here: weights were synchronised before there was a connection.
            ConnectionLost: it may have.
        """
        arrival, received, _ = turn.intake
        known = self._fleet.engines.get(engine)
        if known is None:
            raise Unreachable(f"engine {engine} is no longer part of the pool")
        headers = headers_for_engine(turn.exchange.head.headers)
        headers.append((b"X-Session-ID", encode(arrival.session)))
        headers.append((b"X-Request-Id", encode(received.request_id)))
        if (traceparent := turn.watch.sent(leg, engine)) is not None:
            headers.append(traceparent)
        rest, length = None, None
        if not received.body.complete and leg is Leg.ENGINE:
            rest, length = received.body.rest(), received.body.length
        return self._upstream.request(
            Origin.of(known.url),
            "POST",
            received.target.path,
            headers,
            data,
            rest=rest,
            length=length,
            may_send=partial(self._pause.has_stayed_open, self._pause.epoch),
        )


def verdict(status: int) -> bool | None:
    """What an answer's status says of its engine's health; nothing where the request was at fault."""
    if status >= 500:
        return False
    return True if status < 300 else None


async def keep(answer: Answer) -> KeptAnswer:
    """Read an answer whole."""
    headers = end_to_end(answer.head.headers, drop=frozenset({b"content-length"}))
    return KeptAnswer(answer.head.status, headers, await answer.read())
