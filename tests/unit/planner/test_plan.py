from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_api.planning import PlanningMode, PlanningObjective, Role
from rolloutpool_planner.answers import Constraint, Infeasible, Plan, SolverStatus, SolverTimeout
from rolloutpool_planner.check import violations
from rolloutpool_planner.inputs import (
    Demand,
    EngineLimits,
    NodeShape,
    Parallelism,
    PlannerInputs,
    ReplicaGroup,
)
from rolloutpool_planner.plan import plan
from rolloutpool_planner.testing import (
    AGENTIC,
    RLHF,
    RLVR,
    nodes,
    sample_inputs,
    silent_solver,
    slow_solver,
    with_slo,
    wrong_solver,
)
from rolloutpool_sim.profile import load_builtin

LARGE = load_builtin("emulated-32b-h100")
MEET, MINIMIZE = PlanningObjective.MEET_SLO, PlanningObjective.MINIMIZE_GPUS
AGGREGATED, DISAGGREGATED = PlanningMode.AGGREGATED, PlanningMode.DISAGGREGATED


@cache
def planned(inputs: PlannerInputs, **options: Any) -> Plan:
    """The plan, which must exist and keep all constraints."""
    result = plan(inputs, **options)
    assert isinstance(result, Plan), result
    assert violations(result, inputs) == ()
    return result


def running(*groups: tuple[Role, int, int]) -> tuple[ReplicaGroup, ...]:
    return tuple(ReplicaGroup(role=r, tensor_parallel=tp, replicas=n) for r, tp, n in groups)


# --- modes, objectives, sizes ---


@pytest.mark.parametrize("budget", [pytest.param(n, id=f"{n} GPUs") for n in (2, 4, 16, 512)])
@pytest.mark.parametrize(
    "mode", [pytest.param(m, id=m) for m in (PlanningMode.AUTO, AGGREGATED, DISAGGREGATED)]
)
def test_a_plan_uses_the_budget_and_says_what_binds(budget: int, mode: PlanningMode) -> None:
    result = planned(sample_inputs(gpu_budget=budget, mode=mode))

    assert result.solver_status is SolverStatus.OPTIMAL
    assert budget - 1 <= result.gpus_used <= budget
    assert "GPU budget" in result.binding_constraint
    assert result.mode is mode or mode is PlanningMode.AUTO
    assert all(0 < (g.utilization or 0) <= 1 + 1e-9 for g in result.groups)


def test_predictions_keep_the_slos() -> None:
    classes = with_slo(RLVR, RLHF, AGENTIC, ttft=1.5, itl=0.025)
    for mode in (AGGREGATED, DISAGGREGATED):
        for group in planned(sample_inputs(classes=classes, mode=mode)).groups:
            assert (group.predicted_ttft_p95_s or 0) <= 1.5
            assert (group.predicted_itl_p95_s or 0) <= 0.025
            assert (group.predicted_ttft_p95_s is None) is (group.role is Role.DECODE)
            assert (group.predicted_itl_p95_s is None) is (group.role is Role.PREFILL)


def test_long_prompts_under_a_tight_itl_are_disaggregated() -> None:
    chatty = replace(RLHF, share=1.0, prompt_tokens_p50=6000, prompt_tokens_p95=7000)
    classes = with_slo(chatty, ttft=3.0, itl=0.015)

    result = planned(sample_inputs(classes=classes))
    assert result.mode is DISAGGREGATED
    assert any(
        a.summary.endswith("aggregated TP8") or "aggregated" in a.rejected for a in result.alternatives
    )


def test_minimize_gpus_serves_the_demand_with_no_gpu_to_spare() -> None:
    inputs = sample_inputs(objective=MINIMIZE, demand=Demand(requests_per_second=10.0))
    result = planned(inputs)

    assert result.demand == pytest.approx(10.0 / 4.8)
    assert (result.capacity or 0) >= 10.0 / 4.8 * (1 - 1e-5)
    assert "demand of 2.083 samples/s" in result.binding_constraint
    less = plan(replace(inputs, gpu_budget=result.gpus_used - 1))
    assert isinstance(less, Infeasible)
    assert less.smallest_budget == result.gpus_used


