"""Spec and cluster as the planner's inputs."""

from typing import Any

import pytest

from rolloutpool_api.planning import GpuSpec, PlanningMode, Role
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import PlanGroup
from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_operator.core.groups import describe, group_of, running_groups
from rolloutpool_operator.core.observed import ChildFacts, NodeFacts, ProfileFacts
from rolloutpool_operator.core.translate import (
    node_shapes,
    planner_inputs,
    profile_note,
    read_profile,
    selection_note,
)
from rolloutpool_planner.inputs import NodeShape, Parallelism
from rolloutpool_sim.profile import ProfileError, load_builtin
from rolloutpool_testkit.manifests import pool_manifest

PROFILE = load_builtin("emulated-8b-h100")


def spec(**changes: Any) -> RolloutPoolSpec:
    return parse_pool(pool_manifest(**changes)).spec


def node(name: str = "n", gpus: int = 8, free: int = 8, **more: Any) -> NodeFacts:
    return NodeFacts(name=name, gpus_allocatable=gpus, gpus_free=free, **more)


def test_classes_take_the_pools_slo_where_they_have_none() -> None:
    workloads = [
        {"name": "a", "share": 0.5, "slo": {"ttftMilliseconds": 100}},
        {"name": "b", "share": 0.5, "priors": {"turns": 3, "toolGapSeconds": 2.5}},
    ]
    slo = {"ttftMilliseconds": 2000, "itlMilliseconds": 50, "demand": {"requestsPerSecond": 4}}
    found = planner_inputs(spec(workloads=workloads, slo=slo), profile=PROFILE, nodes=None, running=())
    assert [(c.ttft_slo_seconds, c.itl_slo_seconds) for c in found.classes] == [(0.1, 0.05), (2.0, 0.05)]
    assert (found.classes[1].turns, found.classes[1].tool_gap_seconds) == (3, 2.5)
    assert found.demand is not None
    assert found.demand.requests_per_second == 4


def test_planning_is_passed_on() -> None:
    planning = {
        "mode": "Disaggregated",
        "allowedParallelism": [{"tensorParallel": 2}, {"tensorParallel": 1, "pipelineParallel": 2}],
        "maxChangePerStep": 2,
        "timeLimitSeconds": 7,
    }
    found = planner_inputs(spec(planning=planning), profile=PROFILE, nodes=None, running=())
    assert found.mode is PlanningMode.DISAGGREGATED
    assert found.allowed_parallelism == (Parallelism(2), Parallelism(1, 2))
    assert (found.max_change_per_step, found.time_limit_seconds, found.node_shapes) == (2, 7.0, None)


def test_manual_needs_no_profile() -> None:
    planning = {"mode": "Manual", "replicas": [{"role": "aggregated", "tensorParallel": 2, "replicas": 2}]}
    found = planner_inputs(spec(planning=planning), profile=None, nodes=None, running=())
    assert [(g.role, g.tensor_parallel, g.replicas) for g in found.manual_groups] == [(Role.AGGREGATED, 2, 2)]


@pytest.mark.parametrize(
    ("args", "batched", "sequences"),
    [
        pytest.param([], 8192, 1024, id="defaults"),
        pytest.param(
            ["--max-num-seqs=64", "--max-num-batched-tokens", "4096"], 4096, 64, id="both ways of writing"
        ),
        pytest.param(["--max-num-seqs=64", "--max-num-seqs=32"], 8192, 32, id="the last one counts"),
    ],
)
def test_engine_flags_that_bound_an_engine(args: list[str], batched: int, sequences: int) -> None:
    found = planner_inputs(spec(engine__extraArgs=args), profile=PROFILE, nodes=None, running=()).limits
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (batched, sequences)


