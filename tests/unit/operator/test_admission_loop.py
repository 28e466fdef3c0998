"""The admission loop on a platform in memory."""

from typing import Any

import pytest

from rolloutpool_api.conditions import ConditionStatus, ConditionType
from rolloutpool_api.snapshot import AdmissionSnapshot, SnapshotEngine, SnapshotEngineClass
from rolloutpool_api.status import RolloutPoolStatus
from rolloutpool_operator.admission_loop import (
    CAPS_EVENT_SECONDS,
    AdmissionLoop,
    admission_tick,
)
from rolloutpool_operator.core.mixture import FAILURES
from rolloutpool_operator.core.observed import PoolKey
from rolloutpool_operator.memory import Memories, PoolMemory
from rolloutpool_operator.platform import StatusConflict
from rolloutpool_operator.reconcile import reconcile_once
from rolloutpool_operator.testing import FakeClock, FakePlatform, FakeReader
from rolloutpool_router.core.pressure import INTERVAL_SECONDS, EngineTotals
from rolloutpool_testkit.manifests import pool_manifest

MANUAL = {"mode": "Manual", "replicas": [{"role": "aggregated", "replicas": 2}]}
ENGINES = ("pool-aggregated-tp1-0", "pool-aggregated-tp1-1")


def snapshot(waiting: int = 0, applied: int = 0, consumed: int = 0) -> AdmissionSnapshot:
    found = {"name": "rlvr", "active": 1, "waiting": waiting, "consumed": consumed}
    return AdmissionSnapshot.model_validate(
        {"router": "router", "takenAt": 0, "appliedRevision": applied, "classes": [found]}
    )


class World:
    """A pool that serves, its routers and engines, and time."""

    def __init__(self, **spec: Any) -> None:
        self.platform = FakePlatform(pool_manifest("pool", planning=MANUAL, **spec))
        self.memory = PoolMemory()
        self.reader = FakeReader()
        self.clock = FakeClock()
        self.reader.snapshots["http://router"] = snapshot()
        self.reader.kv_tokens = {f"http://{name}:8000": 64_000 for name in ENGINES}

    async def serving(self) -> "World":
        for _ in range(2):
            await self.reconcile()
            self.platform.settle()
        await self.reconcile()
        return self

    async def reconcile(self) -> None:
        await reconcile_once(self.platform, self.platform.key, self.memory, clock=self.clock)

    async def tick(self, seconds: float = 2.0) -> bool:
        self.clock.advance(seconds)
        return await admission_tick(
            self.platform, self.platform.key, self.memory, clock=self.clock, reader=self.reader
        )

    def enforced(self) -> None:
        """The router takes the caps over."""
        self.reader.snapshots["http://router"] = snapshot(applied=self.revision)

    @property
    def status(self) -> RolloutPoolStatus:
        assert self.platform.body is not None
        return RolloutPoolStatus.model_validate(self.platform.body["status"])

    @property
    def revision(self) -> int:
        assert self.status.admission is not None
        return self.status.admission.revision

    def reason(self, kind: ConditionType) -> str:
        return next(item.reason for item in self.status.conditions if item.type is kind)


async def test_caps_appear_with_the_first_snapshot() -> None:
    world = await World().serving()
    assert await world.tick()
    admission = world.status.admission
    assert admission is not None
    assert [(item.name, item.capacity_blocks) for item in admission.engines] == [
        (name, 4000) for name in ENGINES
    ]
    assert world.revision == 1
    assert world.status.mixture is not None
    assert world.reason(ConditionType.DEGRADED) == "Healthy"
    assert "CapsChanged" in [event.reason for event in world.platform.events]


async def test_quiet_times_cost_no_writes() -> None:
    world = await World().serving()
    await world.tick()
    world.enforced()
    writes = len(world.platform.patches)
    assert not any([await world.tick() for _ in range(30)])
    assert len(world.platform.patches) == writes


async def test_demand_is_written_and_the_revision_grows() -> None:
    world = await World().serving()
    await world.tick()
    world.reader.snapshots["http://router"] = snapshot(waiting=400, applied=1)
    assert await world.tick()
    assert world.revision == 2
    throttled = next(c for c in world.status.conditions if c.type is ConditionType.ADMISSION_THROTTLED)
    assert throttled.status is ConditionStatus.TRUE
    assert "rlvr: 400 wait" in throttled.message


async def test_caps_that_go_up_and_down_are_told_now_and_then() -> None:
    world = await World().serving()
    for number in range(40):
        world.reader.snapshots["http://router"] = snapshot(waiting=400 * (number % 2), applied=number)
        await world.tick()
    told = [event for event in world.platform.events if event.reason == "CapsChanged"]
    assert 1 <= len(told) <= 40 * 2.0 / CAPS_EVENT_SECONDS + 1


