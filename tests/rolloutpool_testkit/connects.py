"""Connections to an engine that take their time, or fail, just when a test wants it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from rolloutpool_router.wire.client import Origin, Unreachable, Upstream
from rolloutpool_router.wire.engine import EngineConnection


@dataclass
class HeldConnects:
    """Requests to one engine, each with a connection of its own that is there once `go` is set."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    begun: int = 0
    """Connections that were asked for."""


def hold_connects(
    monkeypatch: pytest.MonkeyPatch, upstream: Upstream, url: str, *, fail: bool = False
) -> HeldConnects:
    """Hold the connections to `url` from now on; `fail`: none is made, then or later."""
    held, origin = HeldConnects(), Origin.of(url)
    connect, take = upstream._connect, upstream._take

    async def slowly(to: Origin, timeout: float) -> EngineConnection:
        if to != origin:
            return await connect(to, timeout)
        held.begun += 1
        connection = None if fail else await connect(to, timeout)
        await held.go.wait()
        if connection is None:
            raise Unreachable("nobody there")
        return connection

    monkeypatch.setattr(upstream, "_connect", slowly)
    monkeypatch.setattr(upstream, "_take", lambda to: None if to == origin else take(to))
    return held
