"""The status of a RolloutPool: what was planned, what runs, and what each class may hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rolloutpool_api.base import StatusModel, map_list
from rolloutpool_api.conditions import Condition
from rolloutpool_api.planning import Role
from rolloutpool_api.serving import AdmissionPolicy

MAX_ENGINES = 256
"""Most engines of one pool: keeps the status below 200 KB."""
MAX_ROUTERS = 16
"""Most routers that share caps: spec.router.replicas, old and new ones while the router is rolled out."""

Name = Annotated[str, Field(max_length=253)]
Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(max_length=1024)]
Port = Annotated[int, Field(ge=1, le=65_535)]


class PlanGroup(StatusModel):
    """Replicas of one role and parallelism."""

    role: Role
    """What the replicas do: aggregated, prefill or decode."""
    tensor_parallel: int
    """GPUs that share each layer."""
    pipeline_parallel: int
    """Stages that the layers are cut into."""
    replicas: Count
    """Number of replicas."""
    gpus_per_replica: Count
    """GPUs of one replica: tensorParallel x pipelineParallel."""
    ttft_p95_milliseconds: int | None = None
    """Predicted time to first token, 95th percentile, in milliseconds."""
    itl_p95_milliseconds: int | None = None
    """Predicted inter-token latency, 95th percentile, in milliseconds."""
    utilization_percent: int | None = None
    """Predicted part of the group's capacity in use, in percent."""


class PlanAlternative(StatusModel):
    """A plan that was not chosen."""

    summary: Text
    """Its groups, e.g. 4 x aggregated TP1."""
    rejected: Text
    """Why it was not chosen, with the numbers."""


class PlanStatus(StatusModel):
    """The plan that the operator works towards."""

    hash: Name
    """Identifies the groups: the same plan has the same hash."""
    solver: Name
    """Which solver found it."""
    solver_status: Name
    """Optimal, or the best found within the time limit."""
    objective: Text
    """What was optimised and the value reached."""
    gpus_used: Count
    """GPUs of all groups."""
    gpu_budget: Count
    """GPUs that the spec allows."""
    binding_constraint: Text
    """What stops a better plan."""
    groups: list[PlanGroup] = Field(default=[], max_length=64)
    """Replicas by role and parallelism."""
    alternatives: list[PlanAlternative] = Field(default=[], max_length=2)
    """The best two plans that were not chosen."""
    computed_at: str
    """When, as RFC 3339."""


class RoleStatus(StatusModel):
    """Replicas of one role."""

    name: Role
    """What the replicas do: aggregated, prefill or decode."""
    replicas: Count
    """Replicas that the applied plan asks for."""
    ready_replicas: Count
    """Replicas that serve."""
    updated_replicas: Count
    """Replicas of the current revision."""
    revision: Name = ""
    """Current revision of the pods."""


class EngineClass(StatusModel):
    """One class on one engine."""

    name: Name
    """Class."""
    cap: Count
    """Sessions that may be resident."""
    active: Count = 0
    """Sessions resident when computed."""
    blocks: Count = 0
    """KV blocks that they hold."""


class EngineAdmission(StatusModel):
    """Admission on one engine."""

    name: Name
    """Engine, as in endpoints.admin."""
    capacity_blocks: Count
    """KV blocks that the engine has."""
    protected_blocks: Count
    """KV blocks that admitted sessions may fill: capacity, less pressure and any fixed reserve."""
    offload_blocks: Count = 0
    """KV blocks that its CPU memory holds beside (spec.engine.kvOffload)."""
    pressure: Count = 0
    """Contraction of the caps, in percent (0: none)."""
    classes: list[EngineClass] = Field(default=[], max_length=16, json_schema_extra=map_list("name"))
    """Caps by class, all routers together. Left out in pools with more than 768 pairs of engine and class,
    where only grants tell them."""
    grants: list[Annotated[str, Field(max_length=160, pattern=r"^\d+( \d+)*$")]] = Field(
        default=[], max_length=MAX_ROUTERS
    )
    """What each router may use, in the order of admission.routers: protected blocks, then the caps in the
    order of admission.classes. Absent where there is one router, which may use all."""


class ClassAdmission(StatusModel):
    """One class over all engines."""

    name: Name
    """Class."""
    cap: Count
    """Sessions that may be resident, all engines together."""
    active: Count
    """Sessions resident."""
    waiting: Count
    """Sessions that wait to enter."""
    oldest_wait_seconds: Count = 0
    """Longest current wait, in seconds."""
    held: Count = 0
    """Requests that no cap holds: they wait for the end of a pause, or for an engine that may be sent any."""
    parked: Count = 0
    """Sessions between two turns that gave their place back."""
    footprint_blocks: Count = 0
    """Mean KV footprint of a session, in blocks (k)."""
    residency_seconds: Count = 0
    """Mean time that a session stays, in seconds (T)."""
    block_second_share: Count = 0
    """Part of the demand in block-seconds (N k T), in percent."""
    debt: int = 0
    """Samples behind the target (positive) or ahead of it (negative): who is furthest behind enters next."""
    ahead: Count = 0
    """Samples ahead of the target, where sessions that wait are held for that (mixture.enforcement Hard); 0:
    they are not."""
    source: Name = "Priors"
    """Where footprint and residency come from: Priors, Observed, or a Blend."""


