"""Lexicographic optimisation: one goal after the other, within one time limit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pulp

from rolloutpool_api.planning import PlanningObjective

from .model import Goal, Reached, build, counts_of
from .program import Counts, Program, additions, removals, role_capacity, served, total_gpus
from .solver import SolveOutcome, SolveStatus

Solve = Callable[[pulp.LpProblem, float], SolveOutcome]
"""Solves a program within so many seconds."""


@dataclass(kw_only=True)
class TimedSolve:
    """A solver with a time limit over all its solves; `left` falls by what each one takes."""

    solve: Solve
    left: float

    def __call__(self, problem: pulp.LpProblem) -> SolveOutcome:
        """Solve with the time that is left; without any, there is no answer."""
        if self.left <= 0:
            return SolveOutcome(status=SolveStatus.NO_ANSWER, values={}, seconds=0.0)
        outcome = self.solve(problem, self.left)
        self.left -= outcome.seconds
        return outcome


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best counts found, None without a solution. OPTIMAL only if every goal was proven optimal."""

    status: SolveStatus
    counts: Counts | None = None


def goals(objective: PlanningObjective, *, tracks_changes: bool) -> tuple[Goal, ...]:
    """The goals of an objective, most important first: the objective, fewer GPUs, fewer changes, ties.

    MeetSLO must serve the demand and then maximises throughput, i.e. the headroom before an SLO breaks.
    """
    changes = (Goal.CHANGES,) if tracks_changes else ()
    if objective is PlanningObjective.MINIMIZE_GPUS:
        return (Goal.GPUS, *changes, Goal.THROUGHPUT, Goal.ORDER)
    return (Goal.THROUGHPUT, Goal.GPUS, *changes, Goal.ORDER)


def _held(program: Program, goal: Goal, counts: Counts, reached: Reached) -> Reached:
    if goal is Goal.THROUGHPUT:
        return replace(reached, throughput=served(role_capacity(program, counts)))
    if goal is Goal.GPUS:
        return replace(reached, gpus=total_gpus(program, counts))
    if goal is Goal.CHANGES:
        return replace(reached, changes=additions(program, counts) + removals(program, counts))
    return reached


def search(program: Program, order: Sequence[Goal], solve: TimedSolve) -> Found:
    """Optimise the goals in order. A later goal that finds no answer in time leaves the earlier answer."""
    found = Found(status=SolveStatus.INFEASIBLE)
    reached = Reached()
    for goal in order:
        outcome = solve(build(program, goal, reached))
        if not outcome.solved:
            if found.counts is None:
                return Found(status=outcome.status)
            return replace(found, status=SolveStatus.FEASIBLE)
        counts = counts_of(program, outcome.values)
        proven = outcome.status is SolveStatus.OPTIMAL and found.status is not SolveStatus.FEASIBLE
        found = Found(status=SolveStatus.OPTIMAL if proven else SolveStatus.FEASIBLE, counts=counts)
        reached = _held(program, goal, counts, reached)
    return found
