from pathlib import Path

import pytest

from rolloutpool_api.planning import PlanningMode, PlanningObjective, Role
from rolloutpool_planner.__main__ import main
from rolloutpool_planner.answers import Constraint, Infeasible, SolverTimeout, plan_hash, summary
from rolloutpool_planner.explain import explain, objective_text
from rolloutpool_planner.inputs import Demand, ReplicaGroup
from rolloutpool_planner.plan import plan
from rolloutpool_planner.testing import sample_inputs

YAML = """
profile: emulated-8b-h100
gpu_budget: {budget}
mode: Disaggregated
classes:
  - {{name: rlhf, share: 1, prompt_tokens_p50: 800, prompt_tokens_p95: 2000,
     output_tokens_p50: 250, output_tokens_p95: 800}}
"""


def test_a_plan_is_explained_with_a_table() -> None:
    result = plan(
        sample_inputs(objective=PlanningObjective.MINIMIZE_GPUS, demand=Demand(requests_per_second=5))
    )
    text = explain(result)

    lines = text.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("ROLE"))
    assert lines[header].split() == [
        "ROLE",
        "PARALLELISM",
        "REPLICAS",
        "GPUS",
        "TTFT",
        "P95",
        "ITL",
        "P95",
        "LOAD",
    ]
    assert lines[header + 1].startswith("aggregated")
    assert "Objective: MinimizeGPUs: " in text
    assert "Demand: 1.042 samples/s" in text
    assert "Limited by: demand of 1.042" in text
    assert "Rejected: " in text


def test_unknown_predictions_are_dashes() -> None:
    groups = (ReplicaGroup(role=Role.AGGREGATED, tensor_parallel=1, replicas=1),)
    result = plan(sample_inputs(mode=PlanningMode.MANUAL, manual_groups=groups, profile=None))

    assert not isinstance(result, Infeasible | SolverTimeout)
    assert objective_text(result) == "MaximizeThroughput: unknown"
    assert explain(result).count(" -") >= 3


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        pytest.param(
            Infeasible(constraint=Constraint.BUDGET, message="too small", smallest_budget=4),
            ["No plan: too small", "Constraint: gpu budget", "Smallest budget that would do: 4 GPUs"],
            id="infeasible",
        ),
        pytest.param(
            SolverTimeout(seconds=1.0, message="no plan found"), ["No plan: no plan found"], id="timeout"
        ),
    ],
)
def test_no_plan_is_explained(result: Infeasible | SolverTimeout, expected: list[str]) -> None:
    assert explain(result).splitlines() == expected


def test_hash_ignores_order_and_predictions_but_not_counts() -> None:
    groups = [
        ReplicaGroup(role=Role.PREFILL, tensor_parallel=1, replicas=1),
        ReplicaGroup(role=Role.DECODE, tensor_parallel=2, replicas=2),
    ]
    mode = PlanningMode.DISAGGREGATED

    assert plan_hash(mode, groups) == plan_hash(mode, groups[::-1]) == "0c6a745e89e9"
    assert plan_hash(mode, groups[:1]) != plan_hash(mode, groups)


def test_summary() -> None:
    result = plan(sample_inputs(gpu_budget=1))

    assert not isinstance(result, Infeasible | SolverTimeout)
    assert summary(result.groups) == "1 x aggregated TP1"


@pytest.mark.parametrize(
    ("budget", "status", "output", "errors"),
    [
        pytest.param("4", 0, "Plan ", "", id="a plan"),
        pytest.param("1", 1, "No plan: the GPU budget is 1", "", id="no plan"),
        pytest.param("x", 2, "", "gpu_budget", id="unusable inputs"),
    ],
)
def test_command(
    budget: str, status: int, output: str, errors: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "inputs.yaml"
    path.write_text(YAML.format(budget=budget), encoding="utf-8")

    assert main([str(path)]) == status
    out, err = capsys.readouterr()
    assert output in out
    assert errors in err


def test_command_without_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / "absent.yaml")]) == 2
    assert "usage: " in capsys.readouterr().err
