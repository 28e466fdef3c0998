"""A fleet to try: engines as a status lists them, and generations that end as told."""

from __future__ import annotations

from typing import Any

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.health import EJECT_FAILURES
from rolloutpool_router.core.standing import Standing
from rolloutpool_router.core.view import Ignored, accept


def endpoint(name: str, **fields: Any) -> dict[str, Any]:
    """An engine as the status lists it; ready unless fields say otherwise."""
    known = {"name": name, "role": "aggregated", "url": f"http://{name}", "ready": True, "revision": "r1"}
    return known | fields


def apply(fleet: Fleet, *endpoints: dict[str, Any]) -> None:
    """Let it read a status that lists these engines."""
    pool = parse_pool(
        {
            "apiVersion": "rolloutpool.dev/v1alpha1",
            "kind": "RolloutPool",
            "metadata": {"name": "pool", "namespace": "default", "uid": "uid-1", "generation": 1},
            "spec": {
                "model": {"name": "m"},
                "gpus": {"budget": 8},
                "workloads": [{"name": "rlvr", "share": 1.0}],
            },
            "status": {"endpoints": {"admin": list(endpoints)}},
        }
    )
    view = accept(None, pool)
    assert not isinstance(view, Ignored)
    fleet.apply(view)


def fleet_of(*names: str, **fields: Any) -> Fleet:
    """A fleet of these engines, by default e0 and e1."""
    fleet = Fleet()
    apply(fleet, *(endpoint(name, **fields) for name in names or ("e0", "e1")))
    return fleet


def generate(fleet: Fleet, engine: str, now: float, *, ok: bool | None) -> bool:
    """One short generation; False if it may not be sent."""
    attempt = fleet.generation_begins(engine, now)
    if attempt is not None:
        fleet.generation_ended(attempt, now, ok=ok)
    return attempt is not None


def fail(fleet: Fleet, engine: str = "e0", now: float = 0.0, times: int = EJECT_FAILURES) -> None:
    """Generations that fail, by default until the engine is ejected."""
    for _ in range(times):
        assert generate(fleet, engine, now, ok=False)


def up(fleet: Fleet, now: float = 0.0) -> set[str]:
    """Engines that take new sessions."""
    return {name for name in fleet.engines if fleet.is_up(name, now)}


def reachable(fleet: Fleet, now: float = 0.0) -> set[str]:
    """Engines that go on with their sessions."""
    return {name for name in fleet.engines if fleet.reachable(name, now)}


def standing(fleet: Fleet, engine: str = "e0", now: float = 0.0) -> Standing:
    """How an engine stands."""
    return fleet.state(engine, now).standing
