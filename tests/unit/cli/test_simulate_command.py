"""`rolloutpool simulate` as it is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rolloutpool_cli.main import app
from rolloutpool_cli.simulate.cells import cells
from rolloutpool_cli.simulate.read import Source, parse_experiment
from rolloutpool_cli.simulate.shipped import shipped
from rolloutpool_cli.simulate.sweep import sweep_points

TEXT = """
name: tiny
description: A tiny one.
seeds: 2
scenario:
  fleet: {engines: 1, kvTokens: 4096, maxModelLen: 1024}
  workloads:
    - {name: long, share: 0.5, promptTokens: 30, outputTokens: {lognormal: {median: 60, p95: 150}, max: 500}}
    - {name: short, share: 0.5, promptTokens: 60, outputTokens: 20}
  trainer: {outstanding: 16}
  seconds: 12
  warmupSeconds: 4
variants:
  - {name: None, set: {admission.policy: None}}
  - {name: Session, set: {admission.policy: Session}}
  - {name: MISA-T}
compare: {baseline: None}
sweep:
  variant: MISA-T
  constants: [{path: admission.safety, values: [0.8]}]
"""
EXPERIMENTS = [
    "adversarial", "delays", "growth", "ladder", "offload", "overload", "scale", "shift",
]  # fmt: skip


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT)
    return str(path)


def test_a_whole_comparison(tiny: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = simulate(tiny, "--jobs", "2", "--output", str(folder))
    assert result.exit_code == 0, result.output
    rows = [line.split("  ")[0] for line in result.stdout.splitlines()[:4]]
    assert rows == ["Variant", "None", "Session", "MISA-T"]
    data = json.loads((folder / "results.json").read_text())
    assert data["complete"] is True
    assert len(data["runs"]) == 6
    assert all(run["result"]["samples_per_minute"] > 0 for run in data["runs"])
    assert (folder / "report.html").is_file()
    assert (folder / "compare.png").is_file()


def test_a_whole_sweep_of_one_seed(tiny: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = simulate(tiny, "--sweep", "--seeds", "1", "--output", str(folder))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[:2] == ["admission.safety", "0.95"]
    assert (folder / "sweep.png").is_file()


def test_ctrl_c_reports_what_has_finished(tmp_path: Path) -> None:
    """In a process group of its own, all of which gets the signal, as on a terminal."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT.replace("{name: Session, set: {", "{name: Session, set: {seconds: 5000000, "))
    command = [sys.executable, "-m", "rolloutpool_cli.main", "simulate", str(path), "--seeds", "5"]
    with subprocess.Popen(
        [*command, "--jobs", "7", "--output", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "10 of 15 runs" not in process.stderr.readline():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        shown, told = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130
    assert [line.split("  ")[0] for line in shown.splitlines()[:3]] == ["Variant", "None", "MISA-T"]
    assert "Incomplete: 10 of 15 runs have finished." in told
    assert "Traceback" not in told
    assert json.loads((tmp_path / "out" / "results.json").read_text())["complete"] is False


def test_help_names_every_option() -> None:
    shown = simulate("--help").stdout
    for option in (
        "--seeds",
        "--jobs",
        "--policies",
        "--loads",
        "--set",
        "--seconds",
        "--sweep",
        "--output",
        "--list",
    ):
        assert option in shown


def test_shipped_experiments_are_listed() -> None:
    result = simulate("--list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[1 : 1 + len(EXPERIMENTS)]] == EXPERIMENTS


@pytest.mark.parametrize("path", shipped(), ids=lambda path: str(path.stem))
def test_shipped_experiments_are_valid(path: Path) -> None:
    source = Source(str(path), path.read_text())
    experiment = parse_experiment(source)
    assert experiment.name == path.stem
    assert len(cells(experiment, source)) >= len(experiment.variants)
    if experiment.sweep:
        assert sweep_points(experiment, experiment.sweep, source)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        pytest.param((), "give an experiment file, or --list", id="no-file"),
        pytest.param(
            ("absent",), "there is no experiment absent: write the path of a file, or one of adv", id="absent"
        ),
        pytest.param((str(Path(__file__).parent),), "cli is a folder: write the path of a file", id="folder"),
        pytest.param(
            ("overload", "--variants", "MISA-T,MISA-X"),
            "there is no variant 'MISA-X': write one of None, ",
            id="variant",
        ),
        pytest.param(
            ("overload", "--loads", "9x"), "there is no load '9x': write one of 1x, 2x, 4x", id="load"
        ),
        pytest.param(
            ("overload", "--set", "fleet.engins=2"),
            "--set fleet.engins: there is no such field: did you mean engines?",
            id="set",
        ),
        pytest.param(("shift", "--sweep"), "sweep: is missing", id="no-sweep"),
        pytest.param(("overload", "--seconds", "1"), "10", id="seconds"),
    ],
)
def test_wrong_use_is_explained(arguments: tuple[str, ...], shown: str) -> None:
    result = simulate(*arguments)
    assert result.exit_code == 2
    assert shown in result.output


def test_a_folder_that_cannot_be_written(tiny: str) -> None:
    result = simulate(tiny, "--seeds", "1", "--variants", "None", "--output", tiny)
    assert result.exit_code == 1
    assert "give another folder with --output" in result.output
    assert "In mixture" not in result.stdout, "nothing is run for results that cannot be kept"
