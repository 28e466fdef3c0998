"""Writing the status: the structural part and the admission part together, and only what changed."""

from __future__ import annotations

from rolloutpool_api.moments import rfc3339
from rolloutpool_operator.core.events import PoolEvent, status_events
from rolloutpool_operator.core.status import compose, status_patch
from rolloutpool_operator.memory import PoolMemory
from rolloutpool_operator.platform import Clock, Platform, Report


async def write_status(
    platform: Platform, memory: PoolMemory, *, clock: Clock, events: tuple[PoolEvent, ...] = ()
) -> bool:
    """Write the status of a pool if it changed, and tell what changed as Events.

    Args:
        platform: where to.
        memory: of the pool, with what was decided.
        clock: Unix seconds.
        events: Events of actions, told whether or not the status changed.

    Returns:
        Whether a status was written.

    Raises:
        StatusConflict, PoolGone, PlatformError: as `Platform.report`.
    """
    async with memory.lock:
        if memory.observed is None or memory.structure is None:
            return False
        now = clock()
        new = compose(memory.structure, memory.report, stored=memory.stored, now=rfc3339(now))
        patch = status_patch(memory.stored, new)
        told = memory.untold((*events, *status_events(memory.stored, new)), now)
        if not patch and not told:
            return False
        observed = memory.observed
        memory.statuses.append(new)
        memory.resource_version = await platform.report(
            Report(
                key=observed.key,
                uid=observed.uid,
                resource_version=memory.resource_version,
                patch=patch,
                events=told,
            )
        )
        memory.stored = new
        return bool(patch)
