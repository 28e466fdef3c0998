"""The integer linear program, in PuLP.

Options i with s_i GPUs, capacity c_i (samples/s), r_i replicas running now; A, P, D: the options of role
aggregated, prefill, decode; n_h nodes with f_h free GPUs; budget G; demand q; at most E engines and M
changes. Variables: x_i integer >= 0 replicas; d in {0, 1}: 1 if disaggregated; L >= 0 samples/s served.

    one kind of plan     x_i <= U_i (1 - d)   i in A;      x_i <= U_i d   i in P, D
    roles present        sum_A x >= 1 - d;    sum_P x >= d;    sum_D x >= d
    served               L <= sum_A c x + sum_P c x;    L <= sum_A c x + sum_D c x
    demand               L >= q
    budget               sum s_i x_i <= G
    nodes, each size s   sum_{s_i >= s} floor(s_i / s) x_i <= sum_h n_h floor(f_h / s)
    engines              sum x_i <= E
    changes              a_i >= x_i - r_i,  m_i >= r_i - x_i;   sum a <= M,   departing + sum m <= M

U_i is what budget, nodes and E allow of i alone. The node constraints are exact for sizes that divide one
another (`packing`). Goals are optimised one after the other, each with the earlier ones' values held, since
weights that make one solve of it would differ by more than the solver's tolerances:

    THROUGHPUT  max L                    GPUS  min sum s_i x_i
    CHANGES     min sum a + sum m        LARGEST_CHANGE  min max(sum a, departing + sum m)
    ORDER       min sum i x_i: equal plans are told apart by the fixed order of the options

Capacities are scaled so that the largest is 1.
"""

from dataclasses import dataclass
from enum import Enum

import pulp

from rolloutpool_api.planning import Role

from .packing import room
from .program import Counts, Option, Program

HELD = 1e-6
"""Relative loss of throughput that a later goal may cost: above the solver's tolerance, below relevance."""


class Goal(Enum):
    """What one solve optimises."""

    THROUGHPUT = "throughput"
    GPUS = "gpus"
    CHANGES = "changes"
    LARGEST_CHANGE = "largest change"
    ORDER = "order"


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Values of earlier goals that a later solve must keep; throughput in samples per second."""

    throughput: float | None = None
    gpus: int | None = None
    changes: int | None = None


def variable_name(option: Option) -> str:
    """Name of an option's replica count in the program."""
    return f"x_{option.role}_tp{option.parallelism.tensor_parallel}_pp{option.parallelism.pipeline_parallel}"


