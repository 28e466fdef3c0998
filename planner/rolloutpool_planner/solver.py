"""The shell: runs CBC on a linear program. The only module that runs a solver and reads its status."""

import os
import tempfile
import time
from dataclasses import dataclass
from enum import Enum

import cbcbox
import pulp

from .errors import SolverError

NAME = "CBC"

SHORTEST_LIMIT = 0.05
"""Seconds that a solve gets at least: CBC takes 0 for no limit."""

CBC_OPTIONS = ("boundPropLevel off", "nodeBoundProp off")
"""Switches off bound propagation: in the CBC of cbcbox 2.935 it calls some feasible programs infeasible.

There is no `threads` among the options: CBC is serial then. With threads=1 it runs its parallel code with one
worker, which now and then sleeps for 10 s, whatever the time limit.
"""


class SolveStatus(Enum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible at the time limit"
    INFEASIBLE = "infeasible"
    NO_ANSWER = "no answer in time"


@dataclass(frozen=True, kw_only=True)
class SolveOutcome:
    """A solve's end, the variables' values (empty without a solution), and the seconds it took."""

    status: SolveStatus
    values: dict[str, float]
    seconds: float

    @property
    def solved(self) -> bool:
        """Whether there is a solution, proven best or not."""
        return self.status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE)


def status_of(status: int, sol_status: int) -> SolveStatus:
    """Map PuLP's pair. Raises SolverError for an unbounded program, which would be a defect of the model.

    `sol_status` decides: `status` says Optimal for any integer solution found before the time limit. But
    CBC's "Integer infeasible" leaves sol_status at "no solution found" and only `status` tells it.
    """
    if sol_status == pulp.LpSolutionOptimal:
        return SolveStatus.OPTIMAL
    if sol_status == pulp.LpSolutionIntegerFeasible:
        return SolveStatus.FEASIBLE
    if pulp.LpSolutionUnbounded == sol_status:
        raise SolverError("the linear program is unbounded")
    if sol_status == pulp.LpSolutionInfeasible or status == pulp.LpStatusInfeasible:
        return SolveStatus.INFEASIBLE
    return SolveStatus.NO_ANSWER


def solve(problem: pulp.LpProblem, time_limit_seconds: float) -> SolveOutcome:
    """Solve with CBC on one thread, so that the answer is reproducible. Blocks for up to the time limit.

    Raises SolverError if CBC cannot be run.
    """
    limit = max(time_limit_seconds, SHORTEST_LIMIT)
    solver = pulp.COIN_CMD(path=cbcbox.cbc_bin_path(), msg=False, timeLimit=limit, options=list(CBC_OPTIONS))
    # CBC inherits the environment; its OpenBLAS would start a thread per core, which costs more than a solve.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="rolloutpool-plan-") as folder:
            solver.tmpDir = folder  # PuLP leaves its files behind where CBC fails
            problem.solve(solver)
    except (pulp.PulpSolverError, OSError) as error:
        raise SolverError(f"CBC could not be run: {error}") from error
    outcome = status_of(problem.status, problem.sol_status)
    solved = outcome in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE)
    values = {v.name: float(v.varValue or 0.0) for v in problem.variables()} if solved else {}
    return SolveOutcome(status=outcome, values=values, seconds=time.monotonic() - started)
