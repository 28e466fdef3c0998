"""Sends one control call to many engines at once, and collects what each answered."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Mapping

import aiohttp

from rolloutpool_router.core.weight_calls import EngineResult
from rolloutpool_router.core.weights import Observation
from rolloutpool_router.wire.sockets import probe_socket

CONNECT_SECONDS = 5.0
"""How long an engine may take to accept a connection."""
CALL_SECONDS = 3600.0
"""How long an engine may take to answer a call that changes something: a weight update, or a pause that waits
for all running requests, may take many minutes."""
READ_SECONDS = 10.0
"""The same for a call that only asks."""
LOOK_SECONDS = 5.0
"""The same for the router's own look at an engine, for which control calls wait."""
MAX_ANSWER_BYTES = 16 * 2**20
WHOLE_BODY_BYTES = 2**20
"""Larger bodies are sent piece by piece, so that one does not hold up everything else."""
UNREACHABLE, TIMED_OUT = 502, 504


class Engines:
    """HTTP client for control calls. Each goes over a connection of its own, and none is sent twice."""

    def __init__(self) -> None:
        """Must be called within a running event loop."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_probed_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def ask_all(
        self,
        method: str,
        target: str,
        urls: Mapping[str, str],
        bodies: Mapping[str, bytes] | None = None,
        *,
        seconds: float | None = None,
    ) -> tuple[EngineResult, ...]:
        """Send a call to all engines at once; their answers in the order of `urls`.

        Args:
            method: GET or POST.
            target: path and query.
            urls: base URL by engine.
            bodies: body by engine; None: none.
            seconds: longest time until all answers; by default as the method needs.
        """
        own = bodies or {}
        calls = (
            self.ask(method, target, name, url, own.get(name, b""), seconds=seconds)
            for name, url in urls.items()
        )
        return tuple(await asyncio.gather(*calls))

    async def ask(
        self,
        method: str,
        target: str,
        engine: str,
        url: str,
        body: bytes = b"",
        *,
        seconds: float | None = None,
    ) -> EngineResult:
        """Send a call to one engine; what went wrong is told in the result.

        Args:
            method: GET or POST.
            target: path and query.
            engine: its name.
            url: its base URL.
            body: JSON; empty: none.
            seconds: longest time until the whole answer; by default as the method needs.
        """
        limit = seconds or (READ_SECONDS if method == "GET" else CALL_SECONDS)
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=CONNECT_SECONDS)
        headers = {"Content-Type": "application/json"} if body else {}
        error, status, refused = "", UNREACHABLE, False
        try:
            async with self._session.request(
                method,
                url + target,
                data=_payload(body),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                return await _read(engine, url, answer)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as failure:
            error, refused = f"no connection: {failure}", True
        except TimeoutError:
            error, status = f"no answer within {limit:.0f} s", TIMED_OUT
        except aiohttp.ClientError as failure:
            error = f"the connection broke: {failure or type(failure).__name__}"
        return EngineResult(engine=engine, url=url, status=status, error=error, refused=refused)

    async def look(self, engine: str, url: str) -> Observation:
        """What an engine says of its weights and its pause."""
        info, pause = await asyncio.gather(
            self.ask("GET", "/weight_info", engine, url, seconds=LOOK_SECONDS),
            self.ask("GET", "/is_paused", engine, url, seconds=LOOK_SECONDS),
        )
        version, paused = info.field("weight_version"), pause.field("is_paused")
        return Observation(
            connected=_connected(info, pause),
            version=version if info.ok and isinstance(version, str) else None,
            paused=paused if pause.ok and isinstance(paused, bool) else None,
        )


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    probe_socket(made)  # a machine that is gone is noticed within 35 s, not after CALL_SECONDS
    return made


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    if not body:
        return None
    return body if len(body) <= WHOLE_BODY_BYTES else io.BytesIO(body)


def _connected(info: EngineResult, pause: EngineResult) -> bool | None:
    if info.refused and pause.refused:
        return False
    return None if info.error and pause.error else True


async def _read(engine: str, url: str, answer: aiohttp.ClientResponse) -> EngineResult:
    pieces, size = [], 0
    async for piece in answer.content.iter_any():
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            answer.close()
            error = f"the answer is longer than {MAX_ANSWER_BYTES} bytes"
            return EngineResult(engine=engine, url=url, status=UNREACHABLE, error=error)
        pieces.append(piece)
    kind = answer.headers.get("Content-Type", "application/json")
    return EngineResult(
        engine=engine, url=url, status=answer.status, body=b"".join(pieces), content_type=kind
    )
