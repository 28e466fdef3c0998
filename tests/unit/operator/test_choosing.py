"""Which plan the pool works towards."""

from typing import Any

import pytest

from rolloutpool_api.planning import PlanningMode, PlanningObjective, Role
from rolloutpool_api.status import PlanStatus
from rolloutpool_operator.core.choosing import (
    Answer,
    NoAnswer,
    PlanChoice,
    choose_plan,
    gain_percent,
    plan_status,
)
from rolloutpool_planner.answers import (
    Constraint,
    Group,
    Infeasible,
    Plan,
    SolverStatus,
    SolverTimeout,
    plan_hash,
)


def plan(replicas: int = 2, value: float | None = 10.0, **changes: Any) -> Plan:
    groups = (
        Group(
            role=Role.AGGREGATED,
            tensor_parallel=1,
            pipeline_parallel=1,
            replicas=replicas,
            gpus_per_replica=1,
            predicted_ttft_p95_s=0.1234,
            utilization=0.5,
        ),
    )
    fields: dict[str, Any] = {
        "groups": groups,
        "mode": PlanningMode.AGGREGATED,
        "gpus_used": replicas,
        "gpu_budget": 8,
        "hash": plan_hash(PlanningMode.AGGREGATED, groups),
        "solver": "CBC",
        "solver_status": SolverStatus.OPTIMAL,
        "objective": PlanningObjective.MAXIMIZE_THROUGHPUT,
        "objective_value": value,
        "capacity": value,
        "demand": None,
        "binding_constraint": "budget",
    }
    return Plan(**fields | changes)


def stored(found: Plan) -> PlanStatus:
    return plan_status(found, now="then", stored=None)


def choose(answer: Answer, old: Plan | None = None, **changes: Any) -> PlanChoice:
    options: dict[str, Any] = {
        "stored": stored(old) if old else None,
        "stored_now": old,
        "same_spec": True,
        "hysteresis_percent": 5,
        "now": "now",
    }
    return choose_plan(answer, **options | changes)


def test_the_first_plan() -> None:
    found = choose(plan(3))
    assert found.plan is not None
    assert (found.ready, found.reason, found.plan.computed_at) == (True, "Planned", "now")
    assert found.message == "3 x aggregated-tp1 on 3 of 8 GPUs (Optimal)"
    group = found.plan.groups[0]
    assert (group.ttft_p95_milliseconds, group.itl_p95_milliseconds, group.utilization_percent) == (
        123,
        None,
        50,
    )


@pytest.mark.parametrize(
    ("gain", "replicas", "held"),
    [
        pytest.param(1.0, 2, True, id="small gain"),
        pytest.param(4.9, 2, True, id="just below"),
        pytest.param(5.0, 3, False, id="enough"),
        pytest.param(-3.0, 2, True, id="a loss"),
    ],
)
def test_hysteresis(gain: float, replicas: int, held: bool) -> None:
    found = choose(plan(3, 10.0 * (1 + gain / 100)), plan(2, 10.0))
    assert found.plan is not None
    assert found.plan.groups[0].replicas == replicas
    assert bool(found.held) is held
    assert found.ready


def test_held_says_by_how_much() -> None:
    found = choose(plan(3, 10.2), plan(2, 10.0))
    assert found.held == "3 x aggregated-tp1 would gain 2.0 %, less than hysteresisPercent 5"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"same_spec": False}, id="another spec"),
        pytest.param(
            {"stored_now": Infeasible(constraint=Constraint.NODES, message="a node is gone")},
            id="no longer possible",
        ),
    ],
)
def test_a_stored_plan_that_no_longer_counts(changes: dict[str, Any]) -> None:
    found = choose(plan(3, 10.01), plan(2, 10.0), **changes)
    assert found.plan is not None
    assert (found.plan.groups[0].replicas, found.held) == (3, "")


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        pytest.param(
            Infeasible(constraint=Constraint.SLO, message="TTFT 300 ms > 200 ms", smallest_budget=6),
            "Infeasible",
            "slo: TTFT 300 ms > 200 ms; smallest budget that would do: 6 GPUs",
            id="infeasible",
        ),
        pytest.param(
            SolverTimeout(seconds=20, message="nothing found"), "SolverTimeout", "20 s", id="timeout"
        ),
        pytest.param(
            NoAnswer(reason="ProfileMissing", message="no profile"),
            "ProfileMissing",
            "no profile",
            id="profile",
        ),
    ],
)
def test_without_an_answer_the_pool_goes_on(answer: Answer, reason: str, words: str) -> None:
    found = choose(answer, plan(2))
    assert (found.ready, found.reason) == (False, reason)
    assert words in found.message
    assert found.message.endswith("going on with 2 x aggregated-tp1")
    assert found.plan == stored(plan(2))
    assert choose(answer).plan is None


def test_the_same_plan_keeps_its_time() -> None:
    found = choose(plan(2), plan(2))
    assert found.plan is not None
    assert found.plan.computed_at == "then"
    changed = choose(plan(2, gpu_budget=9), plan(2)).plan
    assert changed is not None
    assert (changed.computed_at, changed.gpu_budget) == ("now", 9)


def test_gain_in_gpus() -> None:
    fewest = PlanningObjective.MINIMIZE_GPUS
    assert gain_percent(plan(3, 3, objective=fewest), plan(4, 4, objective=fewest)) == 25.0
    assert gain_percent(plan(3, None), plan(4, 4)) == 100.0


def test_notes_are_told() -> None:
    assert choose(plan(2), note="take care").message.endswith("; take care")
