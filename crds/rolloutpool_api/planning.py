"""Spec: GPUs, latency objectives and how replicas are chosen."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from rolloutpool_api import cel
from rolloutpool_api.base import ApiModel, map_list, rules
from rolloutpool_api.engine import PodOverlay

Parallel = Annotated[int, Field(ge=1, le=64)]


class GpuSpec(ApiModel):
    """The GPUs that the pool may use."""

    budget: int = Field(ge=1, le=4096)
    """Most GPUs that all engines together may hold."""
    resource_name: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", max_length=128)] = (
        "nvidia.com/gpu"
    )
    """Extended resource that a GPU is. Immutable."""
    product: Annotated[str, Field(max_length=63)] | None = None
    """Only nodes with this nvidia.com/gpu.product label. Default: any."""
    node_selector: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=16)] = {}
    """Only nodes with these labels."""
    tolerations: list[PodOverlay] = Field(default=[], max_length=16)
    """Taints that engines tolerate, as in a pod. nvidia.com/gpu is always tolerated."""


class Demand(ApiModel):
    """The load that the latency objectives hold for."""

    model_config = ConfigDict(json_schema_extra=rules(cel.DEMAND))

    requests_per_second: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Requests of all classes together, per second."""
    concurrent_sessions: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Sessions of all classes open at once."""


class SloSpec(ApiModel):
    """Latency objectives."""

    ttft_milliseconds: Annotated[int, Field(ge=1, le=3_600_000)] | None = None
    """Time to first token, 95th percentile, from admission on, in milliseconds."""
    itl_milliseconds: Annotated[int, Field(ge=1, le=60_000)] | None = None
    """Inter-token latency, 95th percentile, in milliseconds."""
    demand: Demand | None = None
    """The load that they hold for."""


class PlanningMode(StrEnum):
    """Which kinds of engines a plan may use."""

    AUTO = "Auto"
    AGGREGATED = "Aggregated"
    DISAGGREGATED = "Disaggregated"
    MANUAL = "Manual"


class PlanningObjective(StrEnum):
    """What a plan optimises."""

    MEET_SLO = "MeetSLO"
    MAXIMIZE_THROUGHPUT = "MaximizeThroughput"
    MINIMIZE_GPUS = "MinimizeGPUs"


class Role(StrEnum):
    """What an engine does."""

    AGGREGATED = "aggregated"
    PREFILL = "prefill"
    DECODE = "decode"


class Solver(StrEnum):
    """ILP solvers."""

    CBC = "CBC"


class ConfigMapKeyRef(ApiModel):
    """One key of a ConfigMap in the pool's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253)] = "profile.yaml"
    """Key in the ConfigMap."""


class ProfileRef(ApiModel):
    """Where the performance profile of model and GPU is."""

    model_config = ConfigDict(json_schema_extra=rules(cel.PROFILE))

    builtin: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Name of a profile that comes with the planner."""
    config_map_ref: ConfigMapKeyRef | None = None
    """A profile measured by the user."""


class Parallelism(ApiModel):
    """How one replica is spread over GPUs."""

    tensor_parallel: Parallel = 1
    """GPUs that share each layer."""
    pipeline_parallel: Parallel = 1
    """Stages that the layers are cut into."""


class GroupReplicas(ApiModel):
    """Replicas given by the user (mode Manual)."""

    role: Role
    """What the replicas do: aggregated, prefill or decode."""
    tensor_parallel: Parallel = 1
    """GPUs that share each layer."""
    pipeline_parallel: Parallel = 1
    """Stages that the layers are cut into."""
    replicas: int = Field(ge=1, le=256)
    """Number of replicas."""


class PlanningSpec(ApiModel):
    """How replicas are chosen."""

    model_config = ConfigDict(json_schema_extra=rules(cel.PLANNING))

    mode: PlanningMode = PlanningMode.AUTO
    """Auto: the better of Aggregated and Disaggregated. Manual: the replicas given below."""
    objective: PlanningObjective = PlanningObjective.MAXIMIZE_THROUGHPUT
    """MeetSLO and MinimizeGPUs serve spec.slo.demand; MaximizeThroughput uses the budget for the mixture."""
    profile: ProfileRef = ProfileRef(builtin="emulated-8b-h100")
    """Performance profile of the model on the GPU."""
    allowed_parallelism: list[Parallelism] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        json_schema_extra=map_list("tensorParallel", "pipelineParallel"),
    )
    """Parallelism to choose from. Default: all that the profile knows."""
    replicas: list[GroupReplicas] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        json_schema_extra=map_list("role", "tensorParallel", "pipelineParallel"),
    )
    """The replicas of mode Manual."""
    solver: Solver = Solver.CBC
    """ILP solver."""
    time_limit_seconds: int = Field(default=20, ge=1, le=600)
    """Longest time for one plan, in seconds; then the best plan found counts."""
    max_change_per_step: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Most replicas that one new plan may add or remove. Default: no limit."""
    hysteresis_percent: int = Field(default=5, ge=0, le=100)
    """A new plan of the same spec replaces the running one only for a gain of at least this, in percent."""
    auto_apply: bool = True
    """False: plan and report, apply nothing."""