def test_meet_slo_turns_the_rest_of_the_budget_into_headroom() -> None:
    demand = Demand(requests_per_second=10.0)
    result = planned(sample_inputs(objective=MEET, demand=demand))
    most = planned(sample_inputs())

    assert result.capacity == pytest.approx(most.capacity)
    assert all((g.utilization or 1) < 0.5 for g in result.groups)
    assert all((g.utilization or 0) > 0.99 for g in most.groups)


def test_thousands_of_gpus_stop_at_the_most_engines_of_a_pool() -> None:
    shapes = (NodeShape(product="H100", gpus_per_node=8, free_gpus=8, count=500),)
    result = planned(sample_inputs(gpu_budget=4000, node_shapes=shapes))

    assert sum(g.replicas for g in result.groups) == 256
    assert "engines: 256 of at most 256" in result.binding_constraint


def test_replicas_never_span_nodes() -> None:
    result = planned(sample_inputs(gpu_budget=12, node_shapes=nodes(3, 3, 3, 3)))

    assert max(g.gpus_per_replica for g in result.groups) <= 2
    assert result.gpus_used == 12


def test_nodes_bind_before_the_budget() -> None:
    result = planned(sample_inputs(gpu_budget=16, node_shapes=nodes(4)))

    assert result.gpus_used == 4
    assert "nodes: 4 of 4 free GPUs used" in result.binding_constraint


# --- why not ---


@pytest.mark.parametrize(
    ("inputs", "constraint", "message", "smallest"),
    [
        pytest.param(
            sample_inputs(allowed_parallelism=(Parallelism(16),)),
            Constraint.PARALLELISM,
            "profile emulated-8b-h100 has TP1, TP2, TP4, TP8, but only TP16 is allowed",
            None,
            id="nothing the profile has is allowed",
        ),
        pytest.param(
            sample_inputs(limits=EngineLimits(max_model_len=5_000_000)),
            Constraint.KV_CAPACITY,
            "its KV holds 4329000 tokens, less than the model length of 5000000",
            None,
            id="model length beyond every KV cache",
        ),
        pytest.param(
            sample_inputs(classes=with_slo(RLVR, RLHF, AGENTIC, itl=0.001)),
            Constraint.SLO,
            "ITL p95 SLO 1 ms of agentic is out of reach: idle it takes 2.5",
            None,
            id="ITL out of reach",
        ),
        pytest.param(
            sample_inputs(profile=LARGE, node_shapes=nodes(1, 1)),
            Constraint.NODES,
            "a replica needs 2 GPUs on one node, but the largest node (H100) has 1 free of 8",
            None,
            id="no node is large enough",
        ),
        pytest.param(
            sample_inputs(node_shapes=()), Constraint.NODES, "there is no node with GPUs", None, id="no node"
        ),
        pytest.param(
            sample_inputs(profile=LARGE, gpu_budget=1),
            Constraint.BUDGET,
            "the GPU budget is 1, the smallest plan needs 2: one aggregated replica of 2",
            2,
            id="budget below the smallest replica",
        ),
        pytest.param(
            sample_inputs(profile=LARGE, gpu_budget=3, mode=DISAGGREGATED),
            Constraint.BUDGET,
            "the smallest plan needs 4: one prefill replica of 2 and one decode replica of 2",
            4,
            id="budget below prefill and decode",
        ),
        pytest.param(
            sample_inputs(mode=DISAGGREGATED, node_shapes=nodes(1)),
            Constraint.NODES,
            "1 nodes with 1 free GPUs",
            None,
            id="room for one role only",
        ),
        pytest.param(
            sample_inputs(gpu_budget=4, objective=MEET, demand=Demand(requests_per_second=24.0)),
            Constraint.BUDGET,
            "the demand is 5 samples/s within the SLOs; the GPU budget of 4 serves at most 1.6",
            12,
            id="demand beyond the budget",
        ),
        pytest.param(
            sample_inputs(node_shapes=nodes(2, 2), objective=MEET, demand=Demand(requests_per_second=24.0)),
            Constraint.NODES,
            "the 2 nodes with 4 free GPUs serve at most 1.6",
            None,
            id="demand beyond the nodes",
        ),
        pytest.param(
            sample_inputs(objective=MEET, demand=Demand(requests_per_second=1e6)),
            Constraint.ENGINES,
            "256 engines, the most of one pool, serve less: use several pools",
            None,
            id="demand beyond a pool",
        ),
        pytest.param(
            sample_inputs(
                profile=LARGE.model_copy(
                    update={
                        "parallelism": tuple(
                            p.model_copy(update={"tensor_parallel": tp, "pipeline_parallel": 1})
                            for p, tp in zip(LARGE.parallelism[:2], (4, 6), strict=True)
                        )
                    }
                ),
                node_shapes=nodes(8),
            ),
            Constraint.PARALLELISM,
            "replicas of 4, 6 GPUs cannot be planned together",
            None,
            id="sizes that do not divide one another",
        ),
    ],
)
def test_infeasible(
    inputs: PlannerInputs, constraint: Constraint, message: str, smallest: int | None
) -> None:
    result = plan(inputs)

    assert isinstance(result, Infeasible)
    assert message in result.message
    assert result.constraint is constraint
    assert result.smallest_budget == smallest


