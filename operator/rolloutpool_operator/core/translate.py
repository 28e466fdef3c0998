"""From spec and cluster to the planner's inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rolloutpool_api import labels
from rolloutpool_api.planning import GpuSpec, PlanningMode, SloSpec
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import PlanGroup
from rolloutpool_api.workloads import WorkloadSpec
from rolloutpool_operator.core.observed import NodeFacts, ProfileFacts
from rolloutpool_planner.inputs import (
    Demand,
    EngineLimits,
    NodeShape,
    Parallelism,
    PlannerInputs,
    ReplicaGroup,
    WorkloadClass,
)
from rolloutpool_sim.profile import PerformanceProfile, ProfileError, load_builtin, parse_profile


def planner_inputs(
    spec: RolloutPoolSpec,
    *,
    profile: PerformanceProfile | None,
    nodes: Sequence[NodeFacts] | None,
    running: Sequence[PlanGroup],
) -> PlannerInputs:
    """The planner's inputs for a pool.

    Args:
        spec: the pool's spec.
        profile: performance profile; None only in mode Manual.
        nodes: nodes of the cluster; None where they are not known, so that the budget alone counts.
        running: groups that run now, which the new plan changes as little as it can.

    Raises:
        InputError: if the parts contradict each other.
    """
    planning = spec.planning
    demand = spec.slo.demand if spec.slo else None
    return PlannerInputs(
        profile=profile,
        classes=tuple(_workload(workload, spec.slo) for workload in spec.workloads),
        gpu_budget=spec.gpus.budget,
        node_shapes=None if nodes is None else node_shapes(spec.gpus, nodes),
        mode=planning.mode,
        objective=planning.objective,
        demand=Demand(**demand.model_dump()) if demand else None,
        allowed_parallelism=(
            tuple(Parallelism(p.tensor_parallel, p.pipeline_parallel) for p in planning.allowed_parallelism)
            if planning.allowed_parallelism
            else None
        ),
        current_plan=replica_groups(running) or None,
        max_change_per_step=planning.max_change_per_step,
        manual_groups=tuple(ReplicaGroup(**group.model_dump()) for group in (planning.replicas or ())),
        time_limit_seconds=float(planning.time_limit_seconds),
        limits=_limits(spec),
    )


def read_profile(spec: RolloutPoolSpec, facts: ProfileFacts) -> PerformanceProfile:
    """The performance profile that the spec names.

    Raises:
        ProfileError: where there is none, or it cannot be read; says what to do.
    """
    reference = spec.planning.profile
    if reference.builtin:
        return load_builtin(reference.builtin)
    if facts.text is None:
        raise ProfileError(facts.error or "spec.planning.profile names no profile")
    try:
        return parse_profile(facts.text)
    except ProfileError as error:
        named = reference.config_map_ref
        where = f"ConfigMap {named.name}, key {named.key}: " if named else ""
        raise ProfileError(f"{where}{error}") from None


def selection_note(gpus: GpuSpec, nodes: Iterable[NodeFacts] | None) -> str:
    """Which nodes there are, where none is what spec.gpus asks for; empty if one is or none is known."""
    if nodes is None:
        return ""
    with_gpus = [node for node in nodes if node.gpus_allocatable > 0]
    if not with_gpus:
        return f"no node advertises {gpus.resource_name}"
    if any(_selected(gpus, node) for node in with_gpus):
        return ""
    product = [f"product {gpus.product}"] if gpus.product else []
    asked = ", ".join([*product, *(f"{name}={value}" for name, value in gpus.node_selector.items())])
    there = Counter((node.product or "unknown", node.gpus_allocatable) for node in with_gpus)
    kinds = ", ".join(f"{count} x {name} ({amount} GPUs)" for (name, amount), count in sorted(there.items()))
    return f"spec.gpus asks for nodes with {asked}; the nodes with GPUs are {kinds}"


def profile_note(spec: RolloutPoolSpec, profile: PerformanceProfile | None) -> str:
    """What to keep in mind about a profile that was made for another model; empty if nothing."""
    names = (spec.model.name, spec.model.source or "")
    if profile is None or any(profile.matches_model(name) for name in names if name):
        return ""
    patterns = ", ".join(profile.model_patterns)
    return f"profile {profile.name} was made for {patterns}, not for {spec.model.name}: distrust its numbers"


def replica_groups(groups: Iterable[PlanGroup]) -> tuple[ReplicaGroup, ...]:
    """Groups of a status as the planner's; those without replicas are left out."""
    return tuple(
        ReplicaGroup(
            role=group.role,
            tensor_parallel=group.tensor_parallel,
            pipeline_parallel=group.pipeline_parallel,
            replicas=group.replicas,
        )
        for group in groups
        if group.replicas > 0
    )


