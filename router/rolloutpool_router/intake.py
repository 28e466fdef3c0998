"""From an HTTP request to an arrival: read it, check it, find its session and class."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError

from rolloutpool_router.core import identity
from rolloutpool_router.core.controller import AdmissionController, Arrival
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.prefix import prefix_keys

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


async def read_intake(request: web.Request, controller: AdmissionController) -> Intake | Refusal:
    """Read a request; a Refusal says what to send instead."""
    if controller.view is None:
        return Refusal(Outcome.NOT_READY, "the router has not read its RolloutPool yet: try again")
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        return Refusal(Outcome.TOO_LARGE, f"the body is larger than {MAX_BODY_BYTES} bytes: send less")
    except (web.RequestPayloadError, ContentEncodingError) as error:
        return Refusal(Outcome.INVALID_BODY, f"the body cannot be read: {error}")
    body = parse_body(raw)
    if isinstance(body, Refusal):
        return body
    headers = {name.lower(): value for name, value in request.headers.items()}
    arrival = identify(headers, body, controller)
    if isinstance(arrival, Refusal):
        return arrival
    return Intake(arrival, body, raw, headers.get("x-request-id") or uuid.uuid4().hex)


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
    headers: Mapping[str, str], body: Mapping[str, Any], controller: AdmissionController
) -> Arrival | Refusal:
    """Session and class of a request; `headers` with lower-case names."""
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
    return Arrival(
        session=session if session is not None else f"single-{uuid.uuid4().hex}",
        class_name=class_name,
        prefix=prefix_keys(body) if _is_placed(session, controller) else (),
        single=session is None,
        has_history=identity.has_history(body),
    )


def _is_placed(session: str | None, controller: AdmissionController) -> bool:
    """Whether a place must be found for the request: hashing a long prompt costs up to a millisecond."""
    resident = session is not None and controller.table.get(session) is not None
    return not resident or controller.fleet.has_prefill
