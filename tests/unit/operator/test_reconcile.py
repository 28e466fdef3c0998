"""The reconcile loop on a platform in memory."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_api.conditions import ConditionType
from rolloutpool_api.planning import PlanningMode, PlanningObjective
from rolloutpool_api.status import RolloutPoolStatus
from rolloutpool_operator.core.children import ApplyChild
from rolloutpool_operator.core.observed import NodeFacts, ProfileFacts
from rolloutpool_operator.memory import PoolMemory
from rolloutpool_operator.planning import REPLAN_SECONDS
from rolloutpool_operator.platform import Report, StatusConflict
from rolloutpool_operator.reconcile import reconcile_once
from rolloutpool_operator.testing import FakeClock, FakePlatform
from rolloutpool_planner.answers import (
    Constraint,
    Group,
    Infeasible,
    Plan,
    PlanResult,
    SolverStatus,
    plan_hash,
)
from rolloutpool_planner.errors import SolverError
from rolloutpool_planner.inputs import PlannerInputs
from rolloutpool_planner.plan import plan
from rolloutpool_testkit.manifests import pool_manifest


class CountingPlanner:
    """The real planner for given replicas; a made-up one, with a count, for the rest."""

    def __init__(self, replicas: int = 2, value: float = 10.0) -> None:
        self.questions: list[PlannerInputs] = []
        self.replicas = replicas
        self.value = value
        self.error: PlanResult | Exception | None = None

    async def __call__(self, inputs: PlannerInputs) -> PlanResult:
        if inputs.mode is PlanningMode.MANUAL:
            found = plan(inputs)
            assert isinstance(found, Plan)
            return self.made(sum(group.replicas for group in found.groups), 10.0)
        self.questions.append(inputs)
        if isinstance(self.error, Exception):
            raise self.error
        return self.error or self.made(self.replicas, self.value)

    def made(self, replicas: int, value: float) -> Plan:
        group = Group(
            role="aggregated",  # type: ignore[arg-type]
            tensor_parallel=1,
            pipeline_parallel=1,
            replicas=replicas,
            gpus_per_replica=1,
        )
        return Plan(
            groups=(group,),
            mode=PlanningMode.AGGREGATED,
            gpus_used=replicas,
            gpu_budget=4,
            hash=plan_hash(PlanningMode.AGGREGATED, (group,)),
            solver="CBC",
            solver_status=SolverStatus.OPTIMAL,
            objective=PlanningObjective.MAXIMIZE_THROUGHPUT,
            objective_value=value,
            capacity=value,
            demand=None,
            binding_constraint="",
        )


class World:
    """A pool, its operator's memory, and time."""

    def __init__(self, **spec: Any) -> None:
        self.platform = FakePlatform(pool_manifest("pool", **spec))
        self.memory = PoolMemory()
        self.clock = FakeClock()
        self.planner = CountingPlanner()

    async def reconcile(self) -> float | None:
        return await reconcile_once(
            self.platform, self.platform.key, self.memory, clock=self.clock, planner=self.planner
        )

    async def settled(self) -> None:
        """Reconcile until everything serves."""
        await self.reconcile()
        self.platform.settle()
        await self.reconcile()

    def restart(self) -> None:
        """The operator starts anew and remembers nothing."""
        self.memory = PoolMemory()

    @property
    def status(self) -> RolloutPoolStatus:
        assert self.platform.body is not None
        return RolloutPoolStatus.model_validate(self.platform.body["status"])

    def reason(self, kind: ConditionType) -> str:
        return next(item.reason for item in self.status.conditions if item.type is kind)

    @property
    def replicas(self) -> int:
        return int(self.platform.children["StatefulSet", "pool-aggregated-tp1"]["spec"]["replicas"])

    def told(self) -> list[str]:
        return [event.reason for event in self.platform.events]


async def test_a_new_pool_comes_up() -> None:
    world = World()
    await world.reconcile()
    assert {kind for kind, _ in world.platform.children} == {
        "NetworkPolicy",
        "Service",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "Deployment",
        "StatefulSet",
    }
    assert world.status.phase == "Progressing"
    world.platform.settle()
    await world.reconcile()
    assert world.status.phase == "Ready"
    assert world.told() == ["Scaled", "Planned", "Ready"]


async def test_what_is_done_is_not_done_again() -> None:
    world = World()
    await world.settled()
    actions, patches = len(world.platform.actions), len(world.platform.patches)
    for _ in range(3):
        world.clock.advance(60)
        assert await world.reconcile() is None
    world.restart()
    await world.reconcile()
    assert (len(world.platform.actions), len(world.platform.patches)) == (actions, patches)
    assert len(world.told()) == 3


async def test_the_first_plan_is_announced_before_it_is_made() -> None:
    world = World()
    seen: list[str] = []

    async def slow(inputs: PlannerInputs) -> PlanResult:
        seen.append(world.status.phase)
        return await CountingPlanner()(inputs)

    await reconcile_once(world.platform, world.platform.key, world.memory, clock=world.clock, planner=slow)
    assert seen == ["Planning"]


