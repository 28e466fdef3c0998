"""The way to the engines: bytes out, bytes back, unchanged.

No total or read timeout, since a generation may take an hour; a short connect timeout, since an engine that
is there accepts at once. Nothing is decompressed, re-encoded or buffered.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from multidict import CIMultiDict

CONNECT_TIMEOUT_SECONDS = 5.0
KEEPALIVE_SECONDS = 4.0
"""How long an idle connection to an engine is kept; vLLM closes its own after 5 s by default."""
READ_CHUNK_BYTES = 256 * 1024
WHOLE_BODY_BYTES = 1024 * 1024
"""Larger bodies are sent piece by piece, so that one does not hold up the others."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that speak of one connection (RFC 9110, section 7.6.1)."""
_OF_THE_REQUEST = frozenset({"host", "content-length", "content-encoding", "expect"})
"""Request headers that are made anew: the body was read, and decompressed where it was compressed."""


class Unreachable(Exception):
    """No connection to the engine: it has seen nothing of the request."""


class EngineLost(Exception):
    """The connection broke after the request was sent: it may have run."""


def forwarded_headers(headers: Mapping[str, str], *, drop: frozenset[str] = frozenset()) -> CIMultiDict[str]:
    """End-to-end headers: without those of one connection, those named in Connection, and `drop`."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    unwanted = HOP_BY_HOP | named | drop
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in unwanted)


def request_headers(headers: Mapping[str, str], *, session: str, request_id: str) -> CIMultiDict[str]:
    """Headers for an engine: the client's, and the names of session and request."""
    forwarded = forwarded_headers(headers, drop=_OF_THE_REQUEST)
    forwarded["X-Session-ID"] = session
    forwarded["X-Request-Id"] = request_id
    return forwarded


class Upstream:
    """HTTP client for the engines."""

    def __init__(self) -> None:
        """Must be called within a running event loop."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_SECONDS),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_CHUNK_BYTES,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    @asynccontextmanager
    async def post(
        self, url: str, *, headers: Mapping[str, str], data: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; the answer once its headers are there. Leaving early closes the connection.

        Raises:
            Unreachable: no connection was made.
            EngineLost: it broke later, also while the body is read inside the block.
        """
        body = data if len(data) <= WHOLE_BODY_BYTES else io.BytesIO(data)
        async with self._request("POST", url, headers=headers, data=body) as response:
            yield response

    @asynccontextmanager
    async def get(self, url: str, *, timeout: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """Read something small, within `timeout` seconds; raises as `post`."""
        async with self._request("GET", url, timeout=aiohttp.ClientTimeout(total=timeout)) as response:
            yield response

    @asynccontextmanager
    async def _request(self, method: str, url: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(method, url, allow_redirects=False, **options) as response:
                try:
                    yield response
                except BaseException:
                    response.close()
                    raise
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(f"{url}: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineLost(f"{url}: {error}") from error
