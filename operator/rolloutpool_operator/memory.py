"""What the operator remembers of a pool between two reconciles; all of it can be lost and found again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from rolloutpool_api.status import RolloutPoolStatus
from rolloutpool_operator.core.choosing import Answer
from rolloutpool_operator.core.events import PoolEvent
from rolloutpool_operator.core.observed import Observed, PoolKey
from rolloutpool_operator.core.status import AdmissionReport, Structure
from rolloutpool_planner.inputs import PlannerInputs
from rolloutpool_router.core.pressure import CALM, EngineTotals, Pressure
from rolloutpool_router.core.proposal import Remembered

REPEAT_SECONDS = 300.0
"""The same Event is not told again within this time, in seconds."""
MAX_TOLD = 64
"""Most Events remembered for that."""
MAX_STATUSES = 8
"""Most statuses remembered, to know one's own when a watch delivers it late."""


NOTHING_REMEMBERED = Remembered()


@dataclass(frozen=True)
class Planned:
    """The last planning: what was asked, what was answered, when."""

    inputs: PlannerInputs
    answer: Answer
    at: float
    """Unix seconds."""


@dataclass
class EngineReading:
    """What was read of one engine's metrics."""

    revision: str = ""
    capacity_blocks: int = 0
    """0: not known."""
    read_at: float = 0.0
    """Unix seconds."""
    failures: int = 0
    """Failed reads in a row."""
    totals: EngineTotals | None = None
    """Its counters as of then."""
    pressure: Pressure = CALM


@dataclass
class PoolMemory:
    """One pool."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the status is put together and written."""
    observed: Observed | None = None
    gone: bool = False
    """The pool does not exist, or is about to go: nothing is done for it."""
    stored: RolloutPoolStatus = field(default_factory=RolloutPoolStatus)
    """The status as last read or written."""
    resource_version: str = ""
    """Version of the object that holds it."""
    structure: Structure | None = None
    report: AdmissionReport = field(default_factory=AdmissionReport)
    planned: Planned | None = None
    settled: PlannerInputs | None = None
    """The question that the stored plan answers, as far as this process wrote it."""
    known: set[tuple[str, str]] = field(default_factory=set)
    """Kind and name of children that were there."""
    readings: dict[str, EngineReading] = field(default_factory=dict)
    router_failures: dict[str, int] = field(default_factory=dict)
    """Failed reads in a row, by router."""
    remembered: Remembered = NOTHING_REMEMBERED
    """Routers and caps as of the last look."""
    announced: dict[str, int] = field(default_factory=dict)
    """Caps by class as of the last Event about them."""
    announced_at: float = 0.0
    """When that was, in Unix seconds."""
    told: OrderedDict[PoolEvent, float] = field(default_factory=OrderedDict)
    """When an Event was last told, in Unix seconds."""
    statuses: deque[RolloutPoolStatus] = field(default_factory=lambda: deque(maxlen=MAX_STATUSES))
    """The statuses last read and written, the oldest first."""

    def saw(self, observed: Observed) -> None:
        """Take in what was gathered; a stored status older than the one that was written is ignored.

        A new object of the same name is another pool: nothing is remembered of the old one.
        """
        if self.observed and self.observed.uid != observed.uid:
            self.__init__(lock=self.lock)  # type: ignore[misc]
        self.observed, self.gone = observed, False
        if not _older(observed.resource_version, self.resource_version):
            self.stored = observed.status
            self.statuses.append(observed.status)
            self.resource_version = observed.resource_version

    def is_foreign(self, status: Mapping[str, Any] | None) -> bool:
        """Whether a status that a watch delivers comes from somebody else and was not read yet."""
        if not self.statuses:
            return False
        try:
            return RolloutPoolStatus.model_validate(status or {}) not in self.statuses
        except ValidationError:
            return True

    def untold(self, events: tuple[PoolEvent, ...], now: float) -> tuple[PoolEvent, ...]:
        """Those of the events that were not told lately; they count as told now."""
        fresh = tuple(
            event for event in events if now - self.told.get(event, -REPEAT_SECONDS) >= REPEAT_SECONDS
        )
        for event in fresh:
            self.told[event] = now
            self.told.move_to_end(event)
        while len(self.told) > MAX_TOLD:
            self.told.popitem(last=False)
        return fresh


class Memories:
    """The memories of all pools."""

    def __init__(self) -> None:
        self._pools: dict[PoolKey, PoolMemory] = {}

    def find(self, key: PoolKey) -> PoolMemory | None:
        """The memory of a pool, if there is one."""
        return self._pools.get(key)

    def of(self, key: PoolKey) -> PoolMemory:
        """The memory of a pool; a new one for a new pool."""
        return self._pools.setdefault(key, PoolMemory())

    def forget(self, key: PoolKey) -> None:
        """The pool is gone."""
        self._pools.pop(key, None)

    def items(self) -> tuple[tuple[PoolKey, PoolMemory], ...]:
        """All pools at this moment."""
        return tuple(self._pools.items())


def _older(one: str, other: str) -> bool:
    return one.isdigit() and other.isdigit() and int(one) < int(other)