async def test_a_restart_keeps_the_caps_and_the_revision() -> None:
    world = await World().serving()
    await world.tick()
    world.reader.snapshots["http://router"] = snapshot(waiting=400)
    await world.tick()
    before = world.status.admission
    world.memory = PoolMemory()
    await world.reconcile()
    assert world.status.admission == before
    assert not await world.tick()
    world.reader.snapshots["http://router"] = snapshot(waiting=4, applied=7)
    await world.tick(30)
    assert world.revision == 8


async def test_an_engine_that_cannot_be_read_keeps_its_capacity() -> None:
    world = await World().serving()
    await world.tick()
    world.enforced()
    world.reader.kv_tokens.pop(f"http://{ENGINES[0]}:8000")
    world.clock.advance(120)
    for _ in range(FAILURES):
        await world.tick()
    admission = world.status.admission
    assert admission is not None
    assert [item.capacity_blocks for item in admission.engines] == [4000, 4000]
    assert world.reason(ConditionType.DEGRADED) == "EngineMetricsStale"


async def test_an_engine_that_is_not_ready_stays_listed() -> None:
    world = await World().serving()
    await world.tick()
    world.platform.ready.discard(ENGINES[1])
    await world.reconcile()
    await world.tick()
    admission = world.status.admission
    assert admission is not None
    assert [item.name for item in admission.engines] == list(ENGINES)
    assert [item.ready for item in world.status.endpoints.admin] == [True, False]


async def test_a_router_that_is_silent_is_told_after_a_while() -> None:
    world = await World().serving()
    await world.tick()
    before = world.status.admission
    del world.reader.snapshots["http://router"]
    for number in range(1, FAILURES + 1):
        assert await world.tick() is (number == FAILURES)
    assert world.reason(ConditionType.DEGRADED) == "RouterUnreachable"
    assert world.status.admission == before
    world.reader.snapshots["http://router"] = snapshot()
    assert await world.tick()
    assert world.reason(ConditionType.DEGRADED) == "Healthy"


async def test_drift_is_told() -> None:
    world = await World().serving()
    world.reader.snapshots["http://router"] = snapshot(consumed=500)
    await world.tick()
    assert world.status.mixture is not None
    assert world.status.mixture.drift_percentage_points == 50.0
    assert world.status.summary.drift == "50.0pp"
    assert "MixtureDrift" in [event.reason for event in world.platform.events]


def with_weights(*stale: str, why: str = "", unserved: float | None = None) -> AdmissionSnapshot:
    weights = {"staleEngines": list(stale), "staleBecause": why, "unservedSince": unserved}
    return AdmissionSnapshot.model_validate({**snapshot(applied=1).to_wire(), "weights": weights})


async def test_a_pool_whose_engines_all_lack_the_weights_is_not_ready() -> None:
    world = await World(engine__rl={"enabled": True, "tokenSecretRef": {"name": "t"}}).serving()
    await world.tick()
    assert world.reason(ConditionType.READY) == "Ready"

    world.reader.snapshots["http://router"] = with_weights("e-0", why="failed")
    assert await world.tick()
    assert (world.status.phase, world.reason(ConditionType.WEIGHTS_CONSISTENT)) == ("Ready", "StaleWeights")
    world.reader.snapshots["http://router"] = with_weights("e-0", "e-1", why="failed")
    assert await world.tick(), "which engines lack them is worth a write"
    assert not await world.tick()

    world.reader.snapshots["http://router"] = with_weights("e-0", "e-1", why="failed", unserved=60.0)
    assert await world.tick()
    assert world.status.phase == "Degraded"
    assert world.reason(ConditionType.READY) == "NoEngineHasCurrentWeights"
    assert "NoEngineHasCurrentWeights" in [event.reason for event in world.platform.events]
    assert not await world.tick(), "the time in it is when it began"

    await world.reconcile()
    assert world.reason(ConditionType.READY) == "NoEngineHasCurrentWeights", "also after a reconcile"
    world.reader.snapshots["http://router"] = with_weights()
    assert await world.tick()
    assert world.reason(ConditionType.READY) == "Ready"


async def test_nothing_to_do_before_the_first_reconcile_or_without_a_router() -> None:
    world = World()
    assert not await world.tick()
    await world.reconcile()
    assert not (await world.tick() and world.status.admission)


async def test_a_status_that_changed_under_the_loop_is_gathered_again() -> None:
    world = await World().serving()
    world.platform.put(pool_manifest("pool", planning=MANUAL, engine__image="another"))
    with pytest.raises(StatusConflict):
        await world.tick()
    await world.reconcile()
    assert world.revision == 1


async def test_another_operators_newer_caps_stay() -> None:
    world = await World().serving()
    await world.tick()
    assert world.platform.body is not None
    world.platform.body["status"]["admission"]["revision"] = 9
    world.platform.put(world.platform.body)
    await world.reconcile()
    assert world.revision == 9


