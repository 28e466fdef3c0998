"""The admission loop: reads routers and engines every period and keeps the caps in the status current."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from rolloutpool_api.conditions import Condition, ConditionType
from rolloutpool_api.planning import Role
from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_operator.core.events import PoolEvent, caps_event
from rolloutpool_operator.core.kv_costs import offload_blocks, park_seconds
from rolloutpool_operator.core.mixture import FAILURES, Trouble, informational, mixture_status
from rolloutpool_operator.core.observed import EngineFacts, Observed, PoolKey
from rolloutpool_operator.core.status import AdmissionReport
from rolloutpool_operator.memory import EngineReading, Memories, PoolMemory
from rolloutpool_operator.platform import Clock, Platform, PlatformError, StatusConflict
from rolloutpool_operator.reader import Reader, ReadError
from rolloutpool_operator.reporting import write_status
from rolloutpool_router.core.control import EngineCapacity, full_engines
from rolloutpool_router.core.grants import wrote
from rolloutpool_router.core.pressure import CALM, INTERVAL_SECONDS, Pressure, interval, step
from rolloutpool_router.core.proposal import propose

PERIOD_SECONDS = 2.0
"""Least time between two status writes of one pool."""
CAPS_EVENT_SECONDS = 60.0
"""Least time between two Events about a pool's caps, in seconds."""
CONCURRENT_READS = 64

T = TypeVar("T")
logger = logging.getLogger(__name__)


async def admission_tick(
    platform: Platform, key: PoolKey, memory: PoolMemory, *, clock: Clock, reader: Reader
) -> bool:
    """Look at one pool once; writes its status if that matters. Returns whether it did.

    Raises:
        PlatformError: where the status could not be written.
    """
    observed = memory.observed
    if observed is None or observed.pool is None or memory.structure is None or observed.deleting:
        return False
    spec = observed.pool.spec
    limit = asyncio.Semaphore(CONCURRENT_READS)
    answers, _ = await asyncio.gather(
        _read_routers(observed, memory, reader, limit),
        _read_engines(observed, spec, memory, reader, limit, clock()),
    )
    report = _report(observed, spec, memory, answers, clock())
    if report is None:
        return False
    memory.report = report
    written = await write_status(platform, memory, clock=clock, events=_caps_events(memory, clock()))
    if report.admission is not None and memory.stored.admission == report.admission:
        history = wrote(memory.remembered.history, report.admission)
        memory.remembered = replace(memory.remembered, history=history)
    return written


