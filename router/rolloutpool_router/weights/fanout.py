"""Sends one control call to many engines at once, and collects what each answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rolloutpool_router.core.weight_calls import EngineResult
from rolloutpool_router.core.weights import Observation
from rolloutpool_router.wire.client import ConnectionLost, Origin, Unreachable, Upstream
from rolloutpool_router.wire.heads import origin_form

CALL_SECONDS = 3600.0
"""How long an engine may take to answer a call that changes something: a weight update, or a pause that waits
for all running requests, may take many minutes."""
READ_SECONDS = 10.0
"""The same for a call that only asks."""
LOOK_SECONDS = 5.0
"""The same for the router's own look at an engine, for which control calls wait."""
MAX_ANSWER_BYTES = 16 * 2**20
UNREACHABLE, TIMED_OUT = 502, 504


class Engines:
    """Sends control calls. Each goes over a connection of its own, and none is sent twice.

    A kept connection may be closed by its engine just when a call is sent: nobody would know what came of it.
    """

    def __init__(self) -> None:
        self._upstream = Upstream(most_idle=0)

    async def close(self) -> None:
        """Close all connections."""
        await self._upstream.close()

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
        headers = [(b"Content-Type", b"application/json")] if body else []
        error, status, refused = "", UNREACHABLE, False
        try:
            async with asyncio.timeout(limit):
                origin, path = Origin.of(url), origin_form(url + target)
                async with await self._upstream.request(origin, method, path, headers, body) as answer:
                    head = answer.head
                    return EngineResult(
                        engine=engine,
                        url=url,
                        status=head.status,
                        body=await answer.read(MAX_ANSWER_BYTES),
                        content_type=head.headers.get("content-type") or "application/json",
                    )
        except (Unreachable, ValueError) as failure:
            error, refused = f"no connection: {failure}", True
        except TimeoutError:
            error, status = f"no answer within {limit:.0f} s", TIMED_OUT
        except ConnectionLost as failure:
            error = f"the connection broke: {failure}"
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


def _connected(info: EngineResult, pause: EngineResult) -> bool | None:
    if info.refused and pause.refused:
        return False
    return None if info.error and pause.error else True
