"""One reconcile of one pool: gather, plan, decide, apply, report."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_operator.core.children import Action, ApplyChild, Child
from rolloutpool_operator.core.conditions import Applying
from rolloutpool_operator.core.decide import decide
from rolloutpool_operator.core.events import action_events
from rolloutpool_operator.core.observed import Observed, PoolKey
from rolloutpool_operator.core.status import invalid_structure, planning_structure, structure
from rolloutpool_operator.memory import PoolMemory
from rolloutpool_operator.planning import Planner, is_first, make_choice, run_planner
from rolloutpool_operator.platform import Clock, Outcome, Platform
from rolloutpool_operator.reporting import write_status

RETRY_SECONDS = 5.0
"""After how many seconds actions that were refused are tried again."""
PROGRESS_SECONDS = 15.0
"""How often a pool that is not ready is looked at though nothing was announced (e.g. image pull errors)."""

logger = logging.getLogger(__name__)


async def reconcile_once(
    platform: Platform,
    key: PoolKey,
    memory: PoolMemory,
    *,
    clock: Clock,
    planner: Planner = run_planner,
) -> float | None:
    """Bring one pool closer to its spec. Idempotent; safe to run twice, also by two operators.

    Returns:
        Seconds until it should run again; None: when something changes.

    Raises:
        PlatformError: where the pool could not be read or its status not be written.
    """
    observed = await platform.gather(key)
    if observed is None or observed.deleting:
        memory.gone, memory.observed = True, None
        return None
    memory.saw(observed)
    if observed.pool is None:
        memory.structure = invalid_structure(observed)
        await write_status(platform, memory, clock=clock)
        return None
    spec = observed.pool.spec
    if is_first(observed, spec):
        memory.structure = planning_structure(observed)
        await write_status(platform, memory, clock=clock)
    choice = await make_choice(observed, spec, memory, planner=planner, now=clock())
    desired = platform.build(observed, choice.plan.groups if choice.plan else ())
    actions = decide(desired, observed.children, known=memory.known)
    withheld = _withheld(spec)
    outcome = Outcome() if withheld else await _apply(platform, observed, actions)
    memory.known = _known(memory.known, observed, desired, outcome)
    applying = Applying(
        withheld=actions if withheld else (),
        failures=tuple(failure.message for failure in outcome.failed),
    )
    memory.structure = structure(observed, choice, applying)
    await write_status(platform, memory, clock=clock, events=action_events(outcome.done))
    memory.settled = memory.planned.inputs if memory.planned else None
    return _again(memory, outcome)


def _withheld(spec: RolloutPoolSpec) -> bool:
    return spec.paused or not spec.planning.auto_apply


async def _apply(platform: Platform, observed: Observed, actions: Sequence[Action]) -> Outcome:
    if not actions:
        return Outcome()
    outcome = await platform.apply(observed, actions)
    for failure in outcome.failed:
        logger.warning("%s: refused: %s", observed.key, failure.message)
    return outcome


def _known(
    before: set[tuple[str, str]], observed: Observed, desired: Sequence[Child], outcome: Outcome
) -> set[tuple[str, str]]:
    """Children that were there at some time and that nobody but us may delete."""
    known = before | {(child.kind, child.name) for child in observed.children}
    for action in outcome.done:
        if isinstance(action, ApplyChild):
            known.add((action.child.kind, action.child.name))
        else:
            known.discard((action.kind, action.name))
    return known & {(child.kind, child.name) for child in desired}


def _again(memory: PoolMemory, outcome: Outcome) -> float | None:
    if outcome.failed:
        return RETRY_SECONDS
    done = memory.structure is not None and memory.structure.phase in ("Ready", "Paused")
    return None if done else PROGRESS_SECONDS
