"""Bounded change: what to do when max_change_per_step forbids a plan that would otherwise exist.

The bound paces the way to the demand, it does not stop it: within the bound, come as close to the demand as
possible; the next plan goes on from there. Where the running plan cannot stay at all (nodes or budget are
gone), as few replicas change as must.
"""

from dataclasses import dataclass, replace

from rolloutpool_api.planning import PlanningObjective

from .answers import Infeasible
from .model import Goal
from .obstacles import after_solving
from .program import Program, additions, removals
from .search import Found, TimedSolve, goals, search
from .solver import SolveStatus


@dataclass(frozen=True, kw_only=True)
class Paced:
    """The program that has a solution within bounded change, and the solution."""

    program: Program
    found: Found


def pace(program: Program, objective: PlanningObjective, solve: TimedSolve) -> Paced | Infeasible:
    """Answer a program that is infeasible, perhaps only because of its bound on changes."""
    unbounded = replace(program, max_change=None)
    if search(unbounded, (Goal.GPUS,), solve).status is SolveStatus.INFEASIBLE:
        return after_solving(unbounded, solve)
    towards = goals(PlanningObjective.MAXIMIZE_THROUGHPUT, tracks_changes=True)
    short = replace(program, demand=0.0)
    found = search(short, towards, solve)
    if found.status is not SolveStatus.INFEASIBLE:
        return Paced(program=short, found=found)
    forced = replace(program, max_change=least_change(program, solve))
    found = search(forced, goals(objective, tracks_changes=True), solve)
    if found.status is not SolveStatus.INFEASIBLE:
        return Paced(program=forced, found=found)
    short = replace(forced, demand=0.0)
    return Paced(program=short, found=search(short, towards, solve))


def least_change(program: Program, solve: TimedSolve) -> int | None:
    """The fewest additions or removals, whichever is more, that any plan needs, the demand aside.

    None (no bound) if no answer was found in time.
    """
    free = replace(program, demand=0.0, max_change=None)
    counts = search(free, (Goal.LARGEST_CHANGE,), solve).counts
    return None if counts is None else max(additions(program, counts), removals(program, counts))
