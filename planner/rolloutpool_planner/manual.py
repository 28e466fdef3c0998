"""Mode Manual: the groups are given; they are checked against the hardware and their latencies predicted."""

from rolloutpool_api.planning import PlanningObjective
from rolloutpool_sim.profile import PerformanceProfile

from .answers import Constraint, Infeasible, Plan, PlanResult, SolverStatus, plan_hash
from .candidates import candidates, demanded_rate, why_impossible
from .check import hardware, mode_of
from .inputs import PlannerInputs
from .predict import Rated, predicted, rate, total_served, without_slos

SOLVER = "none"


def manual_plan(inputs: PlannerInputs) -> PlanResult:
    """The given groups as a plan. Hardware limits are binding; latencies and demand are only reported."""
    used = sum(g.replicas * g.parallelism.gpus for g in inputs.manual_groups)
    mode = mode_of({g.role for g in inputs.manual_groups})
    if mode is None:
        message = "the given groups must be aggregated only, or both prefill and decode"
        return Infeasible(constraint=Constraint.ROLES, message=message)
    broken = tuple(hardware(inputs.manual_groups, inputs))
    if used > inputs.gpu_budget:
        return Infeasible(constraint=Constraint.BUDGET, message=broken[0], smallest_budget=used)
    if broken:
        engines = sum(g.replicas for g in inputs.manual_groups)
        constraint = Constraint.ENGINES if engines > inputs.max_engines else Constraint.NODES
        return Infeasible(constraint=constraint, message="; ".join(broken))
    prediction = _Prediction(inputs)
    minimize = inputs.objective is PlanningObjective.MINIMIZE_GPUS
    return Plan(
        groups=prediction.groups,
        mode=mode,
        gpus_used=used,
        gpu_budget=inputs.gpu_budget,
        hash=plan_hash(mode, inputs.manual_groups),
        solver=SOLVER,
        solver_status=SolverStatus.GIVEN,
        objective=inputs.objective,
        objective_value=float(used) if minimize else prediction.capacity,
        capacity=prediction.capacity,
        demand=prediction.demand,
        binding_constraint="; ".join(("the replicas are given (mode Manual)", *prediction.notes)),
    )


class _Prediction:
    """What the profile says of the given groups; without a profile nothing."""

    def __init__(self, inputs: PlannerInputs) -> None:
        self.capacity: float | None = None
        self.demand: float | None = None
        self.notes: tuple[str, ...] = ("no profile: nothing is predicted",)
        self.groups = predicted(
            tuple(Rated(group=g, model=None, capacity=0.0) for g in inputs.manual_groups), 0.0
        )
        if inputs.profile is not None:
            self._with_profile(inputs, inputs.profile)

    def _with_profile(self, inputs: PlannerInputs, profile: PerformanceProfile) -> None:
        rated = rate(inputs, profile, inputs.manual_groups)
        self.demand = demanded_rate(inputs, candidates(inputs, profile))
        self.notes = tuple(_notes(profile, rated))
        self.capacity = total_served(rated)
        if self.capacity <= 0:
            rated = rate(without_slos(inputs), profile, inputs.manual_groups)
        load = total_served(rated)
        if self.demand is not None and inputs.objective is not PlanningObjective.MAXIMIZE_THROUGHPUT:
            if self.capacity < self.demand:
                served = f"they serve {self.capacity:.4g} of the {self.demand:.4g} samples/s demanded"
                self.notes += (f"{served} within the SLOs",)
            load = min(load, self.demand)
        self.groups = predicted(rated, load)


def _notes(profile: PerformanceProfile, rated: tuple[Rated, ...]) -> list[str]:
    notes = []
    for r in rated:
        if r.model is None:
            notes.append(
                f"profile {profile.name} does not know {r.group.parallelism}: nothing is predicted for it"
            )
            continue
        problem = why_impossible(r.model)
        if problem is not None:
            notes.append(f"{r.group.role} {r.group.parallelism}: {problem.text}")
    return notes
