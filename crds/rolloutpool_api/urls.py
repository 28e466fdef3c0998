"""Which addresses of engines and routers can be used. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_http_url(url: str) -> bool:
    """Whether it is an http URL with a host and, if any, a proper port: routers speak plain HTTP only."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # raises where it is no port
    except ValueError:
        return False
    return parts.scheme == "http" and host != "" and host.isprintable() and " " not in host
