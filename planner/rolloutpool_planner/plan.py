"""Plan: evaluate the candidates, solve, check the answer in plain arithmetic, explain it."""

from rolloutpool_api.planning import PlanningMode, PlanningObjective

from . import solver
from .answers import Infeasible, Plan, PlanResult, SolverStatus, SolverTimeout, listing_order, plan_hash
from .candidates import Candidates, candidates, demanded_rate
from .check import mode_of, violations
from .errors import InputError, PlanCheckError
from .greedy import greedy
from .inputs import PlannerInputs, ReplicaGroup
from .manual import manual_plan
from .obstacles import before_solving
from .pacing import pace
from .predict import Rated, predicted, total_served
from .program import Counts, Program, program_of
from .reasons import alternatives, binding
from .search import Solve, TimedSolve, goals, search
from .solver import SolveStatus


def plan(inputs: PlannerInputs, *, solve: Solve = solver.solve) -> PlanResult:
    """The best plan for the inputs, or why there is none. Blocks for up to about the time limit.

    The same inputs give the same plan and hash, whatever the order of classes, nodes and groups, unless
    the time limit cuts the search short (`solver_status`). Raises SolverError if the solver cannot be run
    and PlanCheckError if its answer breaks a constraint (a defect: the answer must not be used).
    """
    if inputs.mode is PlanningMode.MANUAL:
        return manual_plan(inputs)
    if inputs.profile is None:
        raise InputError("a performance profile is needed unless mode is Manual")
    found = candidates(inputs, inputs.profile)
    obstacle = before_solving(inputs, inputs.profile, found)
    if obstacle is not None:
        return obstacle
    return _Planning(inputs, found, TimedSolve(solve=solve, left=inputs.time_limit_seconds)).result()


class _Planning:
    """One planning run over usable candidates."""

    def __init__(self, inputs: PlannerInputs, found: Candidates, solve: TimedSolve) -> None:
        self.inputs = inputs
        self.found = found
        self.solve = solve
        self.demand = demanded_rate(inputs, found)

    def result(self) -> PlanResult:
        """Solve; pace or explain what is infeasible; fall back to the greedy plan without an answer.

        "Infeasible" is not taken on trust either: a greedy plan that fits refutes it and is used.
        """
        objective = self.inputs.objective
        must_serve = objective is not PlanningObjective.MAXIMIZE_THROUGHPUT and self.demand is not None
        program = program_of(self.inputs, self.found, (self.demand or 0.0) if must_serve else 0.0)
        answer = search(program, goals(objective, tracks_changes=program.tracks_changes), self.solve)
        paced = False
        if answer.status is SolveStatus.INFEASIBLE:
            refuted = greedy(program, objective)
            if refuted is not None:
                return self.checked(program, refuted, SolverStatus.GREEDY, paced=False)
            slower = pace(program, objective, self.solve)
            if isinstance(slower, Infeasible):
                return slower
            paced, program, answer = True, slower.program, slower.found
        if answer.counts is not None:
            status = SolverStatus.OPTIMAL if answer.status is SolveStatus.OPTIMAL else SolverStatus.FEASIBLE
            return self.checked(program, answer.counts, status, paced=paced)
        fallback = greedy(program, objective)
        if fallback is not None:
            return self.checked(program, fallback, SolverStatus.GREEDY, paced=paced)
        limit = self.inputs.time_limit_seconds
        message = (
            f"no plan found within {limit:g} s, nor a simple one without the solver: raise the time limit"
        )
        return SolverTimeout(seconds=limit, message=message)

    def checked(self, program: Program, counts: Counts, status: SolverStatus, *, paced: bool) -> Plan:
        """The counts as a plan that passes the check. Raises PlanCheckError."""
        answer = self.plan_of(program, counts, status, paced=paced)
        broken = violations(answer, self.inputs)
        if broken:
            raise PlanCheckError(broken)
        return answer

    def plan_of(self, program: Program, counts: Counts, status: SolverStatus, *, paced: bool) -> Plan:
        """The counts with predictions, reasons and alternatives."""
        rated = self.rated(counts)
        capacity, objective = total_served(rated), self.inputs.objective
        load = capacity
        if self.demand is not None and objective is not PlanningObjective.MAXIMIZE_THROUGHPUT:
            load = min(load, self.demand)
        groups = predicted(rated, load)
        mode = mode_of({g.role for g in groups}) or self.inputs.mode
        used = sum(g.replicas * g.gpus_per_replica for g in groups)
        return Plan(
            groups=groups,
            mode=mode,
            gpus_used=used,
            gpu_budget=self.inputs.gpu_budget,
            hash=plan_hash(mode, groups),
            solver=solver.NAME,
            solver_status=status,
            objective=objective,
            objective_value=float(used) if objective is PlanningObjective.MINIMIZE_GPUS else capacity,
            capacity=capacity,
            demand=self.demand,
            binding_constraint=self.binding(program, counts, paced=paced),
            alternatives=alternatives(program, counts, objective, self.solve),
            paced=paced,
        )

    def rated(self, counts: Counts) -> tuple[Rated, ...]:
        """The chosen candidates with their numbers of replicas, in the order in which groups are listed."""
        chosen = [
            Rated(
                group=ReplicaGroup(
                    role=c.role,
                    tensor_parallel=c.parallelism.tensor_parallel,
                    pipeline_parallel=c.parallelism.pipeline_parallel,
                    replicas=n,
                ),
                model=c.model,
                capacity=c.capacity,
            )
            for c, n in zip(self.found.usable, counts, strict=True)
            if n
        ]
        return tuple(sorted(chosen, key=lambda r: listing_order(r.group)))

    def binding(self, program: Program, counts: Counts, *, paced: bool) -> str:
        """The binding constraint, with what pacing has to say first."""
        text = binding(program, counts, self.inputs.objective, self.found)
        if not paced:
            return text
        bound = self.inputs.max_change_per_step
        if program.max_change != bound:
            why = f"the running plan cannot stay: {program.max_change} replicas change, {bound} are allowed"
        else:
            why = f"max change per step: {bound} replicas, so the demand takes further steps"
        return f"{why}; {text}"
