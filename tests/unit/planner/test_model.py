import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_api.planning import PlanningObjective, Role
from rolloutpool_planner.greedy import fits, greedy
from rolloutpool_planner.inputs import NodeShape, Parallelism
from rolloutpool_planner.model import Goal, Reached, build, most_replicas
from rolloutpool_planner.program import Counts, Option, Program, additions, role_capacity, served, total_gpus
from rolloutpool_planner.search import TimedSolve, goals, search
from rolloutpool_planner.solver import SolveStatus, solve
from rolloutpool_planner.testing import nodes

MAXIMIZE = PlanningObjective.MAXIMIZE_THROUGHPUT
MINIMIZE = PlanningObjective.MINIMIZE_GPUS


def option(role: Role, gpus: int, capacity: float, running: int = 0) -> Option:
    return Option(role=role, parallelism=Parallelism(gpus), capacity=capacity, running=running)


OPTIONS = (
    option(Role.AGGREGATED, 1, 1.0),
    option(Role.AGGREGATED, 2, 2.3),
    option(Role.DECODE, 1, 1.4),
    option(Role.DECODE, 2, 3.1),
    option(Role.PREFILL, 1, 3.9),
)


def program(
    budget: int | None = 4, shapes: tuple[NodeShape, ...] | None = None, **changes: object
) -> Program:
    fields: dict[str, object] = {"options": OPTIONS, "max_engines": 256, **changes}
    return Program(gpu_budget=budget, node_shapes=shapes, **fields)  # type: ignore[arg-type]


def best(p: Program, objective: PlanningObjective = MAXIMIZE) -> Counts | None:
    found = search(p, goals(objective, tracks_changes=p.tracks_changes), TimedSolve(solve=solve, left=20.0))
    assert found.status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE)
    return found.counts


def every_plan(p: Program) -> Iterator[Counts]:
    """All counts that keep every constraint, by enumeration and first-fit packing."""
    ranges = [range(most_replicas(p, o) + 1) for o in p.options]
    for counts in itertools.product(*ranges):
        roles = set(role_capacity(p, counts))
        if roles in ({Role.AGGREGATED}, {Role.PREFILL, Role.DECODE}) and fits(p, counts):
            yield counts


def brute_force(p: Program, objective: PlanningObjective) -> tuple[float, float] | None:
    """The best (objective, next goal) over all plans."""

    def rank(counts: Counts) -> tuple[float, float]:
        throughput, gpus = served(role_capacity(p, counts)), float(total_gpus(p, counts))
        return (-gpus, throughput) if objective is MINIMIZE else (throughput, -gpus)

    return max((rank(counts) for counts in every_plan(p)), default=None)


shapes_strategy = st.none() | st.lists(st.integers(0, 4), min_size=1, max_size=3).map(
    lambda free: nodes(*free)
)


@given(
    capacities=st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.2, 3.1]), min_size=5, max_size=5),
    budget=st.integers(1, 6),
    shapes=shapes_strategy,
    demand=st.sampled_from([0.0, 0.0, 1.0, 3.0]),
    objective=st.sampled_from([MAXIMIZE, MINIMIZE]),
)
@settings(max_examples=30, deadline=None)
def test_the_solver_finds_what_enumeration_finds(
    capacities: list[float],
    budget: int,
    shapes: tuple[NodeShape, ...] | None,
    demand: float,
    objective: PlanningObjective,
) -> None:
    options = tuple(replace(o, capacity=c) for o, c in zip(OPTIONS, capacities, strict=True))
    p = program(budget, shapes, options=options, demand=demand)
    expected, found = brute_force(p, objective), best(p, objective)

    assert (found is None) is (expected is None)
    if found is not None and expected is not None:
        assert fits(p, found)
        throughput, gpus = served(role_capacity(p, found)), total_gpus(p, found)
        reached = (-gpus, throughput) if objective is MINIMIZE else (throughput, -gpus)
        assert reached == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("p", "objective", "expected"),
    [
        pytest.param(program(1), MAXIMIZE, (1, 0, 0, 0, 0), id="one GPU is aggregated"),
        pytest.param(program(2), MAXIMIZE, (0, 1, 0, 0, 0), id="two GPUs: TP2 beats two TP1"),
        pytest.param(program(5), MAXIMIZE, (1, 2, 0, 0, 0), id="odd GPU is used"),
        pytest.param(program(3, options=OPTIONS[2:]), MAXIMIZE, (0, 1, 1), id="decode is the bottleneck"),
        pytest.param(program(4, nodes(1, 1, 1, 1)), MAXIMIZE, (4, 0, 0, 0, 0), id="nodes too small for TP2"),
        pytest.param(program(4, nodes(3, 1)), MAXIMIZE, (2, 1, 0, 0, 0), id="one TP2 where it fits"),
        pytest.param(program(8, demand=2.0), MINIMIZE, (0, 1, 0, 0, 0), id="fewest GPUs for the demand"),
        pytest.param(program(8), MINIMIZE, (1, 0, 0, 0, 0), id="no demand: smallest plan"),
        pytest.param(program(8, max_engines=2), MAXIMIZE, (0, 2, 0, 0, 0), id="engines"),
        pytest.param(program(1, demand=2.0), MAXIMIZE, None, id="demand beyond the budget"),
    ],
)
def test_small_problems(p: Program, objective: PlanningObjective, expected: Counts | None) -> None:
    assert best(p, objective) == expected