@pytest.mark.parametrize(
    "kind", ["NetworkPolicy", "Service", "ServiceAccount", "Role", "RoleBinding", "Deployment", "StatefulSet"]
)
async def test_a_deleted_child_is_restored(kind: str) -> None:
    world = World()
    await world.settled()
    gone = next(key for key in world.platform.children if key[0] == kind)
    del world.platform.children[gone]
    await world.reconcile()
    assert gone in world.platform.children
    assert "ChildRestored" in world.told()


async def test_an_edited_child_is_restored() -> None:
    world = World()
    await world.settled()
    world.platform.children["StatefulSet", "pool-aggregated-tp1"]["spec"]["replicas"] = 9
    await world.reconcile()
    assert world.replicas == 2


async def test_the_same_question_is_asked_once() -> None:
    world = World()
    await world.settled()
    world.clock.advance(1000)
    await world.reconcile()
    world.platform.put(pool_manifest("pool", engine__image="another"))
    await world.reconcile()
    assert len(world.planner.questions) == 1


async def test_another_spec_is_planned_anew_without_hysteresis() -> None:
    world = World()
    await world.settled()
    world.planner.replicas, world.planner.value = 3, 10.01
    world.platform.put(pool_manifest("pool", gpus__budget=3))
    await world.reconcile()
    assert (len(world.planner.questions), world.replicas) == (2, 3)
    assert "Scaled" in world.told()


async def test_nodes_that_come_and_go_wait_and_a_small_gain_is_held() -> None:
    world = World()
    world.platform.nodes = (NodeFacts(name="n1", gpus_allocatable=8, gpus_free=8),)
    await world.settled()
    world.planner.replicas, world.planner.value = 3, 10.1
    world.platform.nodes = (NodeFacts(name="n1", gpus_allocatable=8, gpus_free=7),)
    await world.reconcile()
    assert len(world.planner.questions) == 1
    world.clock.advance(REPLAN_SECONDS)
    await world.reconcile()
    assert len(world.planner.questions) == 2
    assert (world.replicas, world.reason(ConditionType.PLAN_APPLIED)) == (2, "HeldByHysteresis")
    world.planner.value = 20.0
    world.clock.advance(REPLAN_SECONDS)
    world.platform.nodes = (NodeFacts(name="n1", gpus_allocatable=8, gpus_free=6),)
    await world.reconcile()
    assert world.replicas == 3


async def test_a_restart_plans_once_and_keeps_the_plan() -> None:
    world = World()
    await world.settled()
    world.restart()
    world.planner.replicas, world.planner.value = 3, 10.1
    await world.reconcile()
    assert (len(world.planner.questions), world.replicas) == (2, 2)


async def test_no_plan_is_possible() -> None:
    world = World()
    world.planner.error = Infeasible(constraint=Constraint.BUDGET, message="needs 8 GPUs", smallest_budget=8)
    await world.reconcile()
    assert (world.reason(ConditionType.PLAN_READY), world.status.phase) == ("Infeasible", "Failed")
    assert not [kind for kind, _ in world.platform.children if kind == "StatefulSet"]
    assert "PlanInfeasible" in world.told()
    world.planner.error = None
    world.platform.put(pool_manifest("pool", gpus__budget=3))
    await world.settled()
    assert world.status.phase == "Ready"


async def test_a_solver_that_fails_is_told_and_what_runs_goes_on() -> None:
    world = World()
    await world.settled()
    world.planner.error = SolverError("no executable")
    world.platform.put(pool_manifest("pool", gpus__budget=3))
    await world.reconcile()
    assert world.reason(ConditionType.PLAN_READY) == "PlanningFailed"
    assert world.replicas == 2


async def test_a_missing_profile_is_no_silent_guess() -> None:
    world = World(planning={"profile": {"configMapRef": {"name": "mine"}}})
    world.platform.profile = ProfileFacts(error="ConfigMap mine does not exist")
    await world.reconcile()
    assert world.reason(ConditionType.PLAN_READY) == "ProfileMissing"
    assert world.planner.questions == []
    patches = len(world.platform.patches)
    await world.reconcile()
    assert len(world.platform.patches) == patches


async def test_an_invalid_spec_touches_nothing() -> None:
    world = World()
    await world.settled()
    before = dict(world.platform.children)
    world.platform.put(pool_manifest("pool", gpus__budget=0))
    await world.reconcile()
    assert world.platform.children == before
    assert world.reason(ConditionType.SPEC_VALID) == "InvalidSpec"
    assert world.status.observed_generation == 2


@pytest.mark.parametrize(
    ("changes", "reason"), [({"paused": True}, "Paused"), ({"planning__autoApply": False}, "AutoApplyOff")]
)
async def test_withheld(changes: dict[str, Any], reason: str) -> None:
    world = World()
    await world.settled()
    world.planner.replicas = 3
    world.platform.put(pool_manifest("pool", gpus__budget=3, **changes))
    await world.reconcile()
    assert (world.replicas, world.reason(ConditionType.PLAN_APPLIED)) == (2, reason)
    assert world.status.plan is not None
    assert world.status.plan.groups[0].replicas == 3
    world.platform.put(pool_manifest("pool", gpus__budget=3))
    await world.reconcile()
    assert world.replicas == 3