def most_replicas(program: Program, option: Option) -> int:
    """U_i: replicas of one option that fit if nothing else runs."""
    most = program.max_engines
    if program.gpu_budget is not None:
        most = min(most, program.gpu_budget // option.gpus)
    if program.node_shapes is not None:
        most = min(most, room(program.node_shapes, option.gpus))
    return most


class Builder:
    """One linear program under construction: variables first, then one method per kind of constraint."""

    def __init__(self, program: Program, sense: int) -> None:
        self.program = program
        self.problem = pulp.LpProblem("rolloutpool", sense)
        self.scale = max((option.capacity for option in program.options), default=0.0) or 1.0
        self.split = self.problem.add_variable("disaggregated", cat=pulp.LpBinary)
        self.served = self.problem.add_variable("served", lowBound=0)
        self.replicas = [
            self.problem.add_variable(variable_name(o), 0, most_replicas(program, o), pulp.LpInteger)
            for o in program.options
        ]
        self.added, self.removed = self._changes()

    def _changes(self) -> tuple[pulp.LpAffineExpression, pulp.LpAffineExpression]:
        added, removed = pulp.LpAffineExpression(), pulp.LpAffineExpression(self.program.departing)
        if not self.program.tracks_changes:
            return added, removed
        for option, x in zip(self.program.options, self.replicas, strict=True):
            a = self.problem.add_variable(f"added_{x.name}", lowBound=0)
            m = self.problem.add_variable(f"removed_{x.name}", lowBound=0)
            self.require(f"added_of_{x.name}", a >= x - option.running)
            self.require(f"removed_of_{x.name}", m >= option.running - x)
            added, removed = added + a, removed + m
        return added, removed

    def require(self, name: str, constraint: pulp.LpConstraint) -> None:
        """Add a named constraint."""
        self.problem += constraint, name

    def total(self, *roles: Role, capacity: bool = False) -> pulp.LpAffineExpression:
        """Replicas (or scaled capacity) of the options of these roles."""
        return pulp.lpSum(
            (option.capacity / self.scale if capacity else 1) * x
            for option, x in zip(self.program.options, self.replicas, strict=True)
            if option.role in roles
        )

    def gpus(self) -> pulp.LpAffineExpression:
        """GPUs of all replicas."""
        return pulp.lpSum(o.gpus * x for o, x in zip(self.program.options, self.replicas, strict=True))

    def one_kind_of_plan(self) -> None:
        """Aggregated or disaggregated, with every role that it needs."""
        for option, x in zip(self.program.options, self.replicas, strict=True):
            on = 1 - self.split if option.role is Role.AGGREGATED else self.split
            self.require(f"kind_of_{x.name}", x <= most_replicas(self.program, option) * on)
        self.require("aggregated_present", self.total(Role.AGGREGATED) >= 1 - self.split)
        self.require("prefill_present", self.total(Role.PREFILL) >= self.split)
        self.require("decode_present", self.total(Role.DECODE) >= self.split)

    def load(self) -> None:
        """What is served, and that it covers the demand."""
        for role in (Role.PREFILL, Role.DECODE):
            name = f"served_by_{role}"
            self.require(name, self.served <= self.total(Role.AGGREGATED, role, capacity=True))
        self.require("demand", self.served >= self.program.demand / self.scale)

    def hardware(self) -> None:
        """Budget, nodes and the number of engines."""
        program = self.program
        if program.gpu_budget is not None:
            self.require("budget", self.gpus() <= program.gpu_budget)
        self.require("engines", pulp.lpSum(self.replicas) <= program.max_engines)
        if program.node_shapes is None:
            return
        for size in sorted({option.gpus for option in program.options}):
            pieces = pulp.lpSum(
                (o.gpus // size) * x for o, x in zip(program.options, self.replicas, strict=True)
            )
            self.require(f"nodes_size_{size}", pieces <= room(program.node_shapes, size))

    def change(self) -> None:
        """At most so many additions, and so many removals."""
        if self.program.max_change is not None and self.program.tracks_changes:
            self.require("additions", self.added <= self.program.max_change)
            self.require("removals", self.removed <= self.program.max_change)

    def hold(self, reached: Reached) -> None:
        """Keep what earlier goals reached."""
        if reached.throughput is not None:
            floor = reached.throughput / self.scale * (1 - HELD)
            self.require("held_throughput", self.served >= floor)
        if reached.gpus is not None:
            self.require("held_gpus", self.gpus() <= reached.gpus)
        if reached.changes is not None:
            self.require("held_changes", self.added + self.removed <= reached.changes)

    def objective(self, goal: Goal) -> pulp.LpAffineExpression:
        """The expression to optimise; LARGEST_CHANGE adds its own variable."""
        if goal is Goal.THROUGHPUT:
            return 1 * self.served
        if goal is Goal.GPUS:
            return self.gpus()
        if goal is Goal.CHANGES:
            return self.added + self.removed
        if goal is Goal.ORDER:
            return pulp.lpSum(rank * x for rank, x in enumerate(self.replicas, start=1))
        largest = self.problem.add_variable("largest_change", lowBound=0)
        self.require("largest_is_additions", largest >= self.added)
        self.require("largest_is_removals", largest >= self.removed)
        return 1 * largest


def build(program: Program, goal: Goal, reached: Reached = Reached()) -> pulp.LpProblem:
    """The linear program for one goal, with the values reached by earlier goals held."""
    builder = Builder(program, pulp.LpMaximize if goal is Goal.THROUGHPUT else pulp.LpMinimize)
    builder.one_kind_of_plan()
    builder.load()
    builder.hardware()
    builder.change()
    builder.hold(reached)
    builder.problem.setObjective(builder.objective(goal))
    return builder.problem


def counts_of(program: Program, values: dict[str, float]) -> Counts:
    """Replicas of each option in a solution: rounded, since solvers return 0.9999999 for 1."""
    return tuple(round(values[variable_name(option)]) for option in program.options)
