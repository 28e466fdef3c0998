"""Why a plan is not better, and what was rejected for it: words with numbers for status and terminal."""

from collections.abc import Iterator

from rolloutpool_api.planning import PlanningObjective, Role

from .answers import Alternative
from .candidates import Candidates
from .greedy import by_size
from .inputs import Parallelism
from .obstacles import describe
from .packing import pack
from .program import Counts, Program, additions, removals, role_capacity, served, total_gpus
from .search import TimedSolve, goals, search

EQUAL = 1e-6
"""Relative difference of capacities that is none."""

MAX_ALTERNATIVES = 2


def bottlenecks(program: Program, counts: Counts) -> tuple[Role, ...]:
    """The roles that limit what is served (both if they are even)."""
    totals = role_capacity(program, counts)
    least = min(totals.values())
    return tuple(role for role in totals if totals[role] <= least * (1 + EQUAL))


def binding(program: Program, counts: Counts, objective: PlanningObjective, found: Candidates) -> str:
    """The constraint that stops a better answer."""
    if objective is PlanningObjective.MINIMIZE_GPUS:
        return _fewest(program, counts)
    roles = bottlenecks(program, counts)
    blocked = "; ".join(_blocks(program, counts, roles)) or "no single replica more fits"
    limits = sorted(
        {c.limited_by for c, n in zip(found.usable, counts, strict=True) if n and c.role in roles}
    )
    totals = role_capacity(program, counts)
    names = " and ".join(f"{role} ({totals[role]:.4g} samples/s)" for role in roles)
    return f"{blocked}; slowest: {names}, limited by {', '.join(limits)}"


def _fewest(program: Program, counts: Counts) -> str:
    capacity = served(role_capacity(program, counts))
    used, removed = total_gpus(program, counts), removals(program, counts)
    if program.max_change is not None and removed >= program.max_change:
        return f"max change per step: {removed} of {program.max_change} removals, {used} GPUs stay"
    if program.demand <= 0:
        return f"one replica of each role is the least: {used} GPUs"
    return f"demand of {program.demand:.4g} samples/s within the SLOs: {used} GPUs serve {capacity:.4g}"


def _blocks(program: Program, counts: Counts, roles: tuple[Role, ...]) -> Iterator[str]:
    """Which limits forbid one more replica of each of the slowest roles."""
    more = list(counts)
    for role in roles:
        sizes = [(o.gpus, i) for i, o in enumerate(program.options) if o.role is role and o.capacity > 0]
        more[min(sizes)[1]] += 1
    grown = tuple(more)
    used, extra = total_gpus(program, counts), total_gpus(program, grown) - total_gpus(program, counts)
    if program.gpu_budget is not None and used + extra > program.gpu_budget:
        yield f"GPU budget: {used} of {program.gpu_budget} used, {extra} more needed for a step up"
    if program.node_shapes is not None and pack(program.node_shapes, by_size(program, grown)):
        free = sum(shape.free_gpus * shape.count for shape in program.node_shapes)
        yield f"nodes: {used} of {free} free GPUs used, no node has room for the next replica"
    if sum(grown) > program.max_engines:
        yield f"engines: {sum(counts)} of at most {program.max_engines}"
    if program.max_change is not None and additions(program, grown) > program.max_change:
        yield f"max change per step: {additions(program, counts)} of {program.max_change} additions"


def alternatives(
    program: Program, counts: Counts, objective: PlanningObjective, solve: TimedSolve
) -> tuple[Alternative, ...]:
    """The best two plans that were not chosen: of the other mode, and with other parallelisms.

    They are judged without regard to the running plan. Empty when no time is left.
    """
    order = goals(objective, tracks_changes=False)[:2]
    found: list[Alternative] = []
    tried: set[Counts] = {counts}
    for name, other in _variants(program, counts):
        if len(found) == MAX_ALTERNATIVES:
            break
        best = search(other, order, solve).counts
        if best is None or _aligned(program, other, best) in tried:
            continue
        tried.add(_aligned(program, other, best))
        found.append(
            Alternative(
                summary=describe(other, best),
                rejected=f"{name}: {_worse(program, counts, other, best, objective)}",
            )
        )
    return tuple(found)


def _variants(program: Program, counts: Counts) -> Iterator[tuple[str, Program]]:
    chosen = set(role_capacity(program, counts))
    others = {option.role for option in program.options} - chosen
    if others:
        yield "best " + ("aggregated" if Role.AGGREGATED in others else "disaggregated"), program.only(others)
    used = [o.parallelism for o, n in zip(program.options, counts, strict=True) if n]
    yield from _without(program.only(chosen), used)


def _without(program: Program, used: list[Parallelism]) -> Iterator[tuple[str, Program]]:
    """Without each parallelism of the plan, the one with the most GPUs per replica first."""
    for parallelism in sorted(set(used), key=lambda p: (-p.gpus, p)):
        yield f"without {parallelism}", program.only(without=frozenset({parallelism}))


def _aligned(program: Program, other: Program, counts: Counts) -> Counts:
    """Counts of another program over the same options, in the order of this one."""
    by_label = {o.label: n for o, n in zip(other.options, counts, strict=True)}
    return tuple(by_label.get(option.label, 0) for option in program.options)


def _worse(
    program: Program, counts: Counts, other: Program, best: Counts, objective: PlanningObjective
) -> str:
    """What the other plan costs or loses against the chosen one."""
    ours, theirs = served(role_capacity(program, counts)), served(role_capacity(other, best))
    our_gpus, their_gpus = total_gpus(program, counts), total_gpus(other, best)
    minimize = objective is PlanningObjective.MINIMIZE_GPUS
    if minimize and their_gpus != our_gpus:
        text, better = f"{their_gpus} GPUs instead of {our_gpus}", their_gpus < our_gpus
    elif abs(theirs - ours) > EQUAL * ours:
        text = f"{theirs:.4g} samples/s instead of {ours:.4g}, on {their_gpus} GPUs"
        better = not minimize and theirs > ours
    elif their_gpus != our_gpus:
        text = f"the same {ours:.4g} samples/s, but {their_gpus} GPUs instead of {our_gpus}"
        better = their_gpus < our_gpus
    else:
        return "as good, but farther from the running plan or later in the fixed order"
    return f"{text}, but farther from the running plan than one step may go" if better else text