async def test_a_refused_child_does_not_stop_the_others() -> None:
    world = World()
    world.platform.refuse["Deployment", "pool-router"] = "quota exceeded"
    assert await world.reconcile() == 5.0
    assert ("StatefulSet", "pool-aggregated-tp1") in world.platform.children
    assert world.reason(ConditionType.PLAN_APPLIED) == "ApplyFailed"
    del world.platform.refuse["Deployment", "pool-router"]
    await world.settled()
    assert world.status.phase == "Ready"


async def test_a_set_that_cannot_be_changed_is_made_anew() -> None:
    world = World()
    await world.settled()
    world.platform.children["StatefulSet", "pool-aggregated-tp1"]["spec"]["serviceName"] = "another"
    await world.reconcile()
    assert ("StatefulSet", "pool-aggregated-tp1") not in world.platform.children
    await world.reconcile()
    assert world.replicas == 2
    assert "ChildRecreated" in world.told()
    assert "ChildRestored" not in world.told()


async def test_a_pool_that_is_gone() -> None:
    world = World()
    await world.settled()
    key, world.platform.body = world.platform.key, None
    assert await reconcile_once(world.platform, key, world.memory, clock=world.clock) is None
    assert world.memory.gone


async def test_a_new_pool_of_the_same_name_is_another_pool() -> None:
    world = World()
    await world.settled()
    body = pool_manifest("pool")
    world.platform.body = None
    world.platform.children.clear()
    world.platform.put(body)
    assert world.platform.body is not None
    world.platform.body["metadata"]["uid"] = "another"
    await world.reconcile()
    assert len(world.planner.questions) == 2
    assert "ChildRestored" not in world.told()


async def test_a_conflict_is_no_failure_of_the_next_round() -> None:
    world = World()
    await world.settled()
    gather = world.platform.gather

    async def stale(key: Any) -> Any:
        found = await gather(key)
        assert world.platform.body is not None
        world.platform.put(pool_manifest("pool", gpus__budget=3))
        return found

    world.platform.put(pool_manifest("pool", gpus__budget=2))
    world.platform.gather = stale  # type: ignore[method-assign]
    with pytest.raises(StatusConflict):
        await world.reconcile()
    world.platform.gather = gather  # type: ignore[method-assign]
    await world.reconcile()
    assert world.status.observed_generation == 3


async def test_a_plan_that_could_not_be_written_is_no_reason_to_keep_the_old_one() -> None:
    """Hysteresis is for plans of one spec; after a conflict the stored plan is still the old spec's."""
    world = World()
    await world.settled()
    world.planner.replicas, world.planner.value = 3, 10.2  # a gain below the hysteresis
    world.platform.put(pool_manifest("pool", slo={"ttftMilliseconds": 500}))
    report = world.platform.report

    async def conflict(report: Report) -> str:
        raise StatusConflict("edited meanwhile")

    world.platform.report = conflict  # type: ignore[method-assign]
    with pytest.raises(StatusConflict):
        await world.reconcile()
    world.platform.report = report  # type: ignore[method-assign]
    await world.settled()
    assert world.replicas == 3


async def test_two_operators_do_no_harm() -> None:
    world = World()
    other = PoolMemory()
    for _ in range(3):
        await world.reconcile()
        world.platform.settle()
        await reconcile_once(
            world.platform, world.platform.key, other, clock=world.clock, planner=world.planner
        )
    assert world.status.phase == "Ready"
    applied = [action for action in world.platform.actions if isinstance(action, ApplyChild)]
    assert len(applied) == len(world.platform.children)


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "gpus__budget": st.integers(1, 6),
        "engine__image": st.sampled_from(["a", "b"]),
        "planning__autoApply": st.booleans(),
        "paused": st.booleans(),
        "router__service": st.sampled_from([{"port": 80}, {"port": 81}]),
    },
)


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.tuples(SPECS, st.booleans(), st.integers(1, 4)), min_size=1, max_size=5))
def test_replay_converges_from_anywhere(steps: list[tuple[dict[str, Any], bool, int]]) -> None:
    """Whatever specs came before, the last one alone says what there is, and then nothing moves."""

    async def replay() -> None:
        world = World()
        for changes, restarted, replicas in steps:
            world.planner.replicas = replicas
            world.platform.put(pool_manifest("pool", **changes))
            if restarted:
                world.restart()
            await world.reconcile()
        world.platform.put(pool_manifest("pool"))
        await world.settled()
        await world.settled()
        actions, patches = len(world.platform.actions), len(world.platform.patches)
        await world.reconcile()
        assert (len(world.platform.actions), len(world.platform.patches)) == (actions, patches)
        assert world.status.phase == "Ready"

    asyncio.run(replay())
