"""A result as plain text for the terminal: what to run, why, and what was rejected."""

from collections.abc import Iterable, Sequence

from rolloutpool_api.planning import PlanningObjective

from .answers import Group, Infeasible, Plan, PlanResult, SolverTimeout

UNKNOWN = "-"


def explain(result: PlanResult) -> str:
    """The result in lines of text, the groups as a table."""
    if isinstance(result, Infeasible):
        return "\n".join(_infeasible(result))
    if isinstance(result, SolverTimeout):
        return f"No plan: {result.message}"
    return "\n".join(_plan(result))


def objective_text(plan: Plan) -> str:
    """The objective and the value reached, e.g. "MaximizeThroughput: 4.2 samples/s"."""
    if plan.objective_value is None:
        return f"{plan.objective}: unknown"
    if plan.objective is PlanningObjective.MINIMIZE_GPUS:
        return f"{plan.objective}: {plan.objective_value:.0f} GPUs"
    return f"{plan.objective}: {plan.objective_value:.4g} samples/s"


def _infeasible(result: Infeasible) -> Iterable[str]:
    yield f"No plan: {result.message}"
    yield f"Constraint: {result.constraint}"
    if result.smallest_budget is not None:
        yield f"Smallest budget that would do: {result.smallest_budget} GPUs"


def _plan(plan: Plan) -> Iterable[str]:
    yield f"Plan {plan.hash} ({plan.mode}, {plan.solver} {plan.solver_status})"
    yield f"Objective: {objective_text(plan)}"
    if plan.demand is not None:
        yield f"Demand: {plan.demand:.4g} samples/s"
    yield f"GPUs: {plan.gpus_used} of {plan.gpu_budget}"
    yield ""
    yield from _table([_HEADER, *(_row(group) for group in plan.groups)])
    yield ""
    yield f"Limited by: {plan.binding_constraint}"
    for alternative in plan.alternatives:
        yield f"Rejected: {alternative.summary} ({alternative.rejected})"


_HEADER = ("ROLE", "PARALLELISM", "REPLICAS", "GPUS", "TTFT P95", "ITL P95", "LOAD")


def _row(group: Group) -> tuple[str, ...]:
    ttft, itl, load = group.predicted_ttft_p95_s, group.predicted_itl_p95_s, group.utilization
    return (
        str(group.role),
        str(group.parallelism),
        str(group.replicas),
        str(group.replicas * group.gpus_per_replica),
        UNKNOWN if ttft is None else f"{ttft:.2f} s",
        UNKNOWN if itl is None else f"{itl * 1e3:.1f} ms",
        UNKNOWN if load is None else f"{load:.0%}",
    )


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