class AdmissionLoop:
    """Looks at every pool once per period."""

    def __init__(
        self,
        platform: Platform,
        memories: Memories,
        reader: Reader,
        clock: Clock,
        *,
        period: float = PERIOD_SECONDS,
        on_conflict: Callable[[PoolKey], None] = lambda key: None,
    ) -> None:
        """Make the loop.

        Args:
            platform: where statuses are written.
            memories: the pools.
            reader: reads routers and engines.
            clock: Unix seconds.
            period: seconds between two looks at a pool.
            on_conflict: told of a pool whose object changed under the loop, to gather it again.
        """
        self._platform = platform
        self._memories = memories
        self._reader = reader
        self._clock = clock
        self._on_conflict = on_conflict
        self._period = period

    async def run(self) -> None:
        """Run until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            await asyncio.gather(*(self._tick(key, memory) for key, memory in self._memories.items()))
            await asyncio.sleep(max(0.0, self._period - (loop.time() - started)))

    async def _tick(self, key: PoolKey, memory: PoolMemory) -> None:
        try:
            await admission_tick(self._platform, key, memory, clock=self._clock, reader=self._reader)
        except StatusConflict:
            self._on_conflict(key)
        except PlatformError as error:
            logger.warning("%s: caps not written: %s", key, error)
        except Exception:
            logger.exception("%s: admission failed", key)


def _report(
    observed: Observed,
    spec: RolloutPoolSpec,
    memory: PoolMemory,
    answers: Mapping[str, AdmissionSnapshot],
    now: float,
) -> AdmissionReport | None:
    """What there is to say now; None where it is not worth a write. `answers` are snapshots by router."""
    stored = memory.stored
    admission, mixture = stored.admission, stored.mixture
    engines = _capacities(observed, spec, memory)
    proposal = propose(
        spec,
        stored=stored.admission,
        remembered=memory.remembered,
        routers=[(router.name, router.url, router.ready) for router in observed.routers],
        answers=answers,
        engines=engines,
        now=now,
        known_revision=memory.report.admission.revision if memory.report.admission else 0,
        park_idle_seconds=round(park_seconds(observed, spec)),
    )
    memory.remembered = proposal.remembered
    if proposal.admission is not None:
        admission, mixture = proposal.admission, mixture_status(spec, proposal.merged)
    conditions = informational(
        spec,
        admission=admission,
        mixture=mixture,
        trouble=_trouble(observed, memory),
        snapshots=proposal.snapshots,
        before=stored.conditions,
        generation=observed.generation,
        now=now,
    )
    if admission is stored.admission and _facts(conditions) <= _facts(stored.conditions):
        return None
    return AdmissionReport(
        admission=admission,
        base_revision=stored.admission.revision if stored.admission else 0,
        mixture=mixture,
        conditions=conditions,
    )


def _facts(conditions: Iterable[Condition]) -> set[tuple[str, ...]]:
    """What makes conditions worth a write: not their numbers, but which engines lack weights and why."""
    spoken = ConditionType.WEIGHTS_CONSISTENT
    return {
        (item.type, item.status, item.reason, item.message if item.type is spoken else "")
        for item in conditions
    }


def _caps_events(memory: PoolMemory, now: float) -> tuple[PoolEvent, ...]:
    """Caps follow demand all the time; people are told now and then."""
    if memory.announced and now - memory.announced_at < CAPS_EVENT_SECONDS:
        return ()
    admission = memory.report.admission
    caps = {item.name: item.cap for item in admission.classes} if admission else {}
    event = caps_event(memory.announced, caps) if caps else None
    if event is None:
        return ()
    memory.announced, memory.announced_at = caps, now
    return (event,)


def _capacities(observed: Observed, spec: RolloutPoolSpec, memory: PoolMemory) -> list[EngineCapacity]:
    """Engines that sessions live on and whose capacity was read once, by this process or another before."""
    stored = memory.stored.admission
    before = {engine.name: engine.capacity_blocks for engine in stored.engines} if stored else {}
    found = []
    for engine in observed.engines:
        reading = memory.readings.get(engine.name)
        blocks = (reading.capacity_blocks if reading else 0) or before.get(engine.name, 0)
        if blocks and engine.role is not Role.PREFILL:
            found.append(
                EngineCapacity(
                    name=engine.name,
                    capacity_blocks=blocks,
                    ready=engine.ready,
                    offload_blocks=offload_blocks(observed, spec, engine.role),
                    pressure=reading.pressure if reading else CALM,
                )
            )
    return found


def _trouble(observed: Observed, memory: PoolMemory) -> Trouble:
    ready = {engine.name for engine in observed.engines if engine.ready}
    return Trouble(
        routers=tuple(name for name, count in sorted(memory.router_failures.items()) if count >= FAILURES),
        engines=tuple(
            name
            for name, reading in sorted(memory.readings.items())
            if name in ready and reading.failures >= FAILURES
        ),
        doubtful=any(memory.router_failures.values())
        or any(reading.failures for name, reading in memory.readings.items() if name in ready),
    )


async def _read_routers(
    observed: Observed, memory: PoolMemory, reader: Reader, limit: asyncio.Semaphore
) -> dict[str, AdmissionSnapshot]:
    """Snapshots by router, of those that answer: of routers that drain, too, for they still hold sessions."""
    routers = [router for router in observed.routers if router.url]
    failures = {router.name: memory.router_failures.get(router.name, 0) for router in routers if router.ready}
    memory.router_failures = failures

    async def read(name: str, url: str) -> AdmissionSnapshot | None:
        try:
            async with limit:
                snapshot = await reader.snapshot(url)
        except ReadError as error:
            logger.debug("%s: %s", observed.key, error)
            if name in failures:
                failures[name] += 1
            return None
        if name in failures:
            failures[name] = 0
        return snapshot

    found = await asyncio.gather(*(read(router.name, router.url) for router in routers))
    return {router.name: snapshot for router, snapshot in zip(routers, found, strict=True) if snapshot}


async def _read_engines(
    observed: Observed,
    spec: RolloutPoolSpec,
    memory: PoolMemory,
    reader: Reader,
    limit: asyncio.Semaphore,
    now: float,
) -> None:
    names = {engine.name for engine in observed.engines}
    memory.readings = {name: reading for name, reading in memory.readings.items() if name in names}

    stored = memory.stored.admission
    words = (router.snapshot for router in memory.remembered.roster or ())
    full = full_engines(stored, (word for word in words if word is not None))
    # What an operator before this one found, for engines that are not read yet.
    pressures = dict.fromkeys(names, CALM)
    pressures |= {e.name: Pressure(1 - e.pressure / 100) for e in stored.engines} if stored else {}

    async def read(engine: EngineFacts) -> None:
        reading = memory.readings.setdefault(engine.name, EngineReading(pressure=pressures[engine.name]))
        if not _due(engine, reading, now):
            return
        try:
            async with limit:
                metrics = await reader.metrics(engine.scrape_url)
        except ReadError as error:
            logger.debug("%s: %s", observed.key, error)
            reading.failures += 1
            return
        reading.capacity_blocks = metrics.kv_tokens // spec.engine.block_size
        reading.revision, reading.read_at, reading.failures = engine.revision, now, 0
        if reading.totals is not None:
            passed = interval(reading.totals, metrics.totals, full=engine.name in full)
            reading.pressure = step(reading.pressure, passed, spec.admission.pressure)
        reading.totals = metrics.totals

    await asyncio.gather(*(read(engine) for engine in observed.engines if engine.ready and engine.scrape_url))


def _due(engine: EngineFacts, reading: EngineReading, now: float) -> bool:
    return (
        not reading.capacity_blocks
        or reading.revision != engine.revision
        or now - reading.read_at >= INTERVAL_SECONDS
    )