def test_the_smallest_budget_does_and_one_gpu_less_does_not() -> None:
    inputs = sample_inputs(gpu_budget=2, objective=MEET, demand=Demand(concurrent_sessions=900))
    short = plan(inputs)
    assert isinstance(short, Infeasible)
    assert short.smallest_budget is not None

    assert isinstance(plan(replace(inputs, gpu_budget=short.smallest_budget)), Plan)
    assert isinstance(plan(replace(inputs, gpu_budget=short.smallest_budget - 1)), Infeasible)


# --- close to the running plan ---


def test_bounded_change_goes_step_by_step_to_the_same_end() -> None:
    inputs = sample_inputs(gpu_budget=8, current_plan=running((Role.AGGREGATED, 1, 8)), max_change_per_step=3)
    goal = planned(replace(inputs, current_plan=None, max_change_per_step=None))
    capacity = 0.0
    for _ in range(5):
        step = planned(inputs)
        assert (step.capacity or 0) >= capacity
        capacity = step.capacity or 0
        inputs = replace(
            inputs, current_plan=running(*((g.role, g.tensor_parallel, g.replicas) for g in step.groups))
        )

    assert step.capacity == pytest.approx(goal.capacity)


def test_the_bound_paces_the_way_to_a_demand() -> None:
    inputs = sample_inputs(
        objective=MEET,
        demand=Demand(requests_per_second=24.0),
        current_plan=running((Role.AGGREGATED, 1, 1)),
        max_change_per_step=2,
        allowed_parallelism=(Parallelism(1), Parallelism(2)),
    )
    result = planned(inputs)

    assert result.paced
    assert "max change per step: 2 replicas" in result.binding_constraint
    assert "farther from the running plan than one step" in result.alternatives[0].rejected
    assert (result.capacity or 0) < (result.demand or 0)


def test_a_running_plan_that_lost_its_nodes_may_change_more() -> None:
    inputs = sample_inputs(
        current_plan=running((Role.AGGREGATED, 1, 8)), max_change_per_step=1, node_shapes=nodes(2)
    )
    result = planned(inputs)

    assert result.paced
    assert result.gpus_used == 2
    assert "the running plan cannot stay: 6 replicas change, 1 are allowed" in result.binding_constraint


def test_shrinking_is_paced_too() -> None:
    inputs = sample_inputs(
        objective=MINIMIZE, current_plan=running((Role.AGGREGATED, 1, 8)), max_change_per_step=3
    )
    result = planned(inputs)

    assert result.gpus_used == 5
    assert result.binding_constraint == "max change per step: 3 of 3 removals, 5 GPUs stay"


