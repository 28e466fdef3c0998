"""Runs in processes of their own: results, failures, deaths, and stopping."""

from __future__ import annotations

import multiprocessing

import pytest
from rich.console import Console

from rolloutpool_cli.simulate import runner
from rolloutpool_cli.simulate.display import run_shown
from rolloutpool_cli.simulate.runner import Failed, Finished, Job, Simulate, Update, run_jobs
from rolloutpool_cli.simulate.testing import broken, dying, endless, seeded
from rolloutpool_sim.fleet.scenario import Scenario

SCENARIO = Scenario.model_validate(
    {
        "name": "small",
        "fleet": {"engines": 1, "kvTokens": 20000, "maxModelLen": 8192},
        "workloads": [{"name": "one", "share": 1, "promptTokens": 100, "outputTokens": 50}],
        "trainer": {"outstanding": 4},
    }
)


def jobs(count: int) -> list[Job]:
    return [Job("key", seed, SCENARIO, keep_series=seed == 1) for seed in range(1, count + 1)]


def collect(simulate: Simulate, count: int, *, workers: int = 2) -> list[Update]:
    updates: list[Update] = []
    run_jobs(jobs(count), simulate=simulate, workers=workers, report=updates.append)
    return updates


def test_every_run_has_its_result() -> None:
    updates = collect(seeded, 4)
    results = {update.job.seed: update.result for update in updates if isinstance(update, Finished)}
    assert {seed: result.in_mixture_per_minute for seed, result in results.items()} == {
        1: 310.0, 2: 320.0, 3: 330.0, 4: 340.0
    }  # fmt: skip
    assert [bool(results[seed].series.time) for seed in (1, 2)] == [True, False]
    assert any(isinstance(update, runner.Progress) and update.fraction == 0.5 for update in updates)


def test_a_failing_run_takes_no_other_with_it() -> None:
    updates = collect(broken, 4)
    failed = {update.job.seed: update.message for update in updates if isinstance(update, Failed)}
    assert failed == {2: "RuntimeError: no luck with seed 2", 4: "RuntimeError: no luck with seed 4"}
    assert sum(isinstance(update, Finished) for update in updates) == 2


def test_a_run_whose_process_dies() -> None:
    (failed,) = collect(dying, 1)
    assert isinstance(failed, Failed)
    assert "exit code 9" in failed.message


def test_nothing_is_left_when_reporting_stops_it() -> None:
    def stop(update: Update) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs(5), simulate=endless, workers=3, report=stop)
    assert multiprocessing.active_children() == []


def test_progress_without_a_terminal_is_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    runs = run_shown(jobs(12), simulate=broken, workers=1, console=Console())
    assert capsys.readouterr().out.splitlines() == ["10 of 12 runs, 5 failed", "12 of 12 runs, 6 failed"]
    assert (len(runs.results), len(runs.failures), runs.interrupted) == (6, 6, False)
    assert runs.done == 12
