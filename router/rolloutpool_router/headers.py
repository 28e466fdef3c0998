"""Headers of requests that the router passes on."""

from __future__ import annotations

from rolloutpool_router.wire.heads import OF_THE_REQUEST, Headers, end_to_end

FORWARDED = "X-RolloutPool-Forwarded"
"""Request header: the router that passed the request on. Such a request is served where it arrives."""
_OWN = frozenset({b"x-session-id", b"x-request-id", b"traceparent", FORWARDED.lower().encode()})
_TO_ENGINES = OF_THE_REQUEST | _OWN
_TO_ROUTERS = OF_THE_REQUEST | _OWN - {b"x-session-id"}


def headers_for_engine(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The client's end-to-end headers, but for those that the router makes itself."""
    return end_to_end(headers, _TO_ENGINES)


def headers_for_router(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The same for another router, which must find the session for itself."""
    return end_to_end(headers, _TO_ROUTERS)
