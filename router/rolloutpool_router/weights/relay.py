"""Passes requests of the weight listener on to the router's data port, bytes as they come both ways."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from rolloutpool_router.wire.heads import HOP_BY_HOP

_OF_ONE_CONNECTION = frozenset(name.decode() for name in HOP_BY_HOP)
_KEPT_HERE = frozenset({"host", "expect", "authorization"})
"""Request headers that are not passed on; the token above all."""
CONNECT_SECONDS = 5.0


class DataPort:
    """The router's own data port."""

    def __init__(self, url: str) -> None:
        """Must be called within a running event loop; `url` is a base URL."""
        self._url = url
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def relay(self, request: web.Request) -> web.StreamResponse:
        """The data port's answer; a client that leaves ends the request there too."""
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method,
                URL(self._url + request.raw_path, encoded=True),
                headers=_end_to_end(request.headers, _KEPT_HERE),
                data=request.content if request.body_exists else None,
                allow_redirects=False,
            ) as answer:
                response = web.StreamResponse(
                    status=answer.status,
                    reason=answer.reason,
                    headers=_end_to_end(answer.headers, frozenset()),
                )
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except aiohttp.ClientError as error:
            if response is None:
                return web.json_response({"error": {"message": f"the data port: {error}"}}, status=502)
            if request.transport is not None:
                request.transport.abort()
            return response
        except ConnectionResetError:
            assert response is not None
            return response


def _end_to_end(headers: Mapping[str, str], drop: frozenset[str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    unwanted = _OF_ONE_CONNECTION | named | drop
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in unwanted)
