"""What a local run is asked to do, and the manifest that follows from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutpool_api.planning import Role
from rolloutpool_api.urls import is_http_url


class InvalidOptions(ValueError):
    """A run cannot be done as asked; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class GivenEngine:
    """An engine that already runs somewhere."""

    role: Role
    url: str
    """Base URL without /v1."""


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """One local run."""

    manifest: Path
    folder: Path
    """State folder."""
    router_port: int
    """Port of the router on the loopback interface, not 0."""
    python: str
    """Interpreter that runs engines and router."""
    weights_port: int = 0
    """Port of the router for weight synchronisation, where the pool has it; 0: a free one."""
    engines: tuple[GivenEngine, ...] = ()
    """Engines to use instead of starting any; empty: the plan's are started."""


def parse_engines(texts: Sequence[str]) -> tuple[GivenEngine, ...]:
    """Read engines written as URL or ROLE=URL.

    Raises:
        InvalidOptions: one is not written so, or prefill comes without decode or the other way round.
    """
    engines = tuple(_parse_engine(text) for text in texts)
    roles = {engine.role for engine in engines}
    if (Role.PREFILL in roles) != (Role.DECODE in roles):
        raise InvalidOptions(
            "prefill engines need decode engines and the other way round: give one of each at least"
        )
    return engines


def with_given_engines(manifest: Mapping[str, Any], engines: Sequence[GivenEngine]) -> dict[str, Any]:
    """The manifest with its planning replaced by the given engines; unchanged where there are none."""
    if not engines:
        return dict(manifest)
    counts = {role: sum(engine.role is role for engine in engines) for role in Role}
    replicas = [{"role": str(role), "replicas": count} for role, count in counts.items() if count]
    planning = {**manifest["spec"].get("planning", {}), "mode": "Manual", "replicas": replicas}
    planning.pop("allowedParallelism", None)
    gpus = {**manifest["spec"]["gpus"], "budget": max(len(engines), manifest["spec"]["gpus"]["budget"])}
    return {**manifest, "spec": {**manifest["spec"], "planning": planning, "gpus": gpus}}


def _parse_engine(text: str) -> GivenEngine:
    role, separator, url = text.partition("=")
    if not separator or role not in tuple(Role):
        role, url = Role.AGGREGATED, text
    if not is_http_url(url):
        raise InvalidOptions(
            f"{text!r} is no engine: write http://HOST:PORT, prefill=http://... or decode=http://..."
        )
    return GivenEngine(role=Role(role), url=url.rstrip("/").removesuffix("/v1"))
