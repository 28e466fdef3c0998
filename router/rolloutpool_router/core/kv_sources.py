"""Where the engines of a pool publish their KV events."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from rolloutpool_router.core.view import Engine, PoolView


@dataclass(frozen=True)
class KvSource:
    """An engine's publisher, and how its blocks are read."""

    events: str
    """ZeroMQ address that it publishes at."""
    replay: str
    """ZeroMQ address at which it repeats past batches."""
    model: str
    """Name of the base model."""
    block_size: int
    """Tokens of a KV block."""


def kv_sources(view: PoolView | None) -> dict[str, KvSource]:
    """Publishers by engine; none where the pool does not enable KV events."""
    if view is None or not view.spec.engine.kv_events.enabled:
        return {}
    found = ((engine.name, _source(engine, view)) for engine in view.engines.values())
    return {name: source for name, source in found if source is not None}


def _source(engine: Engine, view: PoolView) -> KvSource | None:
    try:
        host = urlsplit(engine.url).hostname
    except ValueError:
        return None
    if not host:
        return None
    host = f"[{host}]" if ":" in host else host
    events = view.spec.engine.kv_events
    return KvSource(
        events=f"tcp://{host}:{engine.kv_events_port or events.port}",
        replay=f"tcp://{host}:{engine.kv_replay_port or events.replay_port}",
        model=view.spec.model.name,
        block_size=view.spec.engine.block_size,
    )