EQUAL = (option(Role.AGGREGATED, 1, 1.0), option(Role.AGGREGATED, 2, 2.0), option(Role.AGGREGATED, 4, 4.0))


def test_equal_plans_keep_what_runs() -> None:
    running = (EQUAL[0], replace(EQUAL[1], running=2), EQUAL[2])

    assert best(program(4, options=running)) == (0, 2, 0)


def test_equal_plans_are_told_apart_by_order() -> None:
    assert best(program(4, options=EQUAL)) == (0, 0, 1)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        pytest.param(1, (3, 1), id="one at a time"),
        pytest.param(3, (1, 2), id="three at a time"),
        pytest.param(None, (1, 2), id="no bound"),
    ],
)
def test_change_is_bounded(bound: int | None, expected: Counts) -> None:
    options = (option(Role.AGGREGATED, 1, 1.0, running=4), option(Role.AGGREGATED, 2, 2.3))

    found = best(program(5, options=options, max_change=bound))
    assert found == expected


def test_departing_replicas_count_as_removals() -> None:
    options = (option(Role.AGGREGATED, 1, 1.0, running=2),)

    found = best(program(4, options=options, departing=2, max_change=2))
    assert found == (4,)
    assert additions(program(4, options=options), found) == 2
    assert best(program(4, options=options, departing=3, max_change=2)) is None


def test_no_plan_is_lost_to_bound_propagation() -> None:
    """With its bound propagation on, CBC calls the last goal of this program infeasible."""
    options = tuple(
        Option(role=Role.AGGREGATED, parallelism=Parallelism(tp, pp), capacity=capacity)
        for tp, pp, capacity in (
            (1, 2, 0.141189336894),
            (2, 1, 0.185487039358),
            (4, 1, 0.405329604132),
            (8, 1, 1.0),
        )
    )
    p = program(100, options=options, demand=0.312060655386, departing=31, max_change=31)

    assert best(p) == (0, 0, 1, 12)


def test_constraints_are_named() -> None:
    options = (*OPTIONS[:4], replace(OPTIONS[4], running=1))
    p = program(4, nodes(2, 4), options=options, demand=0.5, max_change=3)

    built = build(p, Goal.ORDER, Reached(throughput=1.0, gpus=4, changes=2))
    for name in (
        "budget",
        "nodes_size_1",
        "nodes_size_2",
        "engines",
        "demand",
        "served_by_prefill",
        "served_by_decode",
        "prefill_present",
        "decode_present",
        "aggregated_present",
        "additions",
        "removals",
        "kind_of_x_prefill_tp1_pp1",
        "held_throughput",
        "held_gpus",
        "held_changes",
    ):
        assert built.get_constraint_by_name(name) is not None, name


@given(
    budget=st.integers(1, 12),
    shapes=shapes_strategy,
    demand=st.sampled_from([0.0, 2.0]),
    objective=st.sampled_from([MAXIMIZE, MINIMIZE]),
)
@settings(max_examples=12, deadline=None)
def test_the_fallback_fits_and_is_never_better(
    budget: int, shapes: tuple[NodeShape, ...] | None, demand: float, objective: PlanningObjective
) -> None:
    p = program(budget, shapes, demand=demand)
    quick, found = greedy(p, objective), best(p, objective)
    if quick is None:
        return
    assert fits(p, quick)
    assert found is not None
    if objective is MINIMIZE:
        assert total_gpus(p, quick) >= total_gpus(p, found)
    else:
        assert served(role_capacity(p, quick)) <= served(role_capacity(p, found)) * (1 + 1e-5)
