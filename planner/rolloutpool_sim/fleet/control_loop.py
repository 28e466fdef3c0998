"""The operator's admission loop: caps computed as on a cluster, with the delays of the scenario."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import AdmissionStatus
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_router.core.control import EngineCapacity, full_engines
from rolloutpool_router.core.grants import wrote
from rolloutpool_router.core.pressure import CALM, INTERVAL_SECONDS, EngineTotals, Pressure, interval, step
from rolloutpool_router.core.proposal import Remembered, propose
from rolloutpool_sim.fleet.engines import Engines
from rolloutpool_sim.fleet.pool import pool_object
from rolloutpool_sim.fleet.scenario import Operator
from rolloutpool_sim.profile import break_even_seconds


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
        self._remembered = Remembered()
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
        self._read(engines, full_engines(self._stored, snapshots), now)
        ready = tuple(name in engines for name in self._pressures)
        proposal = propose(
            self._spec,
            stored=self._stored,
            remembered=self._remembered,
            routers=[(snapshot.router, f"http://{snapshot.router}", True) for snapshot in snapshots],
            answers={snapshot.router: snapshot for snapshot in snapshots},
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
            now=now,
            park_idle_seconds=self._park_seconds,
        )
        self._remembered = proposal.remembered
        if proposal.admission is None and ready == self._ready:
            return None
        self._ready = ready
        if proposal.admission is not None:
            self._stored = proposal.admission
            history = wrote(self._remembered.history, self._stored)
            self._remembered = replace(self._remembered, history=history)
        names = list(self._pressures)
        return pool_object(self._spec, engines=names, ready=ready, admission=self._stored)

    def _read(self, engines: Mapping[str, EngineTotals], full: Container[str], now: float) -> None:
        """Step the pressure of each engine that is up, if an interval is over."""
        if now - self._read_at < INTERVAL_SECONDS:
            return
        self._read_at = now
        for name, totals in engines.items():
            if (before := self._readings.get(name)) is not None:
                seen = interval(before, totals, full=name in full)
                self._pressures[name] = step(self._pressures[name], seen, self._spec.admission.pressure)
        self._readings = engines
