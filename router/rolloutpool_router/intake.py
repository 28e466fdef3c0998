"""From an HTTP request to an arrival: read it, check it, find its session and class."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError

from rolloutpool_router.core import identity
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.ownership import session_key
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.core.prefix import read_prompt
from rolloutpool_router.core.requests import Arrival
from rolloutpool_router.usage import BYTES_PER_TOKEN

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Largest request body: it is held while its session waits, and reading its JSON holds up the others."""


@dataclass(frozen=True)
class Intake:
    """A request that may be served."""

    arrival: Arrival
    body: Mapping[str, Any]
    """The parsed body."""
    raw: bytes
    """The body as it came; this is what is forwarded."""
    request_id: str
    """The client's X-Request-Id, else one made here."""

    def at(self, home: str | None) -> Intake:
        """The same, of a session whose KV this engine is told to hold."""
        return replace(self, arrival=replace(self.arrival, home=home))


@dataclass(frozen=True)
class Received:
    """A request that was read; looked into only as far as somebody asks."""

    headers: Mapping[str, str]
    """With lower-case names."""
    raw: bytes
    request_id: str

    @cached_property
    def body(self) -> dict[str, Any] | Refusal:
        """The parsed body."""
        return parse_body(self.raw)

    @cached_property
    def session(self) -> str | Refusal | None:
        """The session that the request names, None where it names none; a header spares parsing the body."""
        named = identity.session_id(self.headers, {})
        if named is not None:
            return named
        return identity.session_id(self.headers, self.body) if isinstance(self.body, dict) else self.body

    def owned_as(self) -> bytes | None:
        """What tells whose the request is: its session, else its prompt, so that samples of one prompt meet.

        None where that cannot be told: any router can refuse it.
        """
        if isinstance(self.session, str):
            return session_key(self.session)
        if self.session is None and isinstance(self.body, dict):
            return read_prompt(self.body).group()
        return None


async def receive(request: web.Request) -> Received | Refusal:
    """Read a request; a Refusal says what to send instead."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return Refusal(Outcome.TOO_LARGE, f"the body is larger than {MAX_BODY_BYTES} bytes: send less")
    except (web.RequestPayloadError, ContentEncodingError) as error:
        return Refusal(Outcome.INVALID_BODY, f"the body cannot be read: {error}")
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Received(headers, raw, headers.get("x-request-id") or uuid.uuid4().hex)


def take(received: Received, controller: AdmissionController, peers: Peers, now: float) -> Intake | Refusal:
    """What the request asks for; a Refusal says what to send instead. `now`: seconds of the peers' clock."""
    body = received.body
    if isinstance(body, Refusal):
        return body
    arrival = identify(received.headers, body, controller, size=len(received.raw))
    if isinstance(arrival, Refusal):
        return arrival
    if not arrival.single and controller.class_of(arrival.session) is None and controller.view is not None:
        pause = controller.view.workloads[arrival.class_name].idle_seconds()
        stray = peers.may_have_had(session_key(arrival.session), now, within=pause)
        arrival = replace(arrival, stray=stray)
    return Intake(arrival, body, received.raw, received.request_id)


def parse_body(raw: bytes) -> dict[str, Any] | Refusal:
    """The JSON object of a body."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return Refusal(Outcome.INVALID_BODY, f"the body is no valid JSON: {error}")
    if not isinstance(body, dict):
        kind = type(body).__name__
        return Refusal(Outcome.INVALID_BODY, f"the body must be a JSON object, it is a {kind}")
    return body


def identify(
    headers: Mapping[str, str], body: Mapping[str, Any], controller: AdmissionController, *, size: int
) -> Arrival | Refusal:
    """Session and class of a request.

    Args:
        headers: with lower-case names.
        body: parsed.
        controller: knows the pool and its sessions.
        size: bytes of the body, which tell about the length of the prompt.
    """
    view = controller.view
    if view is None:
        return Refusal(Outcome.NOT_READY, "the router has not read its RolloutPool yet: try again")
    if (refusal := identity.unknown_model(body, view.models)) is not None:
        return refusal
    session = identity.session_id(headers, body)
    if isinstance(session, Refusal):
        return session
    class_name = identity.rollout_class(
        headers,
        body,
        session=session,
        admitted_as=controller.class_of(session) if session is not None else None,
        workloads=view.workloads,
    )
    if isinstance(class_name, Refusal):
        return class_name
    has_history = identity.has_history(body)
    prompt = read_prompt(body) if _is_placed(session, controller) else None
    return Arrival(
        session=session if session is not None else f"single-{uuid.uuid4().hex}",
        class_name=class_name,
        prefix=prompt.prefix_keys() if prompt is not None else (),
        single=session is None,
        has_history=has_history,
        prompt_tokens=size // BYTES_PER_TOKEN,
        group=prompt.group() if prompt is not None and not has_history else None,
    )


def _is_placed(session: str | None, controller: AdmissionController) -> bool:
    """Whether a place must be found for the request: hashing a long prompt costs up to a millisecond."""
    resident = session is not None and controller.table.get(session) is not None
    return not resident or controller.fleet.has_prefill
