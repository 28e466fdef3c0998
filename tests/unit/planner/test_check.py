from dataclasses import replace
from functools import cache

import pytest

from rolloutpool_api.planning import PlanningMode, PlanningObjective, Role
from rolloutpool_planner.answers import Group, Plan, plan_hash
from rolloutpool_planner.check import violations
from rolloutpool_planner.inputs import Demand, Parallelism, PlannerInputs, ReplicaGroup
from rolloutpool_planner.plan import plan
from rolloutpool_planner.testing import AGENTIC, RLHF, RLVR, nodes, sample_inputs, with_slo

BASE = sample_inputs(gpu_budget=4, mode=PlanningMode.AGGREGATED)


def group(role: Role, tensor_parallel: int, replicas: int) -> Group:
    return Group(
        role=role,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=1,
        replicas=replicas,
        gpus_per_replica=tensor_parallel,
    )


@cache
def base_plan() -> Plan:
    result = plan(BASE)
    assert isinstance(result, Plan)
    return result


def given_plan(*groups: Group, mode: PlanningMode = PlanningMode.AGGREGATED, budget: int = 4) -> Plan:
    base = base_plan()
    used = sum(g.replicas * g.gpus_per_replica for g in groups)
    return replace(
        base, groups=groups, mode=mode, gpus_used=used, gpu_budget=budget, hash=plan_hash(mode, groups)
    )


TWO = (ReplicaGroup(role=Role.AGGREGATED, tensor_parallel=1, replicas=2),)
MEET = PlanningObjective.MEET_SLO


@pytest.mark.parametrize(
    ("groups", "inputs", "violation"),
    [
        pytest.param((group(Role.AGGREGATED, 1, 5),), BASE, "5 GPUs exceed the budget of 4", id="budget"),
        pytest.param(
            (group(Role.AGGREGATED, 4, 1),),
            replace(BASE, node_shapes=nodes(3, 3)),
            "1 replicas of 4 GPUs find no node with 4 free GPUs",
            id="nodes",
        ),
        pytest.param(
            (group(Role.AGGREGATED, 1, 4),),
            replace(BASE, max_engines=3),
            "4 engines exceed the limit of 3",
            id="engines",
        ),
        pytest.param(
            (group(Role.PREFILL, 1, 2),), BASE, "not those of a plan of mode Aggregated", id="roles"
        ),
        pytest.param(
            (group(Role.AGGREGATED, 1, 1),) * 2, BASE, "two groups have the same role", id="same group twice"
        ),
        pytest.param(
            (group(Role.AGGREGATED, 2, 1),),
            replace(BASE, allowed_parallelism=(Parallelism(1),)),
            "TP2 is not an allowed parallelism",
            id="parallelism",
        ),
        pytest.param(
            (group(Role.AGGREGATED, 1, 4),),
            replace(BASE, current_plan=TWO, max_change_per_step=1),
            "2 replicas added and 0 removed, 1 are allowed",
            id="change",
        ),
        pytest.param(
            (group(Role.AGGREGATED, 1, 1),),
            replace(BASE, objective=MEET, demand=Demand(requests_per_second=4.8)),
            "samples/s are served of the 1 demanded",
            id="demand",
        ),
        pytest.param(
            (group(Role.AGGREGATED, 1, 1),),
            replace(BASE, classes=with_slo(RLVR, RLHF, AGENTIC, itl=0.004)),
            "aggregated TP1 cannot serve the mix",
            id="SLO",
        ),
        pytest.param(
            (group(Role.AGGREGATED, 3, 1),),
            BASE,
            "aggregated TP3 cannot serve the mix",
            id="not in the profile",
        ),
    ],
)
def test_violations(groups: tuple[Group, ...], inputs: PlannerInputs, violation: str) -> None:
    found = violations(given_plan(*groups), inputs)

    assert any(violation in text for text in found), found


def test_numbers_that_do_not_belong_to_the_groups() -> None:
    good = given_plan(group(Role.AGGREGATED, 1, 2))

    assert violations(good, BASE) == ()
    assert violations(replace(good, gpus_used=3), BASE) == ("the plan says 3 GPUs, its groups hold 2",)
    assert violations(replace(good, hash="0"), BASE) == ("the plan's hash is not that of its groups",)
    assert violations(good, replace(BASE, gpu_budget=5)) == (
        "the plan was made for a budget of 4 GPUs, not 5",
    )


def test_pacing_excuses_demand_but_not_change() -> None:
    inputs = replace(
        BASE,
        objective=MEET,
        demand=Demand(requests_per_second=4.8),
        current_plan=TWO,
        max_change_per_step=1,
    )
    short = given_plan(group(Role.AGGREGATED, 1, 2))
    far = given_plan(group(Role.AGGREGATED, 1, 4))

    assert violations(replace(short, paced=True), inputs) == ()
    assert len(violations(short, inputs)) == 1
    assert len(violations(replace(far, paced=True), inputs)) == 1
    lost = replace(inputs, node_shapes=nodes(1, 1, 1, 1), current_plan=(replace(TWO[0], tensor_parallel=2),))
    assert violations(replace(far, paced=True), lost) == ()
