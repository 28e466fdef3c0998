"""Planning: asks the planner when the answer may have changed, and only then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from rolloutpool_api.conditions import ConditionType
from rolloutpool_api.moments import rfc3339
from rolloutpool_api.planning import PlanningMode
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import PlanStatus
from rolloutpool_operator.core import reasons
from rolloutpool_operator.core.choosing import Answer, NoAnswer, PlanChoice, choose_plan
from rolloutpool_operator.core.groups import running_groups
from rolloutpool_operator.core.observed import Observed
from rolloutpool_operator.core.translate import (
    is_manual,
    planner_inputs,
    profile_note,
    read_profile,
    replica_groups,
    selection_note,
)
from rolloutpool_operator.memory import Planned, PoolMemory
from rolloutpool_planner.answers import Infeasible, Plan, PlanResult, SolverTimeout, summary
from rolloutpool_planner.check import violations
from rolloutpool_planner.errors import PlannerError
from rolloutpool_planner.inputs import PlannerInputs
from rolloutpool_planner.plan import plan
from rolloutpool_sim.profile import PerformanceProfile, ProfileError

REPLAN_SECONDS = 30.0
"""Least time between two plans of one spec while nodes come and go, in seconds."""

Planner = Callable[[PlannerInputs], Awaitable[PlanResult]]
"""Answers a planning question; may take as long as the inputs' time limit. Raises PlannerError."""

logger = logging.getLogger(__name__)
_threads = ThreadPoolExecutor(2, thread_name_prefix="planner")


async def run_planner(inputs: PlannerInputs) -> PlanResult:
    """The planner, in a thread of its own: the solver blocks."""
    return await asyncio.get_running_loop().run_in_executor(_threads, plan, inputs)


async def make_choice(
    observed: Observed, spec: RolloutPoolSpec, memory: PoolMemory, *, planner: Planner, now: float
) -> PlanChoice:
    """The plan to work towards now. Plans anew where the spec, the nodes or the profile changed.

    Args:
        observed: what was gathered.
        spec: the valid spec.
        memory: of the pool; remembers the question and its answer.
        planner: answers questions that are new.
        now: Unix seconds.
    """
    stored = observed.status.plan
    selection = selection_note(spec.gpus, observed.nodes)
    try:
        profile = _profile(observed, spec)
        inputs = planner_inputs(
            spec, profile=profile, nodes=observed.nodes, running=running_groups(observed.children)
        )
        answer = await _answer(observed, inputs, memory, planner=planner, now=now)
        same_spec = _same_spec(observed, inputs, memory.settled)
        judged = await _judge(stored, answer, inputs, planner=planner) if same_spec else None
    except ProfileError as error:
        answer, judged, same_spec, profile = (
            NoAnswer(reason=reasons.PROFILE_MISSING, message=str(error)),
            None,
            True,
            None,
        )
    except PlannerError as error:
        logger.error("%s: planning failed: %s", observed.key, error)
        answer, judged, same_spec, profile = (
            NoAnswer(reason=reasons.PLANNING_FAILED, message=str(error)),
            None,
            True,
            None,
        )
    return choose_plan(
        answer,
        stored=stored,
        stored_now=judged,
        same_spec=same_spec,
        hysteresis_percent=spec.planning.hysteresis_percent,
        now=rfc3339(now),
        note="; ".join(filter(None, (profile_note(spec, profile), selection, observed.nodes_note))),
    )


def is_first(observed: Observed, spec: RolloutPoolSpec) -> bool:
    """Whether nothing was said of a plan yet and one is about to be made, which may take a while."""
    told = any(item.type is ConditionType.PLAN_READY for item in observed.status.conditions)
    return not told and not is_manual(spec)


async def _answer(
    observed: Observed, inputs: PlannerInputs, memory: PoolMemory, *, planner: Planner, now: float
) -> Answer:
    last = memory.planned
    if last and not _is_news(inputs, last, now):
        return last.answer
    answer = await planner(inputs)
    words = summary(answer.groups) if isinstance(answer, Plan) else answer.message
    logger.info("%s: planned: %s", observed.key, words)
    memory.planned = Planned(inputs, answer, now)
    return answer


def _is_news(inputs: PlannerInputs, last: Planned, now: float) -> bool:
    """Whether a question differs from the last one; changes of nodes alone wait a while.

    What runs is no news: it follows from the last answer. A paced plan is the exception: once it runs, the
    next step is due.
    """
    if _static(inputs) != _static(last.inputs):
        return True
    if inputs.node_shapes != last.inputs.node_shapes:
        return not isinstance(last.answer, Plan) or now - last.at >= REPLAN_SECONDS
    if isinstance(last.answer, SolverTimeout):
        return now - last.at >= REPLAN_SECONDS
    paced = isinstance(last.answer, Plan) and last.answer.paced
    return paced and inputs.current_plan != last.inputs.current_plan and now - last.at >= REPLAN_SECONDS


def _static(inputs: PlannerInputs) -> PlannerInputs:
    return replace(inputs, node_shapes=None, current_plan=None)


def _same_spec(observed: Observed, inputs: PlannerInputs, settled: PlannerInputs | None) -> bool:
    """Whether the stored plan was made for this question, nodes aside.

    By memory where this process wrote it: a new image, say, changes the spec and not the question. A plan
    that was made and could not be written does not count.
    """
    if settled is not None:
        return _static(inputs) == _static(settled)
    return observed.status.observed_generation == observed.generation


async def _judge(
    stored: PlanStatus | None, answer: Answer, inputs: PlannerInputs, *, planner: Planner
) -> Plan | Infeasible | SolverTimeout | None:
    """What the stored plan is worth today; None where it needs no judging or will not do. Takes no solver."""
    if stored is None or not isinstance(answer, Plan) or answer.hash == stored.hash:
        return None
    if inputs.mode is PlanningMode.MANUAL or answer.paced:
        return None
    groups = replica_groups(stored.groups)
    if not groups:
        return None
    judged = await planner(replace(inputs, mode=PlanningMode.MANUAL, manual_groups=groups))
    # Mode Manual takes the groups as they are; held is only what would do as an answer to today's question.
    return None if isinstance(judged, Plan) and violations(judged, inputs) else judged


def _profile(observed: Observed, spec: RolloutPoolSpec) -> PerformanceProfile | None:
    """The profile; in mode Manual none is needed, so a missing one is no error."""
    try:
        return read_profile(spec, observed.profile)
    except ProfileError:
        if is_manual(spec):
            return None
        raise
