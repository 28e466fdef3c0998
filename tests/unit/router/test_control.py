"""Caps: put together from snapshots and capacities, and when they are worth a write."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_api.serving import AdmissionPolicy
from rolloutpool_api.snapshot import AdmissionSnapshot, SnapshotEngine, SnapshotEngineClass
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import AdmissionStatus, EngineAdmission
from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.control import (
    EngineCapacity,
    compute_admission,
    full_engines,
    matters,
    merge_snapshots,
    next_revision,
)
from rolloutpool_router.core.pressure import Pressure
from rolloutpool_testkit.manifests import pool_manifest

NAMES = ("rlvr", "rlhf", "agentic")
ENGINES = (
    EngineCapacity(name="e0", capacity_blocks=4000, ready=True),
    EngineCapacity(name="e1", capacity_blocks=4000, ready=True),
)
NOW = 1_800_000_000.0


def spec(**changes: Any) -> RolloutPoolSpec:
    return parse_pool(pool_manifest(**changes)).spec


def snapshot(
    waiting: int = 0, active: int = 0, observations: int = 0, *, applied: int = 0, **more: Any
) -> AdmissionSnapshot:
    found = {
        "name": "rlvr",
        "active": active,
        "waiting": waiting,
        "observations": observations,
        "footprintBlocks": 50.0,
        "residencySeconds": 20.0,
        "oldestWaitSeconds": 3.2,
    }
    return AdmissionSnapshot.model_validate(
        {
            "router": "r",
            "takenAt": NOW,
            "appliedRevision": applied,
            "classes": [found | more],
            "engines": [
                {"name": "e0", "classes": [{"name": "rlvr", "active": active, "blocks": 9 * active}]}
            ],
        }
    )


def compute(
    *snapshots: AdmissionSnapshot, revision: int = 1, now: float = NOW, **changes: Any
) -> AdmissionStatus:
    engines = changes.pop("engines", ENGINES)
    park = changes.pop("park_idle_seconds", 0)
    return compute_admission(
        spec(**changes),
        merged=merge_snapshots(NAMES, snapshots),
        engines=engines,
        revision=revision,
        now=now,
        park_idle_seconds=park,
    )


def test_without_demand_every_class_may_start() -> None:
    found = compute(snapshot())
    assert [item.name for item in found.classes] == list(NAMES)
    assert all(item.cap >= 1 and item.source == "Priors" for item in found.classes)
    assert [engine.protected_blocks for engine in found.engines] == [4000, 4000]
    assert found.computed_at == "2027-01-15T08:00:00Z"


def test_demand_moves_the_caps() -> None:
    idle, busy = compute(snapshot()), compute(snapshot(waiting=500))
    assert busy.classes[0].cap > idle.classes[0].cap
    assert (busy.classes[0].waiting, busy.classes[0].oldest_wait_seconds) == (500, 4)
    assert busy.classes[0].block_second_share == 100


def test_the_queue_goes_to_engines_that_are_ready() -> None:
    engines = (ENGINES[0], EngineCapacity(name="e1", capacity_blocks=4000, ready=False))
    first, second = compute(snapshot(waiting=500), engines=engines).engines
    assert first.classes[0].cap > second.classes[0].cap


def test_what_routers_estimate_goes_before_the_priors() -> None:
    silent, priors = (found.classes[0] for found in (compute(snapshot(residencySeconds=0.0)), compute()))
    seen = compute(snapshot(source="Observed", observations=10_000)).classes[0]
    assert (seen.footprint_blocks, seen.residency_seconds, seen.source) == (50, 20, "Observed")
    assert (silent.footprint_blocks, silent.residency_seconds, silent.source) == (
        priors.footprint_blocks,
        priors.residency_seconds,
        "Priors",
    )
    assert priors.footprint_blocks not in (0, 50)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        pytest.param([], "Priors", id="no router"),
        pytest.param(["Priors", "Priors"], "Priors", id="nothing seen"),
        pytest.param(["Observed", "Observed"], "Observed", id="all have seen enough"),
        pytest.param(["Priors", "Observed"], "Blend", id="one has not"),
    ],
)
def test_the_source_of_an_estimate(sources: list[str], expected: str) -> None:
    assert compute(*(snapshot(source=source) for source in sources)).classes[0].source == expected


@pytest.mark.parametrize(
    ("changes", "protected", "percent"),
    [
        pytest.param({}, 4000, 0, id="the forecast keeps its own margin"),
        pytest.param({"pressure": Pressure(0.8)}, 3200, 20, id="pressure"),
        pytest.param({"admission__chanceConstraint": False}, 3800, 0, id="a fixed reserve"),
        pytest.param(
            {"admission__chanceConstraint": False, "pressure": Pressure(0.5)}, 1900, 50, id="both together"
        ),
        pytest.param({"admission__policy": "MISA"}, 3800, 0, id="the paper's policies reserve"),
    ],
)
def test_what_sessions_may_fill(changes: dict[str, Any], protected: int, percent: int) -> None:
    engine = EngineCapacity(
        name="e0", capacity_blocks=4000, ready=True, pressure=changes.pop("pressure", Pressure())
    )
    found = compute(snapshot(waiting=500), engines=(engine,), **changes).engines[0]
    assert (found.protected_blocks, found.pressure) == (protected, percent)
    assert found.classes[0].cap == pytest.approx(protected / 50, abs=25)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        pytest.param({}, 0, id="unknown"),
        pytest.param({"park_idle_seconds": 40}, 40, id="as the profile says"),
        pytest.param({"park_idle_seconds": 40, "admission__parkIdleSeconds": 7}, 7, id="as the spec says"),
        pytest.param({"park_idle_seconds": 40, "admission__parking": False}, 0, id="switched off"),
        pytest.param({"park_idle_seconds": 40, "admission__policy": "MISA"}, 0, id="not of this policy"),
    ],
)
def test_when_sessions_are_parked(changes: dict[str, Any], seconds: int) -> None:
    assert compute(snapshot(), **changes).park_idle_seconds == seconds


def test_routers_add_up() -> None:
    found = compute(snapshot(active=2, waiting=1, parked=3), snapshot(active=3, waiting=4, parked=1))
    assert (found.classes[0].active, found.classes[0].waiting, found.classes[0].parked) == (5, 5, 4)
    assert (found.engines[0].classes[0].active, found.engines[0].classes[0].blocks) == (5, 45)


def test_means_of_routers_are_weighted_by_observations() -> None:
    one = snapshot(observations=30, footprintBlocks=10.0)
    two = snapshot(observations=10, footprintBlocks=50.0)
    assert merge_snapshots(NAMES, [one, two]).classes["rlvr"].cost.footprint_blocks == 20.0


def test_the_debt_shown_is_that_which_routers_order_entries_by() -> None:
    assert compute(snapshot(debt=-50.4)).classes[0].debt == -50
    both = merge_snapshots(NAMES, [snapshot(debt=-20.25), snapshot(debt=3.0)])
    assert both.classes["rlvr"].debt == -17.25


@pytest.mark.parametrize("policy", list(AdmissionPolicy))
def test_policies(policy: AdmissionPolicy) -> None:
    found = compute(snapshot(waiting=5), admission__policy=policy.value)
    assert found.policy is policy
    assert all(item.cap >= 1 for item in found.classes)


@given(
    waiting=st.integers(0, 5000),
    active=st.integers(0, 500),
    capacity=st.integers(1, 20_000),
    floor=st.integers(1, 8),
)
def test_caps_fit_into_the_protected_blocks(waiting: int, active: int, capacity: int, floor: int) -> None:
    engines = (EngineCapacity(name="e0", capacity_blocks=capacity, ready=True),)
    found = compute(snapshot(waiting, active, 10_000), engines=engines, admission__floor=floor)
    engine = found.engines[0]
    footprints = {item.name: item.footprint_blocks for item in found.classes}
    held = sum(item.cap * (footprints[item.name] - 1) for item in engine.classes)
    assert held <= engine.protected_blocks or sum(item.cap for item in engine.classes) == 1
    assert any(item.cap >= 1 for item in engine.classes)


@pytest.mark.parametrize(
    ("old", "new", "later", "expected"),
    [
        pytest.param(None, snapshot(), 0, True, id="the first"),
        pytest.param(snapshot(), snapshot(), 100, False, id="nothing new, ever"),
        pytest.param(snapshot(), snapshot(waiting=1), 0, True, id="a queue appears"),
        pytest.param(snapshot(waiting=500), snapshot(waiting=501), 2, False, id="a longer queue is no hurry"),
        pytest.param(snapshot(waiting=500), snapshot(waiting=501), 10, True, id="shown counts are refreshed"),
        pytest.param(
            snapshot(500, footprintBlocks=50.0),
            snapshot(500, footprintBlocks=55.0),
            0,
            True,
            id="caps move",
        ),
    ],
)
def test_matters(old: AdmissionSnapshot | None, new: AdmissionSnapshot, later: float, expected: bool) -> None:
    before = compute(old, now=NOW) if old else None
    assert matters(compute(new, revision=2, now=NOW + later), before, now=NOW + later) is expected


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"admission__policy": "MISA"}, id="policy"),
        pytest.param({"engines": ENGINES[:1]}, id="engine gone"),
        pytest.param(
            {"engines": (ENGINES[0], EngineCapacity(name="e1", capacity_blocks=1, ready=True))}, id="capacity"
        ),
        pytest.param({"admission__safety": 0.5, "admission__chanceConstraint": False}, id="reserve"),
        pytest.param({"engines": (*ENGINES[:1], replace(ENGINES[1], pressure=Pressure(0.9)))}, id="pressure"),
    ],
)
def test_another_frame_matters_at_once(changes: dict[str, Any]) -> None:
    assert matters(compute(snapshot(), revision=2, **changes), compute(snapshot()), now=NOW)


@given(
    stored=st.none() | st.integers(0, 100),
    applied=st.lists(st.integers(0, 100), max_size=3),
    known=st.integers(0, 100),
)
def test_revisions_only_grow(stored: int | None, applied: list[int], known: int) -> None:
    before = compute(snapshot(), revision=stored) if stored is not None else None
    found = next_revision(before, [snapshot(applied=number) for number in applied], known)
    assert found == max([stored or 0, known, *applied]) + 1


@pytest.mark.parametrize(
    ("blocks", "full"),
    [pytest.param((40, 49), set(), id="room"), pytest.param((40, 60), {"e0"}, id="all-that-they-may")],
)
def test_engines_are_full_with_what_all_routers_hold(blocks: tuple[int, int], full: set[str]) -> None:
    admission = compute(snapshot())
    told = admission.model_copy(
        update={"engines": [EngineAdmission(name="e0", capacity_blocks=100, protected_blocks=90)]}
    )
    said = [
        AdmissionSnapshot(
            router=f"r{number}",
            taken_at=0,
            engines=[
                SnapshotEngine(name="e0", classes=[SnapshotEngineClass(name="rlvr", active=1, blocks=held)])
            ],
        )
        for number, held in enumerate(blocks)
    ]

    assert full_engines(told, said) == full
    assert full_engines(None, said) == set()
