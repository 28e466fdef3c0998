"""Which plan the pool works towards: the stored one, or the one that planning just found.

A stored plan is kept for the same spec unless it can no longer be placed or a new one gains enough: every
change of plan drains engines and loses their KV.
"""

from __future__ import annotations

from dataclasses import dataclass

from rolloutpool_api.planning import PlanningObjective
from rolloutpool_api.status import PlanAlternative, PlanGroup, PlanStatus
from rolloutpool_operator.core import reasons
from rolloutpool_operator.core.groups import describe
from rolloutpool_planner.answers import Group, Infeasible, Plan, SolverTimeout
from rolloutpool_planner.explain import objective_text


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """Planning did not come about."""

    reason: str
    """ProfileMissing, Planning or PlanningFailed."""
    message: str


Answer = Plan | Infeasible | SolverTimeout | NoAnswer


@dataclass(frozen=True, kw_only=True)
class PlanChoice:
    """The plan to work towards, and what is to be said about it."""

    plan: PlanStatus | None
    ready: bool
    """Whether there is a plan for this spec."""
    reason: str
    message: str
    held: str = ""
    """Why a better plan was not taken; empty where there is none."""


def choose_plan(
    answer: Answer,
    *,
    stored: PlanStatus | None,
    stored_now: Plan | Infeasible | SolverTimeout | None,
    same_spec: bool,
    hysteresis_percent: float,
    now: str,
    note: str = "",
) -> PlanChoice:
    """Choose between the stored plan and a new answer.

    Args:
        answer: what planning found for the present spec and cluster.
        stored: the plan of the status.
        stored_now: the stored plan's groups judged against the present spec and cluster (mode Manual);
            None where they need no judging.
        same_spec: whether the stored plan was made for this spec.
        hysteresis_percent: gain from which a new plan of the same spec is taken.
        now: the present as RFC 3339.
        note: what else the user should know about the answer.
    """
    if not isinstance(answer, Plan):
        reason, message = _failure(answer)
        return PlanChoice(
            plan=stored, ready=False, reason=reason, message=_joined(message, note, _going_on(stored))
        )
    if stored and same_spec and isinstance(stored_now, Plan) and stored_now.hash != answer.hash:
        gain = gain_percent(answer, stored_now)
        if gain < hysteresis_percent:
            held = (
                f"{describe(_group(group) for group in answer.groups)} would gain {gain:.1f} %, "
                f"less than hysteresisPercent {hysteresis_percent:g}"
            )
            message = _planned(stored, note)
            return PlanChoice(plan=stored, ready=True, reason=reasons.PLANNED, message=message, held=held)
    plan = plan_status(answer, now=now, stored=stored)
    return PlanChoice(plan=plan, ready=True, reason=reasons.PLANNED, message=_planned(plan, note))


def gain_percent(new: Plan, old: Plan) -> float:
    """How much better a plan is than another by the objective, in percent; GPUs count where it names none."""
    if new.objective is PlanningObjective.MINIMIZE_GPUS:
        return 100.0 * (old.gpus_used - new.gpus_used) / max(old.gpus_used, 1)
    if new.objective_value is None or old.objective_value is None or old.objective_value <= 0:
        return 100.0
    return 100.0 * (new.objective_value - old.objective_value) / old.objective_value


def plan_status(plan: Plan, *, now: str, stored: PlanStatus | None) -> PlanStatus:
    """A plan as the status shows it; the stored one where nothing but the time differs."""
    fresh = PlanStatus(
        hash=plan.hash,
        solver=plan.solver,
        solver_status=plan.solver_status.value,
        objective=objective_text(plan)[:1024],
        gpus_used=plan.gpus_used,
        gpu_budget=plan.gpu_budget,
        binding_constraint=plan.binding_constraint[:1024],
        groups=[_group(group) for group in plan.groups],
        alternatives=[
            PlanAlternative(summary=item.summary[:1024], rejected=item.rejected[:1024])
            for item in plan.alternatives[:2]
        ],
        computed_at=now,
    )
    if stored and fresh == stored.model_copy(update={"computed_at": now}):
        return stored
    return fresh


def _group(group: Group) -> PlanGroup:
    return PlanGroup(
        role=group.role,
        tensor_parallel=group.tensor_parallel,
        pipeline_parallel=group.pipeline_parallel,
        replicas=group.replicas,
        gpus_per_replica=group.gpus_per_replica,
        ttft_p95_milliseconds=_milliseconds(group.predicted_ttft_p95_s),
        itl_p95_milliseconds=_milliseconds(group.predicted_itl_p95_s),
        utilization_percent=None if group.utilization is None else round(100 * group.utilization),
    )


def _failure(answer: Infeasible | SolverTimeout | NoAnswer) -> tuple[str, str]:
    if isinstance(answer, Infeasible):
        budget = (
            f"; smallest budget that would do: {answer.smallest_budget} GPUs"
            if answer.smallest_budget
            else ""
        )
        return reasons.INFEASIBLE, f"{answer.constraint.value}: {answer.message}{budget}"
    if isinstance(answer, SolverTimeout):
        return reasons.SOLVER_TIMEOUT, f"no plan within {answer.seconds:.0f} s: {answer.message}"
    return answer.reason, answer.message


def _planned(plan: PlanStatus, note: str) -> str:
    text = f"{describe(plan.groups)} on {plan.gpus_used} of {plan.gpu_budget} GPUs ({plan.solver_status})"
    return _joined(text, note)


def _going_on(stored: PlanStatus | None) -> str:
    return f"going on with {describe(stored.groups)}" if stored else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)
