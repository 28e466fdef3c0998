"""For tests of the planner and of what builds on it: typical inputs, and solvers that answer as told."""

from dataclasses import replace
from typing import Any

import pulp

from rolloutpool_sim.profile import load_builtin

from .inputs import NodeShape, PlannerInputs, WorkloadClass
from .solver import SolveOutcome, SolveStatus, solve

RLVR = WorkloadClass(
    name="rlvr",
    share=0.5,
    prompt_tokens_p50=500,
    prompt_tokens_p95=1200,
    output_tokens_p50=2500,
    output_tokens_p95=11000,
    samples_per_prompt=16,
)
RLHF = WorkloadClass(
    name="rlhf",
    share=0.3,
    prompt_tokens_p50=800,
    prompt_tokens_p95=2000,
    output_tokens_p50=250,
    output_tokens_p95=800,
)
AGENTIC = WorkloadClass(
    name="agentic",
    share=0.2,
    prompt_tokens_p50=5000,
    prompt_tokens_p95=12000,
    output_tokens_p50=215,
    output_tokens_p95=1500,
    turn_tokens=700,
    turns=20,
    tool_gap_seconds=5.0,
    samples_per_prompt=8,
)


def nodes(*free: int, gpus_per_node: int = 8) -> tuple[NodeShape, ...]:
    """One node for each number of free GPUs."""
    return tuple(NodeShape(product="H100", gpus_per_node=gpus_per_node, free_gpus=f) for f in free)


def with_slo(
    *classes: WorkloadClass, ttft: float | None = None, itl: float | None = None
) -> tuple[WorkloadClass, ...]:
    """The classes with these p95 SLOs, in seconds."""
    return tuple(replace(c, ttft_slo_seconds=ttft, itl_slo_seconds=itl) for c in classes)


def sample_inputs(**changes: Any) -> PlannerInputs:
    """The three usual classes on 16 GPUs with the built-in 8B profile; `changes` override fields."""
    fields: dict[str, Any] = {
        "profile": load_builtin("emulated-8b-h100"),
        "classes": (RLVR, RLHF, AGENTIC),
        "gpu_budget": 16,
    }
    return PlannerInputs(**{**fields, **changes})


def silent_solver(problem: pulp.LpProblem, time_limit_seconds: float) -> SolveOutcome:
    """A solver that never has an answer in time, and uses all of it."""
    return SolveOutcome(status=SolveStatus.NO_ANSWER, values={}, seconds=time_limit_seconds)


def wrong_solver(problem: pulp.LpProblem, time_limit_seconds: float) -> SolveOutcome:
    """A solver that calls every program infeasible."""
    return SolveOutcome(status=SolveStatus.INFEASIBLE, values={}, seconds=0.0)


def slow_solver(problem: pulp.LpProblem, time_limit_seconds: float) -> SolveOutcome:
    """A solver whose first answer is right but not proven best, and uses up the time limit."""
    outcome = solve(problem, time_limit_seconds)
    status = SolveStatus.FEASIBLE if outcome.solved else outcome.status
    return SolveOutcome(status=status, values=outcome.values, seconds=time_limit_seconds)
