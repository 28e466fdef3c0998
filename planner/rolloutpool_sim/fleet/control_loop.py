"""The operator's admission loop: caps computed as on a cluster, with the delays of the scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import AdmissionStatus
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_router.core.control import (
    EngineCapacity,
    compute_admission,
    matters,
    merge_snapshots,
    next_revision,
)
from rolloutpool_router.core.grants import History, seen, wrote
from rolloutpool_router.core.pressure import CALM, EngineTotals, Pressure, interval, step
from rolloutpool_router.core.roster import Roster, alive, looked
from rolloutpool_router.core.sharing import share, shares_matter
from rolloutpool_sim.fleet.engines import Engines
from rolloutpool_sim.fleet.pool import pool_object
from rolloutpool_sim.fleet.scenario import Operator
from rolloutpool_sim.profile import break_even_seconds

METRICS_SECONDS = 10.0
"""How often an engine's counters are read, in seconds, as the operator does."""


class ControlLoop:
    """What the operator remembers of one pool, and what it would write."""

    def __init__(self, settings: Operator, spec: RolloutPoolSpec, engines: Engines) -> None:
        self._settings = settings
        self._spec = spec
        self._capacity_blocks = engines.capacity_blocks
        self._offload_blocks = engines.offload_blocks
        self._park_seconds = round(break_even_seconds(engines.profile))
        self._read_at = 0.0
        self._readings: Mapping[str, EngineTotals] = engines.readings()
        self._pressures: dict[str, Pressure] = dict.fromkeys(engines.names, CALM)
        self._stored: AdmissionStatus | None = None
        self._roster: Roster | None = None
        self._history: History = ()
        self._ready: tuple[bool, ...] | None = None

    @property
    def period(self) -> float:
        """Seconds between two looks."""
        return self._settings.period_seconds * self._settings.delay_factor

    @property
    def delay(self) -> float:
        """Seconds from a look at routers and engines to routers enforcing what follows from it."""
        settings = self._settings
        return (settings.snapshot_delay_seconds + settings.status_delay_seconds) * settings.delay_factor

    def works(self, now: float) -> bool:
        """Whether there is an operator that changes anything now."""
        settings = self._settings
        if settings.frozen_from is not None and now >= settings.frozen_from:
            return False
        return not any(span.from_seconds <= now < span.to_seconds for span in settings.away)

    def look(
        self, snapshots: Sequence[AdmissionSnapshot], engines: Mapping[str, EngineTotals], now: float
    ) -> RolloutPool | None:
        """The object to write after a look; None where nothing in it would matter.

        Args:
            snapshots: of the routers.
            engines: counters of the engines that are up, by name.
            now: seconds.
        """
        self._read(engines, now)
        answers = {snapshot.router: snapshot for snapshot in snapshots}
        self._roster = looked(
            self._roster, [(name, f"http://{name}", True) for name in answers], answers, now=now
        )
        routers = alive(self._roster, now=now)
        known = [router.snapshot for router in routers if router.snapshot is not None]
        self._history = seen(self._history, self._stored)
        ready = tuple(name in engines for name in self._pressures)
        fresh = compute_admission(
            self._spec,
            merged=merge_snapshots([workload.name for workload in self._spec.workloads], known),
            engines=[
                EngineCapacity(
                    name=name,
                    capacity_blocks=self._capacity_blocks,
                    ready=name in engines,
                    offload_blocks=self._offload_blocks,
                    pressure=pressure,
                )
                for name, pressure in self._pressures.items()
            ],
            revision=next_revision(self._stored, snapshots, 0),
            now=now,
            park_idle_seconds=self._park_seconds,
        )
        fresh = share(fresh, routers=routers, replicas=self._spec.router.replicas, history=self._history)
        worth = matters(fresh, self._stored, now=now) or shares_matter(fresh, self._stored)
        if not worth and ready == self._ready:
            return None
        self._ready = ready
        if worth:
            self._stored = fresh
            self._history = wrote(self._history, fresh)
        names = list(self._pressures)
        return pool_object(self._spec, engines=names, ready=ready, admission=self._stored)

    def _read(self, engines: Mapping[str, EngineTotals], now: float) -> None:
        """Step the pressure of each engine that is up, if an interval is over."""
        if now - self._read_at < METRICS_SECONDS:
            return
        self._read_at = now
        for name, totals in engines.items():
            if (before := self._readings.get(name)) is not None:
                seen = interval(before, totals)
                self._pressures[name] = step(self._pressures[name], seen, self._spec.admission.pressure)
        self._readings = engines
