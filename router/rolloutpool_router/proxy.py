"""The way to the engines and to other routers: bytes out, bytes back, unchanged.

No total or read timeout, since a generation may take an hour; a short connect timeout, since an engine that
is there accepts at once. Nothing is decompressed, re-encoded or buffered.
"""

from __future__ import annotations

import io
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from multidict import CIMultiDict

CONNECT_TIMEOUT_SECONDS = 5.0
ROUTER_CONNECT_SECONDS = 1.0
"""The same for another router, which is near: a request waits for it before the next router is tried."""
KEEPALIVE_SECONDS = 4.0
"""How long an idle connection to an engine is kept; vLLM closes its own after 5 s by default."""
PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""TCP keepalive of quiet connections: a machine that is gone without a word is noticed within 35 s."""
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
FORWARDED = "X-RolloutPool-Forwarded"
"""Request header: the router that passed the request on. Such a request is served where it arrives."""
_OF_THE_REQUEST = frozenset({"host", "content-length", "content-encoding", "expect", FORWARDED.lower()})
"""Request headers that are made anew: the body was read, and decompressed where it was compressed."""


class Unreachable(Exception):
    """No connection to the engine (or router): it has seen nothing of the request."""


class EngineLost(Exception):
    """The connection broke after the request was sent: it may have run."""


def forwarded_headers(headers: Mapping[str, str], *, drop: frozenset[str] = frozenset()) -> CIMultiDict[str]:
    """End-to-end headers: without those of one connection, those named in Connection, and `drop`."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    unwanted = HOP_BY_HOP | named | drop
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in unwanted)


def request_headers(headers: Mapping[str, str], own: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers of a request that is passed on: the client's, and the router's own."""
    forwarded = forwarded_headers(headers, drop=_OF_THE_REQUEST)
    forwarded.update(own)
    return forwarded


async def chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it arrives; raises EngineLost where it breaks off."""
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, OSError) as error:
        raise EngineLost(str(error)) from error


class Upstream:
    """HTTP client for the engines and the other routers."""

    def __init__(self) -> None:
        """Must be called within a running event loop."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_SECONDS),
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEPALIVE_SECONDS, socket_factory=_probed_socket
            ),
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
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        data: bytes,
        timeout: float | None = None,
        connect: float = CONNECT_TIMEOUT_SECONDS,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; the answer once its headers are there. Leaving early closes the connection.

        Args:
            url: where to.
            headers: sent as they are.
            data: the body.
            timeout: for all of it, in seconds; None: none.
            connect: for the connection, in seconds.

        Raises:
            Unreachable: no connection was made.
            EngineLost: it broke later, also while the body is read inside the block.
        """
        body = data if len(data) <= WHOLE_BODY_BYTES else io.BytesIO(data)
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=connect)
        async with self._request("POST", url, headers=headers, data=body, timeout=limit) as response:
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


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        if (option := getattr(socket, name, None)) is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
