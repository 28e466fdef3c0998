"""A plan without a solver, for when there is no answer in time: one parallelism per role, counts by ratio.

Not optimal, but quick (a few hundred combinations) and within all constraints.
"""

from collections.abc import Iterator

from rolloutpool_api.planning import PlanningObjective, Role

from .model import most_replicas
from .packing import pack
from .program import Counts, Program, additions, removals, role_capacity, served, total_gpus

TOLERANCE = 1e-6
"""Relative rounding error that is no shortfall."""


def fits(program: Program, counts: Counts) -> bool:
    """Whether the counts keep budget, engines, nodes, change and demand, in plain arithmetic."""
    if program.gpu_budget is not None and total_gpus(program, counts) > program.gpu_budget:
        return False
    if sum(counts) > program.max_engines:
        return False
    if program.max_change is not None and program.tracks_changes:
        changed = max(additions(program, counts), removals(program, counts))
        if changed > program.max_change:
            return False
    if served(role_capacity(program, counts)) < program.demand * (1 - TOLERANCE):
        return False
    return program.node_shapes is None or not pack(program.node_shapes, by_size(program, counts))


def by_size(program: Program, counts: Counts) -> dict[int, int]:
    """Replicas by their GPUs."""
    sizes: dict[int, int] = {}
    for option, n in zip(program.options, counts, strict=True):
        sizes[option.gpus] = sizes.get(option.gpus, 0) + n
    return sizes


def _pure(program: Program, replicas: dict[int, int]) -> Counts:
    return tuple(replicas.get(i, 0) for i in range(len(program.options)))


def _aggregated(program: Program) -> Iterator[Counts]:
    for i, option in enumerate(program.options):
        if option.role is Role.AGGREGATED:
            for n in range(1, most_replicas(program, option) + 1):
                yield _pure(program, {i: n})


def _disaggregated(program: Program) -> Iterator[Counts]:
    """Every pair of parallelisms, every number of prefill replicas, and as many decode ones as match it."""
    prefill = [i for i, o in enumerate(program.options) if o.role is Role.PREFILL and o.capacity > 0]
    decode = [i for i, o in enumerate(program.options) if o.role is Role.DECODE and o.capacity > 0]
    for p in prefill:
        for d in decode:
            ratio = program.options[p].capacity / program.options[d].capacity
            for n in range(1, most_replicas(program, program.options[p]) + 1):
                for m in {max(1, int(n * ratio)), int(n * ratio) + 1}:
                    yield _pure(program, {p: n, d: m})


def _running(program: Program) -> Iterator[Counts]:
    counts = tuple(option.running for option in program.options)
    roles = set(role_capacity(program, counts))
    if roles in ({Role.AGGREGATED}, {Role.PREFILL, Role.DECODE}):
        yield counts


def greedy(program: Program, objective: PlanningObjective) -> Counts | None:
    """The best of these plans that fits; ties go to fewer GPUs, then to the first option. None: none fits."""

    def rank(counts: Counts) -> tuple[float, float]:
        throughput, gpus = served(role_capacity(program, counts)), total_gpus(program, counts)
        if objective is PlanningObjective.MINIMIZE_GPUS:
            return -gpus, throughput
        return throughput, -gpus

    plans = (*_running(program), *_aggregated(program), *_disaggregated(program))
    return max((counts for counts in plans if fits(program, counts)), key=rank, default=None)