class RouterShare(StatusModel):
    """One router that sessions may belong to."""

    name: Name
    """Router: its pod, or its process."""
    url: Annotated[str, Field(max_length=512)]
    """Base URL by which the other routers reach it."""


class AdmissionStatus(StatusModel):
    """The caps in force; routers apply them when the revision is newer."""

    revision: Count
    """Grows with every change."""
    policy: AdmissionPolicy
    """Policy that computed the caps."""
    computed_at: str
    """When, as RFC 3339."""
    park_idle_seconds: Count = 0
    """Idle time after which a session stops counting as resident, in seconds; 0: never."""
    engines: list[EngineAdmission] = Field(
        default=[], max_length=MAX_ENGINES, json_schema_extra=map_list("name")
    )
    """Caps by engine."""
    routers: list[RouterShare] = Field(default=[], max_length=MAX_ROUTERS, json_schema_extra=map_list("name"))
    """Routers that sessions belong to. A router that is not among them may admit nothing until it is; while
    there is no list, each may use one part in spec.router.replicas."""
    classes: list[ClassAdmission] = Field(default=[], max_length=16, json_schema_extra=map_list("name"))
    """Caps, residents and waits by class."""


class ClassShare(StatusModel):
    """Part of one class."""

    name: Name
    """Class."""
    percent: float
    """Part of the samples, in percent."""


class MixtureStatus(StatusModel):
    """The consumed mixture against the target."""

    target: list[ClassShare] = Field(default=[], max_length=16, json_schema_extra=map_list("name"))
    """Shares of the spec."""
    consumed: list[ClassShare] = Field(default=[], max_length=16, json_schema_extra=map_list("name"))
    """Shares of the finished sessions in the window."""
    drift_percentage_points: float = 0.0
    """Total variation distance of the two, in percentage points."""
    window: Count = 0
    """Finished sessions in the window."""


class EngineEndpoint(StatusModel):
    """One engine's own address, for the router and for trainers that sync weights engine by engine."""

    name: Name
    """Engine: its pod, or its process."""
    role: Role
    """What it does."""
    url: Annotated[str, Field(max_length=512)]
    """Base URL."""
    ready: bool = False
    """Whether it serves."""
    draining: bool | None = None
    """True: it is about to go; its sessions go on, and it gets no new ones."""
    kv_events_port: Port | None = None
    """Port of its KV events, where it is not spec.engine.kvEvents.port."""
    kv_replay_port: Port | None = None
    """Port that repeats them, where it is not spec.engine.kvEvents.replayPort."""
    revision: Name = ""
    """Revision of its group: prefill and decode pair only within one."""


class Endpoints(StatusModel):
    """Where the pool is reached."""

    router: Annotated[str, Field(max_length=512)] = ""
    """What trainers use as base URL, without /v1."""
    weights: Annotated[str, Field(max_length=512)] = ""
    """Where trainers synchronise weights with all engines at once; empty: nowhere (spec.engine.rl)."""
    admin: list[EngineEndpoint] = Field(
        default=[], max_length=MAX_ENGINES, json_schema_extra=map_list("name")
    )
    """The engines one by one, in a stable order."""


class Summary(StatusModel):
    """The pool in a few short texts, for `kubectl get` and for the end of `kubectl describe`."""

    prefill: Name = "-"
    """Prefill engines that serve, of those planned."""
    decode: Name = "-"
    """Decode and aggregated engines that serve, of those planned."""
    gpus: Name = "-"
    """GPUs of the plan, of the budget."""
    drift: Name = "-"
    """Drift of the consumed mixture, in percentage points."""
    classes: list[Annotated[str, Field(max_length=256)]] = Field(default=[], max_length=16)
    """One sentence for each class: sessions in the engines, sessions that wait, its part of the samples."""


class RolloutPoolStatus(StatusModel):
    """What the operator saw and decided."""

    observed_generation: Count = 0
    """Generation of the spec that this status speaks of."""
    phase: Name = "Pending"
    """Pending, Planning, Progressing, Ready, Degraded, Failed or Paused."""
    conditions: list[Condition] = Field(default=[], max_length=32, json_schema_extra=map_list("type"))
    """What is true of the pool, and why."""
    plan: PlanStatus | None = None
    """The plan that the operator works towards."""
    roles: list[RoleStatus] = Field(default=[], max_length=8, json_schema_extra=map_list("name"))
    """Replicas by role."""
    admission: AdmissionStatus | None = None
    """The caps in force."""
    mixture: MixtureStatus | None = None
    """The consumed mixture."""
    endpoints: Endpoints = Endpoints()
    """Where the pool is reached."""
    summary: Summary = Summary()
    """The pool in a few short texts."""