def test_an_infeasible_demand_is_not_blamed_on_the_bound() -> None:
    result = plan(
        sample_inputs(
            gpu_budget=4,
            objective=MEET,
            demand=Demand(requests_per_second=24.0),
            current_plan=running((Role.AGGREGATED, 1, 1)),
            max_change_per_step=1,
        )
    )

    assert isinstance(result, Infeasible)
    assert result.constraint is Constraint.BUDGET


# --- without an answer in time ---


def test_without_an_answer_in_time_a_simple_plan_is_used_and_named() -> None:
    for mode in (AGGREGATED, DISAGGREGATED):
        result = planned(sample_inputs(mode=mode), solve=silent_solver)
        best = planned(sample_inputs(mode=mode))

        assert result.solver_status is SolverStatus.GREEDY
        assert result.alternatives == ()
        assert 0.7 * (best.capacity or 0) < (result.capacity or 0) <= (best.capacity or 0) * (1 + 1e-9)


def test_the_best_plan_at_the_time_limit_is_used_and_named() -> None:
    assert planned(sample_inputs(), solve=slow_solver).solver_status is SolverStatus.FEASIBLE


def test_a_solver_that_wrongly_finds_nothing_is_refuted() -> None:
    assert planned(sample_inputs(), solve=wrong_solver).solver_status is SolverStatus.GREEDY


def test_neither_solver_nor_fallback() -> None:
    inputs = sample_inputs(objective=MEET, demand=Demand(requests_per_second=1000.0), time_limit_seconds=3)
    result = plan(inputs, solve=silent_solver)

    assert isinstance(result, SolverTimeout)
    assert result.seconds == 3
    assert "raise the time limit" in result.message


# --- Manual ---


def manual(*groups: tuple[Role, int, int], **changes: Any) -> PlannerInputs:
    return sample_inputs(mode=PlanningMode.MANUAL, manual_groups=running(*groups), **changes)


def test_manual_groups_are_kept_and_predicted() -> None:
    result = planned(manual((Role.PREFILL, 1, 1), (Role.DECODE, 2, 2)))

    assert [str(g) for g in result.groups] == ["1 x prefill TP1", "2 x decode TP2"]
    assert result.solver_status is SolverStatus.GIVEN
    assert result.mode is DISAGGREGATED
    assert result.groups[0].predicted_ttft_p95_s is not None
    assert result.groups[1].predicted_itl_p95_s is not None


@pytest.mark.parametrize(
    ("inputs", "constraint", "message"),
    [
        pytest.param(
            manual((Role.AGGREGATED, 4, 5)), Constraint.BUDGET, "20 GPUs exceed the budget", id="budget"
        ),
        pytest.param(manual((Role.PREFILL, 1, 1)), Constraint.ROLES, "both prefill and decode", id="roles"),
        pytest.param(
            manual((Role.AGGREGATED, 8, 1), node_shapes=nodes(4, 4)), Constraint.NODES, "no node", id="nodes"
        ),
        pytest.param(
            manual((Role.AGGREGATED, 1, 5), max_engines=4), Constraint.ENGINES, "limit of 4", id="engines"
        ),
    ],
)
def test_manual_groups_must_fit(inputs: PlannerInputs, constraint: Constraint, message: str) -> None:
    result = plan(inputs)

    assert isinstance(result, Infeasible)
    assert result.constraint is constraint
    assert message in result.message