def node_shapes(gpus: GpuSpec, nodes: Iterable[NodeFacts]) -> tuple[NodeShape, ...]:
    """Nodes that the pool's engines may use, alike ones counted together.

    A node that takes no new pods offers what the pool's engines hold there already.
    """
    shapes: Counter[tuple[str, int, int]] = Counter()
    for node in nodes:
        if node.gpus_allocatable > 0 and _selected(gpus, node):
            usable = node.schedulable and _tolerated(gpus, node.taints)
            free = node.gpus_free if usable else min(node.gpus_own, node.gpus_free)
            shapes[node.product, node.gpus_allocatable, free] += 1
    return tuple(
        NodeShape(product=product or "unknown", gpus_per_node=total, free_gpus=free, count=count)
        for (product, total, free), count in sorted(shapes.items())
    )


def _selected(gpus: GpuSpec, node: NodeFacts) -> bool:
    if gpus.product and node.labels.get(labels.GPU_PRODUCT) != gpus.product:
        return False
    return all(node.labels.get(name) == value for name, value in gpus.node_selector.items())


def _tolerated(gpus: GpuSpec, taints: Iterable[Mapping[str, str]]) -> bool:
    always = {"key": gpus.resource_name, "operator": "Exists", "effect": "NoSchedule"}
    tolerations = [always, *gpus.tolerations]
    hard = (taint for taint in taints if taint.get("effect") in ("NoSchedule", "NoExecute"))
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in hard)


def _tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    """Kubernetes' rule: an empty effect or key matches all; Exists needs no value."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    exists = toleration.get("operator") == "Exists"
    if not toleration.get("key"):
        return exists
    same_key = toleration["key"] == taint.get("key")
    return same_key and (exists or toleration.get("value", "") == taint.get("value", ""))


def _workload(workload: WorkloadSpec, slo: SloSpec | None) -> WorkloadClass:
    priors = workload.priors
    objectives = [found for found in (workload.slo, slo) if found]
    ttft = next((s.ttft_milliseconds for s in objectives if s.ttft_milliseconds), None)
    itl = next((s.itl_milliseconds for s in objectives if s.itl_milliseconds), None)
    return WorkloadClass(
        name=workload.name,
        share=workload.share,
        prompt_tokens_p50=priors.prompt_tokens.p50,
        prompt_tokens_p95=priors.prompt_tokens.p95,
        output_tokens_p50=priors.output_tokens.p50,
        output_tokens_p95=priors.output_tokens.p95,
        turn_tokens=priors.turn_tokens,
        turns=priors.turns,
        tool_gap_seconds=priors.tool_gap_seconds,
        samples_per_prompt=priors.samples_per_prompt,
        ttft_slo_seconds=ttft / 1000 if ttft else None,
        itl_slo_seconds=itl / 1000 if itl else None,
    )


def _limits(spec: RolloutPoolSpec) -> EngineLimits:
    """What bounds an engine, with the vLLM flags among extraArgs that say otherwise."""
    default = EngineLimits()
    return EngineLimits(
        max_num_batched_tokens=_flag_value(spec, "--max-num-batched-tokens")
        or default.max_num_batched_tokens,
        max_num_seqs=_flag_value(spec, "--max-num-seqs") or default.max_num_seqs,
        kv_fill=spec.admission.safety,
        max_model_len=spec.model.max_model_len,
    )


def _flag_value(spec: RolloutPoolSpec, flag: str) -> int | None:
    """Value of an integer flag in extraArgs (`--flag=4` or `--flag 4`); the last one counts, as for vLLM."""
    args = " ".join(spec.engine.extra_args).replace("=", " ").split()
    values = [value for name, value in pairwise(args) if name == flag and value.isdigit()]
    return int(values[-1]) if values else None


def is_manual(spec: RolloutPoolSpec) -> bool:
    """Whether the user gives the replicas, so that a profile is only for predictions."""
    return spec.planning.mode is PlanningMode.MANUAL