class TestPressure:
    """From the engines' own counters, an interval at a time."""

    @staticmethod
    async def after(world: World, *steps: tuple[int, int, int, float]) -> list[tuple[int, int]]:
        """Pressure and protected blocks of the engines after the first one's counters grew so."""
        first, counted = f"http://{ENGINES[0]}:8000", EngineTotals()
        await world.tick()
        for queries, hits, preemptions, usage in steps:
            counted = EngineTotals(
                counted.prefix_queries + queries,
                counted.prefix_hits + hits,
                counted.preemptions + preemptions,
                usage,
            )
            world.reader.totals[first] = counted
            world.enforced()
            await world.tick(INTERVAL_SECONDS)
        admission = world.status.admission
        assert admission is not None
        return [(engine.pressure, engine.protected_blocks) for engine in admission.engines]

    HEALTHY = (100_000, 80_000, 0, 0.9)
    EVICTING = (100_000, 20_000, 5, 0.99)

    @pytest.mark.parametrize(
        ("steps", "pressure", "protected"),
        [
            pytest.param((HEALTHY, HEALTHY), 0, 4000, id="healthy"),
            pytest.param((HEALTHY, EVICTING), 10, 3600, id="the hit rate falls and it preempts"),
            pytest.param((HEALTHY, EVICTING, EVICTING), 19, 3240, id="and goes on falling"),
            pytest.param((HEALTHY, EVICTING, HEALTHY), 8, 3680, id="it recovers slowly"),
            pytest.param((HEALTHY, (100_000, 20_000, 0, 0.5)), 0, 4000, id="a falling rate alone"),
        ],
    )
    async def test_an_engine_that_evicts_is_filled_less(
        self, steps: tuple[tuple[int, int, int, float], ...], pressure: int, protected: int
    ) -> None:
        world = await World().serving()
        assert await self.after(world, *steps) == [(pressure, protected), (0, 4000)]

    async def test_not_where_it_is_switched_off(self) -> None:
        world = await World(admission={"pressure": {"enabled": False}}).serving()
        assert await self.after(world, self.HEALTHY, self.EVICTING) == [(0, 4000), (0, 4000)]

    async def test_an_engine_that_is_full_is_contracted_no_further(self) -> None:
        world = await World().serving()
        await self.after(world, self.HEALTHY)
        residents = [SnapshotEngineClass(name="rlvr", active=40, blocks=4000)]
        full = SnapshotEngine(name=ENGINES[0], classes=residents)
        said = snapshot(applied=world.revision).model_copy(update={"engines": [full]})
        world.reader.snapshots["http://router"] = said
        await world.tick()
        evicting = EngineTotals(200_000, 100_000, 5, 0.99)
        world.reader.totals[f"http://{ENGINES[0]}:8000"] = evicting
        await world.tick(INTERVAL_SECONDS)
        assert world.status.admission is not None
        assert world.status.admission.engines[0].pressure == 0

    async def test_an_engine_that_started_again_is_judged_anew(self) -> None:
        world = await World().serving()
        await self.after(world, self.HEALTHY, self.EVICTING)
        world.reader.totals[f"http://{ENGINES[0]}:8000"] = EngineTotals(5_000, 4_000, 0, 0.1)
        world.enforced()
        await world.tick(INTERVAL_SECONDS)
        assert world.status.admission is not None
        assert world.status.admission.engines[0].pressure == 8


async def test_the_tool_gap_from_which_sessions_are_parked_follows_from_the_profile() -> None:
    world = await World().serving()
    await world.tick()
    admission = world.status.admission
    assert admission is not None
    assert 1 <= admission.park_idle_seconds <= 600


async def test_caps_that_no_router_takes_over_are_told() -> None:
    world = await World().serving()
    await world.tick()
    await world.tick(60)
    assert world.reason(ConditionType.DEGRADED) == "StaleCaps"


async def test_the_loop_looks_at_every_pool_and_survives_failures(caplog: pytest.LogCaptureFixture) -> None:
    world = await World().serving()
    memories = Memories()
    conflicts: list[PoolKey] = []
    memories._pools[world.platform.key] = world.memory
    loop = AdmissionLoop(
        world.platform, memories, world.reader, world.clock, period=2.0, on_conflict=conflicts.append
    )
    await loop._tick(world.platform.key, world.memory)
    assert world.revision == 1
    world.platform.put(pool_manifest("pool", planning=MANUAL, engine__image="another"))
    world.reader.snapshots["http://router"] = snapshot(waiting=400)
    await loop._tick(world.platform.key, world.memory)
    assert conflicts == [world.platform.key]
    world.memory.stored = None  # type: ignore[assignment]
    await loop._tick(world.platform.key, world.memory)
    assert "admission failed" in caplog.text
