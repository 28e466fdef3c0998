from dataclasses import replace
from typing import Any

import pytest

from rolloutpool_api.planning import PlanningMode, PlanningObjective, Role
from rolloutpool_planner.errors import InputError
from rolloutpool_planner.inputs import Demand, EngineLimits, NodeShape, Parallelism, ReplicaGroup
from rolloutpool_planner.read import read_inputs
from rolloutpool_planner.testing import RLHF, RLVR, sample_inputs

GROUP = ReplicaGroup(role=Role.AGGREGATED, tensor_parallel=1, replicas=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"classes": ()}, "at least one workload class", id="no class"),
        pytest.param({"classes": (RLVR, RLHF)}, "shares sum to 0.8000, not to 1", id="shares"),
        pytest.param({"classes": (RLVR, RLVR)}, "class names must be unique", id="twice the same class"),
        pytest.param({"gpu_budget": 0}, "gpu_budget must be at least 1, not 0", id="no budget"),
        pytest.param({"time_limit_seconds": 0.0}, "time_limit_seconds must be a positive", id="no time"),
        pytest.param({"max_change_per_step": 0}, "max_change_per_step must be a positive", id="no change"),
        pytest.param({"profile": None}, "a performance profile is needed", id="no profile"),
        pytest.param({"allowed_parallelism": ()}, "allowed_parallelism is empty", id="nothing allowed"),
        pytest.param({"mode": PlanningMode.MANUAL}, "manual_groups are given in mode Manual", id="no groups"),
        pytest.param({"manual_groups": (GROUP,)}, "manual_groups are given in mode Manual", id="not Manual"),
        pytest.param(
            {"current_plan": (GROUP, GROUP)}, "groups of one role must be unique", id="twice a group"
        ),
    ],
)
def test_contradicting_inputs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample_inputs(**changes)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        pytest.param("share", 0.0, "share must be a positive number", id="share 0"),
        pytest.param("share", float("nan"), "share must be a positive number", id="share NaN"),
        pytest.param("prompt_tokens_p95", 10, "prompt tokens p95 < p50", id="prompt"),
        pytest.param("output_tokens_p95", 10, "output tokens p95 < p50", id="output"),
        pytest.param("turns", 0, "turns must be a positive", id="turns"),
        pytest.param("tool_gap_seconds", -1.0, "negative turn_tokens or gap", id="gap"),
        pytest.param("itl_slo_seconds", 0.0, "itl_slo_seconds must be a positive", id="slo"),
        pytest.param("name", "", "a class needs a name", id="name"),
    ],
)
def test_impossible_class(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(RLVR, **{field: value})  # type: ignore[arg-type]


def test_other_parts_are_checked() -> None:
    with pytest.raises(InputError, match="between 0 and gpus_per_node"):
        NodeShape(product="H100", gpus_per_node=8, free_gpus=9)
    with pytest.raises(InputError, match="exactly one of"):
        Demand(requests_per_second=1.0, concurrent_sessions=1)
    with pytest.raises(InputError, match="exactly one of"):
        Demand()
    with pytest.raises(InputError, match="kv_fill"):
        EngineLimits(kv_fill=1.5)
    with pytest.raises(InputError, match="at least 1"):
        Parallelism(0)


YAML = """
profile: emulated-8b-h100
gpu_budget: 4
mode: Disaggregated
objective: MeetSLO
demand: {requests_per_second: 2}
node_shapes: [{product: H100, gpus_per_node: 8, free_gpus: 6}]
allowed_parallelism: [{tensor_parallel: 1}, {tensor_parallel: 2}]
classes:
  - {name: rlhf, share: 1, prompt_tokens_p50: 800, prompt_tokens_p95: 2000,
     output_tokens_p50: 250, output_tokens_p95: 800}
"""


def test_inputs_are_read_from_yaml() -> None:
    inputs = read_inputs(YAML)

    assert inputs.mode is PlanningMode.DISAGGREGATED
    assert inputs.objective is PlanningObjective.MEET_SLO
    assert inputs.profile is not None
    assert inputs.profile.name == "emulated-8b-h100"
    assert inputs.allowed_parallelism == (Parallelism(1), Parallelism(2))
    assert inputs.node_shapes == (NodeShape(product="H100", gpus_per_node=8, free_gpus=6),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("gpu_budget: 4", "gpu_budgett: 4", "gpu_budgett", id="unknown field"),
        pytest.param("share: 1", "share: 1, turn: 2", "classes.0.turn", id="unknown field of a class"),
        pytest.param("share: 1", "share: 0.5", "shares sum to 0.5000", id="shares"),
        pytest.param("emulated-8b-h100", "nothing-like-it", "no built-in profile", id="profile"),
        pytest.param("gpu_budget: 4", "gpu_budget: [", "cannot be read", id="not YAML"),
        pytest.param("mode: Disaggregated", "mode: Both", "mode", id="enumeration"),
    ],
)
def test_unusable_yaml(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_inputs(YAML.replace(old, new))
