"""The planning problem as plain data: what `model` turns into an ILP, and `greedy` answers without one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rolloutpool_api.planning import Role

from .candidates import Candidates
from .inputs import NodeShape, Parallelism, PlannerInputs


@dataclass(frozen=True, kw_only=True)
class Option:
    """One kind of replica: its capacity in samples per second, and how many of it run now."""

    role: Role
    parallelism: Parallelism
    capacity: float
    running: int = 0

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.parallelism.gpus

    @property
    def label(self) -> str:
        """Role and parallelism, e.g. "prefill TP2"."""
        return f"{self.role} {self.parallelism}"


@dataclass(frozen=True, kw_only=True)
class Program:
    """The problem: how many replicas of each option. None lifts a limit.

    `demand` is in samples per second (0: none). `departing` counts running replicas that no option covers:
    they go in any case. `max_change` bounds additions and removals, each; None also if nothing runs yet.
    """

    options: tuple[Option, ...]
    gpu_budget: int | None
    node_shapes: tuple[NodeShape, ...] | None
    max_engines: int
    demand: float = 0.0
    departing: int = 0
    max_change: int | None = None

    @property
    def tracks_changes(self) -> bool:
        """Whether there is a running plan to stay close to."""
        return self.departing > 0 or any(option.running for option in self.options)

    def only(
        self, keep: set[Role] | None = None, *, without: frozenset[Parallelism] = frozenset()
    ) -> "Program":
        """The problem with only these roles and without these parallelisms; changes no longer count."""
        kept = tuple(
            replace(option, running=0)
            for option in self.options
            if (keep is None or option.role in keep) and option.parallelism not in without
        )
        return replace(self, options=kept, departing=0, max_change=None)


Counts = tuple[int, ...]
"""Replicas of each option of a program, in its order."""


def total_gpus(program: Program, counts: Counts) -> int:
    """GPUs that the replicas hold."""
    return sum(option.gpus * n for option, n in zip(program.options, counts, strict=True))


def role_capacity(program: Program, counts: Counts) -> dict[Role, float]:
    """Samples per second of each role that has replicas."""
    totals: dict[Role, float] = {}
    for option, n in zip(program.options, counts, strict=True):
        if n:
            totals[option.role] = totals.get(option.role, 0.0) + option.capacity * n
    return totals


def served(capacity: Mapping[Role, float]) -> float:
    """Samples per second of the whole plan: the slower of prefill and decode, or the aggregated replicas."""
    if Role.AGGREGATED in capacity:
        return capacity[Role.AGGREGATED]
    return min(capacity.get(Role.PREFILL, 0.0), capacity.get(Role.DECODE, 0.0))


def additions(program: Program, counts: Counts) -> int:
    """Replicas to start beyond those that run."""
    return sum(max(n - option.running, 0) for option, n in zip(program.options, counts, strict=True))


def removals(program: Program, counts: Counts) -> int:
    """Running replicas to stop."""
    stopped = sum(max(option.running - n, 0) for option, n in zip(program.options, counts, strict=True))
    return stopped + program.departing


def program_of(inputs: PlannerInputs, found: Candidates, demand: float) -> Program:
    """The problem that the inputs pose, over the usable candidates."""
    running = {(g.role, g.parallelism): g.replicas for g in inputs.current_plan or ()}
    options = tuple(
        Option(
            role=c.role,
            parallelism=c.parallelism,
            capacity=c.capacity,
            running=running.pop((c.role, c.parallelism), 0),
        )
        for c in found.usable
    )
    return Program(
        options=options,
        gpu_budget=inputs.gpu_budget,
        node_shapes=inputs.node_shapes,
        max_engines=inputs.max_engines,
        demand=demand,
        departing=sum(running.values()),
        max_change=inputs.max_change_per_step if inputs.current_plan else None,
    )
