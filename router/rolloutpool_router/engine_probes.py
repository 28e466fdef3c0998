"""Asks every engine for its models, for ever: a port that answers is not yet a model that is loaded.

Each engine is asked by a task of its own, so that one that hangs delays no other. The answers say whether an
engine is there (`Fleet.probed`); that its generations succeed only they can say. An engine that has been
silent for long while it owes tokens is also asked whether it is paused: trainers do that for new weights.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from random import Random

from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.standing import Standing
from rolloutpool_router.wire.client import ConnectionLost, Unreachable, Upstream, fetch

log = logging.getLogger(__name__)

PERIOD_SECONDS = 5.0
"""How often an engine that is up is asked, on average."""
SICK_PERIOD_SECONDS = 2.0
"""How often any other engine is asked, and one that left a probe unanswered: how late it may be noticed."""
TIMEOUT_SECONDS = 5.0
"""How long an answer may take: an engine that reads a body of hundreds of megabytes answers late."""
MAX_ANSWER_BYTES = 2**20
"""Longer lists of models are no answer."""
SPREAD = 0.2
"""Part of a period by which each pause differs at random, so that engines are not asked all at once."""
LOOK_SECONDS = 0.5
"""How often engines that are new in the pool are looked for."""
BAD = frozenset({Standing.EJECTED, Standing.STALE_WEIGHTS, Standing.UNREACHABLE})
"""Standings that are worth a warning."""


async def watch_engines(
    fleet: Fleet,
    upstream: Upstream,
    *,
    clock: Callable[[], float] = time.monotonic,
    rng: Random | None = None,
) -> None:
    """Ask the engines that the fleet lists, and tell it what they answer.

    Args:
        fleet: learns of the answers.
        upstream: carries the requests.
        clock: monotonic seconds.
        rng: spreads the requests.
    """
    spread = rng or Random()
    asked: set[str] = set()
    told: dict[str, Standing] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            told = _tell_changes(fleet, told, clock())
            for name in fleet.engines.keys() - asked:
                asked.add(name)
                task = group.create_task(_watch_engine(name, fleet, upstream, clock, spread))
                task.add_done_callback(lambda _, name=name: asked.discard(name))  # type: ignore[misc]
            await asyncio.sleep(LOOK_SECONDS)


def _tell_changes(fleet: Fleet, told: Mapping[str, Standing], now: float) -> dict[str, Standing]:
    """Log which engines stand otherwise than before; how all stand."""
    states = {name: fleet.state(name, now) for name in fleet.engines}
    for name, state in states.items():
        if told.get(name, Standing.UP) is not state.standing:
            level = logging.WARNING if state.standing in BAD else logging.INFO
            log.log(level, "engine %s is %s: %s", name, state.standing.value, state.reason)
    return {name: state.standing for name, state in states.items()}


async def _watch_engine(
    name: str, fleet: Fleet, upstream: Upstream, clock: Callable[[], float], spread: Random
) -> None:
    """Ask one engine until it is no longer listed."""
    await asyncio.sleep(spread.uniform(0, LOOK_SECONDS))
    while (engine := fleet.engines.get(name)) is not None:
        try:
            answer = await serves(upstream, engine.url)
        except Unreachable:
            fleet.failed(name, clock())
            answer = False
        fleet.probed(name, serves=answer)
        if fleet.stalls.is_suspect(name) and await is_paused(upstream, engine.url):
            fleet.stalls.excuse(name)
        is_well = answer is not False and fleet.state(name, clock()).standing is Standing.UP
        period = PERIOD_SECONDS if is_well else SICK_PERIOD_SECONDS
        await asyncio.sleep(period * spread.uniform(1 - SPREAD, 1 + SPREAD))


async def serves(upstream: Upstream, url: str) -> bool | None:
    """Whether an engine has its model loaded, as its readiness probe asks; None: it answers 4xx.

    Raises:
        Unreachable: there is nobody.
    """
    try:
        answer = await fetch(
            upstream, "GET", f"{url}/v1/models", timeout=TIMEOUT_SECONDS, limit=MAX_ANSWER_BYTES
        )
    except (ConnectionLost, ValueError):
        return False
    if 400 <= answer.status < 500:
        return None
    return 200 <= answer.status < 300


async def is_paused(upstream: Upstream, url: str) -> bool:
    """Whether an engine says that it is paused (`GET /is_paused` of vLLM's development mode)."""
    try:
        answer = await fetch(
            upstream, "GET", f"{url}/is_paused", timeout=TIMEOUT_SECONDS, limit=MAX_ANSWER_BYTES
        )
        body = json.loads(answer.body) if answer.status == 200 else {}
    except (Unreachable, ConnectionLost, ValueError):
        return False
    return isinstance(body, dict) and body.get("is_paused") is True