@pytest.mark.parametrize(
    ("inputs", "note"),
    [
        pytest.param(
            manual((Role.AGGREGATED, 1, 1), objective=MEET, demand=Demand(requests_per_second=24.0)),
            "of the 5 samples/s demanded within the SLOs",
            id="demand",
        ),
        pytest.param(
            manual((Role.AGGREGATED, 1, 1), classes=with_slo(RLVR, RLHF, AGENTIC, itl=0.001)),
            "aggregated TP1: ITL p95 SLO 1 ms of agentic is out of reach",
            id="SLO",
        ),
        pytest.param(
            manual((Role.AGGREGATED, 3, 1)), "does not know TP3: nothing is predicted", id="not in profile"
        ),
        pytest.param(manual((Role.AGGREGATED, 1, 1), profile=None), "no profile", id="no profile"),
    ],
)
def test_manual_groups_are_kept_with_a_note(inputs: PlannerInputs, note: str) -> None:
    assert note in planned(inputs).binding_constraint


def test_the_running_plan_can_be_valued_for_hysteresis() -> None:
    best = planned(sample_inputs())
    groups = running(*((g.role, g.tensor_parallel, g.replicas) for g in best.groups))
    again = planned(sample_inputs(mode=PlanningMode.MANUAL, manual_groups=groups))

    assert again.objective_value == pytest.approx(best.objective_value)
    assert again.hash == best.hash
    assert again.groups == best.groups


# --- the same inputs, the same plan ---


def test_input_order_does_not_matter() -> None:
    shapes = nodes(8, 3, 4)
    current = running((Role.DECODE, 2, 1), (Role.PREFILL, 1, 2))
    allowed = (Parallelism(1), Parallelism(2), Parallelism(4))
    forward = sample_inputs(node_shapes=shapes, current_plan=current, allowed_parallelism=allowed)
    backward = sample_inputs(
        classes=(AGENTIC, RLHF, RLVR),
        node_shapes=shapes[::-1],
        current_plan=current[::-1],
        allowed_parallelism=allowed[::-1],
    )

    assert planned(forward) == planned(backward) == plan(forward)


class_strategy = st.sampled_from(
    [
        (replace(RLVR, share=1.0),),
        (replace(AGENTIC, share=1.0),),
        (RLVR, RLHF, AGENTIC),
        with_slo(RLVR, RLHF, AGENTIC, ttft=2.0, itl=0.03),
    ]
)
inputs_strategy = st.builds(
    sample_inputs,
    profile=st.sampled_from([load_builtin("emulated-8b-h100"), LARGE]),
    classes=class_strategy,
    gpu_budget=st.integers(1, 40),
    node_shapes=st.none()
    | st.lists(st.integers(0, 8), min_size=1, max_size=4).map(lambda free: nodes(*free)),
    mode=st.sampled_from([PlanningMode.AUTO, AGGREGATED, DISAGGREGATED]),
    objective=st.sampled_from(list(PlanningObjective)),
    demand=st.none() | st.builds(Demand, requests_per_second=st.sampled_from([0.5, 3.0, 20.0])),
    current_plan=st.sampled_from(
        [None, running((Role.AGGREGATED, 2, 2)), running((Role.PREFILL, 2, 1), (Role.DECODE, 4, 1))]
    ),
    max_change_per_step=st.none() | st.integers(1, 4),
)


@given(inputs=inputs_strategy)
@settings(max_examples=12, deadline=None)
def test_every_plan_keeps_every_constraint(inputs: PlannerInputs) -> None:
    result = plan(inputs)

    assert not isinstance(result, SolverTimeout)
    if isinstance(result, Plan):
        assert violations(result, inputs) == ()
        assert result.binding_constraint
        assert len(result.alternatives) <= 2
    else:
        assert any(character.isdigit() for character in result.message)


@given(
    budget=st.integers(2, 24),
    more=st.integers(1, 8),
    mode=st.sampled_from([PlanningMode.AUTO, AGGREGATED, DISAGGREGATED]),
)
@settings(max_examples=4, deadline=None)
def test_more_budget_never_lowers_throughput(budget: int, more: int, mode: PlanningMode) -> None:
    less = planned(sample_inputs(gpu_budget=budget, mode=mode))
    larger = planned(sample_inputs(gpu_budget=budget + more, mode=mode))

    assert (larger.capacity or 0) >= (less.capacity or 0) * (1 - 1e-5)
