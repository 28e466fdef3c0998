from pathlib import Path

import cbcbox
import pulp
import pytest

from rolloutpool_planner.errors import SolverError
from rolloutpool_planner.solver import SolveStatus, solve, status_of


def problem(*, low: float = 0, high: float = 10) -> tuple[pulp.LpProblem, pulp.LpVariable]:
    created = pulp.LpProblem("test", pulp.LpMaximize)
    x = created.add_variable("x", low, high, pulp.LpInteger)
    created.setObjective(1 * x)
    return created, x


@pytest.mark.parametrize(
    ("status", "sol_status", "expected"),
    [
        pytest.param(1, 1, SolveStatus.OPTIMAL, id="proven"),
        pytest.param(1, 2, SolveStatus.FEASIBLE, id="stopped with a solution, which status calls Optimal"),
        pytest.param(0, 0, SolveStatus.NO_ANSWER, id="stopped without a solution"),
        pytest.param(-1, -1, SolveStatus.INFEASIBLE, id="infeasible relaxation"),
        pytest.param(-1, 0, SolveStatus.INFEASIBLE, id="integer infeasible, which sol_status does not say"),
        pytest.param(-3, 0, SolveStatus.NO_ANSWER, id="undefined"),
    ],
)
def test_status(status: int, sol_status: int, expected: SolveStatus) -> None:
    assert status_of(status, sol_status) is expected


def test_an_unbounded_program_is_a_defect() -> None:
    with pytest.raises(SolverError, match="unbounded"):
        status_of(-2, -2)


def test_optimum() -> None:
    created, x = problem()
    created += 2 * x <= 7, "limit"

    outcome = solve(created, 10.0)
    assert outcome.status is SolveStatus.OPTIMAL
    assert outcome.solved
    assert outcome.values["x"] == pytest.approx(3)


def test_infeasible_relaxation() -> None:
    created, x = problem()
    created += x >= 11, "beyond"

    assert solve(created, 10.0).status is SolveStatus.INFEASIBLE


def test_infeasible_only_in_integers() -> None:
    created, x = problem()
    y = created.add_variable("y", 0, 10, pulp.LpInteger)
    created += 6 * x + 10 * y == 35, "odd"

    outcome = solve(created, 10.0)
    assert outcome.status is SolveStatus.INFEASIBLE
    assert outcome.values == {}


def market_split(rows: int, columns: int) -> pulp.LpProblem:
    """A market split instance (Cornuejols and Dawande): proving the optimum takes CBC very long."""
    created = pulp.LpProblem("market_split", pulp.LpMinimize)
    x = [created.add_variable(f"x{j}", cat=pulp.LpBinary) for j in range(columns)]
    slack = []
    for i in range(rows):
        weights = [(37 * (i + 3) * (j + 11) ** 2 + 101 * j) % 100 for j in range(columns)]
        over, under = created.add_variable(f"over{i}", 0), created.add_variable(f"under{i}", 0)
        slack += [over, under]
        total = pulp.lpSum(w * v for w, v in zip(weights, x, strict=True))
        created += total + under - over == sum(weights) // 2, f"split{i}"
    created.setObjective(pulp.lpSum(slack))
    return created


def test_a_time_limit_ends_without_a_proof() -> None:
    outcome = solve(market_split(6, 50), 0.5)

    assert outcome.status in (SolveStatus.FEASIBLE, SolveStatus.NO_ANSWER)
    assert bool(outcome.values) is outcome.solved


def test_a_missing_solver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cbcbox, "cbc_bin_path", lambda: str(tmp_path / "cbc"))

    with pytest.raises(SolverError, match="CBC could not be run"):
        solve(problem()[0], 1.0)
