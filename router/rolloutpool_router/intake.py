"""From a request to an arrival: read it, check it, find its session and class."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from rolloutpool_router.bodies import MAX_BODY_BYTES, NO_FIELDS, Body, Budget, Fields, Placing
from rolloutpool_router.core import identity
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.ownership import session_key
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.core.prompts import read_prompt
from rolloutpool_router.core.requests import Arrival
from rolloutpool_router.core.view import PoolView
from rolloutpool_router.paths import Target
from rolloutpool_router.usage import BYTES_PER_TOKEN
from rolloutpool_router.wire.server import Exchange

_PROCESS = uuid.uuid4().hex[:16]
_COUNT = itertools.count()
TOO_LARGE = Refusal(Outcome.TOO_LARGE, f"the body is longer than {MAX_BODY_BYTES} bytes: send less")

UNPLACED = (), None, False
"""What is asked of a prompt whose session has a place."""


class Received:
    """A request that was read; looked into only as far as somebody asks."""

    __slots__ = (
        "_fields",
        "_placing",
        "_session",
        "_session_known",
        "body",
        "headers",
        "request_id",
        "target",
        "view",
    )

    def __init__(
        self, target: Target, headers: Mapping[str, str], body: Body, *, request_id: str, view: PoolView
    ) -> None:
        """Look into nothing yet.

        Args:
            target: what is asked for.
            headers: with lower-case names.
            body: read as far as its window.
            request_id: the client's X-Request-Id, else one made here.
            view: the pool as it is known now.
        """
        self.target = target
        self.headers = headers
        self.body = body
        self.request_id = request_id
        self.view = view
        self._fields: Fields | Refusal | None = None
        self._session: str | Refusal | None = None
        self._session_known = False
        self._placing: Placing | None = None

    @property
    def fields(self) -> Fields | Refusal:
        """The body's fields; none of one that is longer than the window."""
        if self._fields is None:
            body = self.body
            self._fields = body.budget.lately.split(body.first) if body.complete else NO_FIELDS
        return self._fields

    @property
    def session(self) -> str | Refusal | None:
        """The session that the request names, None if it names none; a header spares splitting the body."""
        if not self._session_known:
            self._session, self._session_known = self._named_session(), True
        return self._session

    @property
    def placing(self) -> Placing:
        """What is asked of the prompt to find it a place; of a body longer than the window its beginning."""
        if self._placing is None:
            spec, fields = self.view.spec, self.fields
            model, block_size = spec.model.name, spec.engine.block_size
            if self.body.complete and isinstance(fields, Fields):
                self._placing = fields.placing(model, block_size)
            else:
                prompt = read_prompt({"prompt": self.body.first}, model=model, block_size=block_size)
                self._placing = Placing.of(prompt, has_history=False)
        return self._placing

    def owned_as(self) -> bytes | None:
        """What tells whose the request is: its session, else its prompt, so that samples of one prompt meet.

        None where that cannot be told: any router can refuse it.
        """
        if isinstance(self.session, str):
            return session_key(self.session)
        if self.session is None and isinstance(self.fields, Fields):
            return self.placing.group
        return None

    def release(self) -> None:
        """Let the body go: it is not sent again."""
        self.body.release()
        self._fields = NO_FIELDS
        self._placing = None

    def _named_session(self) -> str | Refusal | None:
        if self.target.session is not None:
            return identity.checked_session(self.target.session, "the path")
        named = identity.session_in_headers(self.headers)
        if named is not None:
            return named
        fields = self.fields
        return identity.session_in_body(fields) if isinstance(fields, Fields) else fields


class Intake(NamedTuple):
    """A request that may be served."""

    arrival: Arrival
    received: Received
    streaming: bool
    """Whether the client asked for an event stream."""

    def at(self, home: str | None) -> Intake:
        """The same, of a session whose KV this engine is told to hold."""
        return self._replace(arrival=replace(self.arrival, home=home))


async def receive(exchange: Exchange, target: Target, budget: Budget, view: PoolView) -> Received | Refusal:
    """Read a request as far as it must be known; a Refusal says what to send instead."""
    repeated = exchange.head.headers.repeated
    refusal = identity.repeated_session(repeated) or identity.repeated_class(repeated)
    if refusal is not None:
        return refusal
    length = exchange.body_length
    if length is not None and length > MAX_BODY_BYTES:
        return TOO_LARGE
    with budget.reserved(length) as window:
        first = await exchange.read_body(window)
    headers = exchange.head.headers.lower
    encoding = headers.get("content-encoding")
    body = Body(first, exchange.body_complete, length, exchange, budget)
    if encoding is not None and encoding.lower() != "identity":
        body.release()
        return Refusal(
            Outcome.INVALID_BODY,
            "the body is compressed, which engines do not read: send it as plain JSON",
            status=415,
        )
    return Received(target, headers, body, request_id=headers.get("x-request-id") or _made_up(), view=view)


def take(received: Received, controller: AdmissionController, peers: Peers, now: float) -> Intake | Refusal:
    """What the request asks for; a Refusal says what to send instead. `now`: seconds of the peers' clock."""
    fields = received.fields
    if isinstance(fields, Refusal):
        return fields
    view = controller.view or received.view
    if (refusal := identity.unknown_model(fields, view.models)) is not None:
        return refusal
    session = received.session
    if isinstance(session, Refusal):
        return session
    admitted_as = controller.class_of(session) if session is not None else None
    class_name = identity.rollout_class(
        received.headers,
        fields,
        path_class=received.target.class_name,
        session=session,
        admitted_as=admitted_as,
        workloads=view.workloads,
    )
    if isinstance(class_name, Refusal):
        return class_name if received.body.complete else _name_in_headers(class_name, received.body)
    stray = False
    if session is not None and admitted_as is None:
        pause = view.idle_seconds[class_name]
        stray = peers.may_have_had(session_key(session), now, within=pause)
    arrival = _arrival(received, session, class_name, stray=stray, placed=_is_placed(session, controller))
    return Intake(arrival, received, fields.get("stream") is True)


def _arrival(
    received: Received, session: str | None, class_name: str, *, stray: bool, placed: bool
) -> Arrival:
    """The request for admission; `placed`: a place must be found for it."""
    keys, group, history = received.placing if placed else UNPLACED
    return Arrival(
        session=session if session is not None else f"single-{_made_up()}",
        class_name=class_name,
        prefix=keys,
        single=session is None,
        has_history=history,
        prompt_tokens=received.body.size // BYTES_PER_TOKEN,
        group=group if not history else None,
        stray=stray,
    )


def _made_up() -> str:
    """An id that nobody else has: random by process, then counted, since each UUID costs a system call."""
    return f"{_PROCESS}{next(_COUNT):016x}"


def _is_placed(session: str | None, controller: AdmissionController) -> bool:
    """Whether a place must be found for the request: hashing a long prompt costs up to a millisecond."""
    resident = session is not None and controller.table.get(session) is not None
    return not resident or controller.fleet.has_prefill


def _name_in_headers(refusal: Refusal, body: Body) -> Refusal:
    hint = f"; a body over {len(body.first)} bytes is not searched for it"
    return replace(refusal, message=refusal.message + hint)