@pytest.mark.parametrize(
    ("gpus", "nodes", "expected"),
    [
        pytest.param({}, [node("a"), node("b")], [(8, 8, 2)], id="alike nodes together"),
        pytest.param({}, [node(gpus=0, free=0)], [], id="nodes without GPUs"),
        pytest.param(
            {"nodeSelector": {"x": "y"}},
            [node("a"), node("b", labels={"x": "y"})],
            [(8, 8, 1)],
            id="selector",
        ),
        pytest.param(
            {"product": "H100"},
            [
                node("a", labels={"nvidia.com/gpu.product": "A100"}),
                node("b", labels={"nvidia.com/gpu.product": "H100"}),
            ],
            [(8, 8, 1)],
            id="product",
        ),
        pytest.param(
            {}, [node(schedulable=False, gpus_own=3)], [(8, 3, 1)], id="cordoned: what is there may stay"
        ),
        pytest.param(
            {},
            [node(taints=({"key": "nvidia.com/gpu", "effect": "NoSchedule"},))],
            [(8, 8, 1)],
            id="the GPU taint",
        ),
        pytest.param(
            {}, [node(taints=({"key": "x", "effect": "NoSchedule"},))], [(8, 0, 1)], id="another taint"
        ),
        pytest.param(
            {"tolerations": [{"key": "x", "value": "v"}]},
            [node(taints=({"key": "x", "value": "v", "effect": "NoExecute"},))],
            [(8, 8, 1)],
            id="tolerated",
        ),
        pytest.param(
            {"tolerations": [{"operator": "Exists"}]},
            [node(taints=({"key": "x", "effect": "NoExecute"},))],
            [(8, 8, 1)],
            id="everything tolerated",
        ),
        pytest.param(
            {}, [node(taints=({"key": "x", "effect": "PreferNoSchedule"},))], [(8, 8, 1)], id="soft taint"
        ),
    ],
)
def test_node_shapes(
    gpus: dict[str, Any], nodes: list[NodeFacts], expected: list[tuple[int, int, int]]
) -> None:
    found = node_shapes(GpuSpec.model_validate({"budget": 8, **gpus}), nodes)
    assert [(s.gpus_per_node, s.free_gpus, s.count) for s in found] == expected
    assert all(isinstance(shape, NodeShape) for shape in found)


def test_profiles() -> None:
    assert read_profile(spec(), ProfileFacts()).name == "emulated-8b-h100"
    from_map = spec(planning={"profile": {"configMapRef": {"name": "mine"}}})
    with pytest.raises(ProfileError, match="no such thing"):
        read_profile(from_map, ProfileFacts(error="no such thing"))
    with pytest.raises(ProfileError):
        read_profile(from_map, ProfileFacts(text="name: 3"))
    with pytest.raises(ProfileError):
        read_profile(spec(planning={"profile": {"builtin": "none-such"}}), ProfileFacts())


def test_a_profile_for_another_model_is_no_silent_guess() -> None:
    assert "not for llama" in profile_note(spec(), PROFILE)
    assert profile_note(spec(model__name="llama-8b"), PROFILE) == ""
    assert profile_note(spec(model__source="meta/Llama-3.1-8B"), PROFILE) == ""


def child(group: str, replicas: int, *, deleting: bool = False) -> ChildFacts:
    body = {"metadata": {"labels": {"rolloutpool.dev/group": group}}, "spec": {"replicas": replicas}}
    return ChildFacts(kind="StatefulSet", name=group, uid=group, body=body, deleting=deleting)


def test_running_groups_come_from_the_sets() -> None:
    sets = [
        child("prefill-tp1", 1),
        child("decode-tp4-pp2", 3),
        child("decode-tp1", 2, deleting=True),
        child("odd", 1),
    ]
    found = running_groups(sets)
    assert describe(found) == "3 x decode-tp4-pp2, 1 x prefill-tp1"
    assert found[0].gpus_per_replica == 8
    assert group_of(child("odd-tp1", 1)) is None
    assert describe(()) == "nothing"
    assert isinstance(found[0], PlanGroup)


H100: dict[str, Any] = {"product": "H100", "labels": {"nvidia.com/gpu.product": "H100"}}


@pytest.mark.parametrize(
    ("asked", "nodes", "expected"),
    [
        pytest.param({"product": "H100"}, (node(**H100),), "", id="one fits"),
        pytest.param({"product": "B200"}, None, "", id="nodes not known"),
        pytest.param({}, (node(gpus=0),), "no node advertises nvidia.com/gpu", id="no GPUs anywhere"),
        pytest.param(
            {"product": "B200", "nodeSelector": {"zone": "a"}},
            (node("x", **H100), node("y", **H100)),
            "spec.gpus asks for nodes with product B200, zone=a; the nodes with GPUs are 2 x H100 (8 GPUs)",
            id="others are there",
        ),
    ],
)
def test_selection_note(asked: dict[str, Any], nodes: tuple[NodeFacts, ...] | None, expected: str) -> None:
    assert selection_note(GpuSpec.model_validate({"budget": 8, **asked}), nodes) == expected
