"""What a plan depends on: frozen values, checked when they are made.

Units: seconds, tokens, GPUs; rates are per second. A *sample* is one finished session (all its turns);
a *request* is one turn. The caller translates the pool's spec and the cluster's nodes into these.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from rolloutpool_api.planning import PlanningMode, PlanningObjective, Role
from rolloutpool_api.status import MAX_ENGINES
from rolloutpool_sim.profile import DEFAULT_STEP_TOKENS, PerformanceProfile

from .errors import InputError

SHARE_TOLERANCE = 1e-3
"""How far the classes' shares may sum from 1, as the CRD allows."""


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(message)


def _require_positive(where: str, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{where}: {name} must be a positive number, not {value}")


def _require_unique(what: str, keys: Iterable[object]) -> None:
    seen = list(keys)
    _require(len(set(seen)) == len(seen), f"{what} must be unique")


class _Strict:
    """Base: read from YAML, unknown fields are errors."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class WorkloadClass(_Strict):
    """One rollout class: its share of the consumed samples and what a session of it looks like.

    `prompt_tokens_*` is the first prompt, `output_tokens_*` the answer of one turn, `turn_tokens` what the
    environment adds before each later turn, `tool_gap_seconds` the mean pause before it, and
    `samples_per_prompt` the sessions that share one first prompt. SLOs are 95th percentiles; None: no bound.
    """

    name: str
    share: float
    prompt_tokens_p50: int
    prompt_tokens_p95: int
    output_tokens_p50: int
    output_tokens_p95: int
    turn_tokens: int = 0
    turns: int = 1
    tool_gap_seconds: float = 0.0
    samples_per_prompt: int = 1
    ttft_slo_seconds: float | None = None
    itl_slo_seconds: float | None = None

    def __post_init__(self) -> None:
        where = f"class {self.name}"
        _require(bool(self.name), "a class needs a name")
        _require_positive(
            where,
            share=self.share,
            prompt_tokens_p50=self.prompt_tokens_p50,
            output_tokens_p50=self.output_tokens_p50,
            turns=self.turns,
            samples_per_prompt=self.samples_per_prompt,
            ttft_slo_seconds=self.ttft_slo_seconds,
            itl_slo_seconds=self.itl_slo_seconds,
        )
        _require(self.prompt_tokens_p95 >= self.prompt_tokens_p50, f"{where}: prompt tokens p95 < p50")
        _require(self.output_tokens_p95 >= self.output_tokens_p50, f"{where}: output tokens p95 < p50")
        gap = self.tool_gap_seconds
        _require(
            self.turn_tokens >= 0 and gap >= 0 and math.isfinite(gap), f"{where}: negative turn_tokens or gap"
        )


@dataclass(frozen=True, kw_only=True)
class NodeShape(_Strict):
    """`count` alike nodes with `free_gpus` of `gpus_per_node` allocatable GPUs for this pool.

    GPUs held by the pool's own engines count as free: a new plan may use them again.
    """

    product: str
    gpus_per_node: int
    free_gpus: int
    count: int = 1

    def __post_init__(self) -> None:
        _require(self.count >= 1, f"node shape {self.product}: count must be at least 1")
        _require(
            0 <= self.free_gpus <= self.gpus_per_node,
            f"node shape {self.product}: free_gpus must be between 0 and gpus_per_node",
        )


@dataclass(frozen=True, kw_only=True)
class Demand(_Strict):
    """The load to serve: requests of all classes per second, or sessions of all classes open at once."""

    requests_per_second: float | None = None
    concurrent_sessions: int | None = None

    def __post_init__(self) -> None:
        given = (self.requests_per_second is None) + (self.concurrent_sessions is None)
        _require(given == 1, "demand needs exactly one of requests_per_second and concurrent_sessions")
        _require_positive(
            "demand",
            requests_per_second=self.requests_per_second,
            concurrent_sessions=self.concurrent_sessions,
        )


@dataclass(frozen=True, order=True)
class Parallelism(_Strict):
    """How one replica is spread over GPUs."""

    tensor_parallel: int
    pipeline_parallel: int = 1

    def __post_init__(self) -> None:
        _require(self.tensor_parallel >= 1 and self.pipeline_parallel >= 1, "parallelism must be at least 1")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    def __str__(self) -> str:
        pipeline = f" PP{self.pipeline_parallel}" if self.pipeline_parallel > 1 else ""
        return f"TP{self.tensor_parallel}{pipeline}"


@dataclass(frozen=True, kw_only=True)
class ReplicaGroup(_Strict):
    """Replicas of one role and parallelism, as given (Manual) or as running now."""

    role: Role
    tensor_parallel: int
    pipeline_parallel: int = 1
    replicas: int

    def __post_init__(self) -> None:
        _require(self.replicas >= 1, "a group needs at least 1 replica")
        _require(self.parallelism.gpus >= 1, "a group's parallelism must be at least 1")

    @property
    def parallelism(self) -> Parallelism:
        """Tensor and pipeline parallelism together."""
        return Parallelism(self.tensor_parallel, self.pipeline_parallel)


@dataclass(frozen=True, kw_only=True)
class EngineLimits(_Strict):
    """vLLM settings that bound what one engine takes on.

    Defaults are vLLM's for GPUs of 70 GiB or more. `kv_fill` is the part of the KV blocks that admitted
    sessions may fill on average (the pool's admission.safety). An engine whose KV cannot hold
    `max_model_len` tokens does not start.
    """

    max_num_batched_tokens: int = DEFAULT_STEP_TOKENS
    max_num_seqs: int = 1024
    kv_fill: float = 0.95
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        _require_positive("engine limits", max_num_seqs=self.max_num_seqs, max_model_len=self.max_model_len)
        _require(self.max_num_batched_tokens >= 2, "engine limits: max_num_batched_tokens must be at least 2")
        _require(0 < self.kv_fill <= 1, "engine limits: kv_fill must be in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class PlannerInputs(_Strict):
    """Everything a plan depends on. Raises InputError if the parts contradict each other.

    `node_shapes` None: nodes are unknown, so only the budget counts. `allowed_parallelism` None: all that
    the profile has. `profile` may be None only in mode Manual; then nothing is predicted.
    `max_change_per_step` bounds the replicas added to, and those removed from, `current_plan`.
    """

    profile: PerformanceProfile | None
    classes: tuple[WorkloadClass, ...]
    gpu_budget: int
    node_shapes: tuple[NodeShape, ...] | None = None
    mode: PlanningMode = PlanningMode.AUTO
    objective: PlanningObjective = PlanningObjective.MAXIMIZE_THROUGHPUT
    demand: Demand | None = None
    allowed_parallelism: tuple[Parallelism, ...] | None = None
    current_plan: tuple[ReplicaGroup, ...] | None = None
    max_change_per_step: int | None = None
    manual_groups: tuple[ReplicaGroup, ...] = ()
    time_limit_seconds: float = 20.0
    limits: EngineLimits = EngineLimits()
    max_engines: int = MAX_ENGINES

    def __post_init__(self) -> None:
        _require(len(self.classes) >= 1, "at least one workload class is needed")
        _require_unique("class names", (c.name for c in self.classes))
        total = sum(c.share for c in self.classes)
        _require(abs(total - 1) <= SHARE_TOLERANCE, f"the classes' shares sum to {total:.4f}, not to 1")
        _require(self.gpu_budget >= 1, f"gpu_budget must be at least 1, not {self.gpu_budget}")
        _require_positive("inputs", time_limit_seconds=self.time_limit_seconds, max_engines=self.max_engines)
        _require_positive("inputs", max_change_per_step=self.max_change_per_step)
        manual = self.mode is PlanningMode.MANUAL
        _require(manual or self.profile is not None, "a performance profile is needed unless mode is Manual")
        _require(manual == bool(self.manual_groups), "manual_groups are given in mode Manual, and only there")
        _require(self.allowed_parallelism != (), "allowed_parallelism is empty: leave it out to allow all")
        for groups in (self.manual_groups, self.current_plan or ()):
            _require_unique("groups of one role", ((g.role, g.parallelism) for g in groups))
