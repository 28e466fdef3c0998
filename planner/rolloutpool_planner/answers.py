"""What planning answers: a plan, why there is none, or that time ran out."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rolloutpool_api.planning import PlanningMode, PlanningObjective, Role

from .inputs import Parallelism, ReplicaGroup

HASH_DIGITS = 12
"""Hexadecimal digits of a plan's hash."""

ROLE_ORDER = (Role.AGGREGATED, Role.PREFILL, Role.DECODE)
"""In which order groups are listed."""


class SolverStatus(StrEnum):
    """How sure a plan is to be the best."""

    OPTIMAL = "Optimal"
    FEASIBLE = "FeasibleAtTimeLimit"
    GREEDY = "GreedyFallback"
    GIVEN = "Given"


class Constraint(StrEnum):
    """What makes a plan impossible."""

    PARALLELISM = "parallelism"
    KV_CAPACITY = "kv capacity"
    SLO = "slo"
    NODES = "nodes"
    BUDGET = "gpu budget"
    ENGINES = "engines"
    ROLES = "roles"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Replicas of one role and parallelism with what is predicted for them.

    Seconds; p95 of the class that comes closest to its SLO (of all classes, where none has one). TTFT is
    None for decode, ITL for prefill, and all predictions where there is no profile. `utilization` is the
    part of the capacity that the predicted load uses.
    """

    role: Role
    tensor_parallel: int
    pipeline_parallel: int
    replicas: int
    gpus_per_replica: int
    predicted_ttft_p95_s: float | None = None
    predicted_itl_p95_s: float | None = None
    utilization: float | None = None

    @property
    def parallelism(self) -> Parallelism:
        """Tensor and pipeline parallelism together."""
        return Parallelism(self.tensor_parallel, self.pipeline_parallel)

    def __str__(self) -> str:
        return f"{self.replicas} x {self.role} {self.parallelism}"


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A plan that was not chosen: its groups in words, and why not."""

    summary: str
    rejected: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which replicas to run. Rates are samples of the mix per second, `capacity` within the SLOs.

    `mode` is Aggregated or Disaggregated, whichever was chosen. `objective_value` is in samples per second,
    or in GPUs for MinimizeGPUs. `paced`: max_change_per_step keeps this step short of the demand, or the
    running plan no longer fits and more than that has to change; the next plan goes on from here.
    """

    groups: tuple[Group, ...]
    mode: PlanningMode
    gpus_used: int
    gpu_budget: int
    hash: str
    solver: str
    solver_status: SolverStatus
    objective: PlanningObjective
    objective_value: float | None
    capacity: float | None
    demand: float | None
    binding_constraint: str
    alternatives: tuple[Alternative, ...] = ()
    paced: bool = False


@dataclass(frozen=True, kw_only=True)
class Infeasible:
    """No plan exists: which constraint forbids it, in words with numbers, and a budget that would do."""

    constraint: Constraint
    message: str
    smallest_budget: int | None = None


@dataclass(frozen=True, kw_only=True)
class SolverTimeout:
    """Neither the solver nor the fallback found a plan in time."""

    seconds: float
    message: str


PlanResult = Plan | Infeasible | SolverTimeout


def plan_hash(mode: PlanningMode, groups: Iterable[ReplicaGroup | Group]) -> str:
    """A short name for a plan that depends on its mode and groups only, not on their order."""
    lines = sorted(f"{g.role} {g.tensor_parallel} {g.pipeline_parallel} {g.replicas}" for g in groups)
    return hashlib.sha256("\n".join([mode, *lines]).encode()).hexdigest()[:HASH_DIGITS]


def listing_order(group: ReplicaGroup | Group) -> tuple[int, Parallelism]:
    """Sort key: aggregated, prefill, decode; then small parallelisms first."""
    return ROLE_ORDER.index(group.role), group.parallelism


def summary(groups: Iterable[Group]) -> str:
    """Groups in words, e.g. "2 x prefill TP1, 3 x decode TP2"."""
    return ", ".join(str(group) for group in groups)
