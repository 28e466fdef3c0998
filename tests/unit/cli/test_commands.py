"""The commands as they are typed: what they print, and how they fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from rolloutpool_cli.main import app
from rolloutpool_testkit.manifests import pool_manifest

EXAMPLES = Path(__file__).parents[3] / "examples"
EXAMPLE = str(EXAMPLES / "mixed-rollouts.yaml")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        pytest.param((), "Commands", id="everything"),
        pytest.param(("local",), "--engine", id="local"),
        pytest.param(("local", "stop"), "--state-dir", id="local-stop"),
        pytest.param(("load",), "--window", id="load"),
        pytest.param(("plan",), "--gpus-per-node", id="plan"),
        pytest.param(("status",), "--watch", id="status"),
    ],
)
def test_help(arguments: tuple[str, ...], shown: str) -> None:
    result = run(*arguments, "--help")
    assert result.exit_code == 0
    assert shown in result.output


def test_the_examples_plan_is_one_prefill_and_two_decode_engines() -> None:
    result = run("plan", "-f", EXAMPLE, "--nodes", "1", "--gpus-per-node", "8")
    assert result.exit_code == 0
    rows = [line.split()[:3] for line in result.output.splitlines()]
    assert ["prefill", "TP1", "1"] in rows
    assert ["decode", "TP1", "2"] in rows


def test_no_plan_is_a_failure_that_names_the_smallest_budget(tmp_path: Path) -> None:
    slo = {"ttftMilliseconds": 2000, "demand": {"requestsPerSecond": 5000.0}}
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(pool_manifest(planning={"objective": "MinimizeGPUs"}, slo=slo)))
    result = run("plan", "-f", str(path))
    assert result.exit_code == 1
    assert "Smallest budget that would do" in result.output


def test_a_manifest_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_bytes(b"\xff\xfe\x00kind")
    result = run("plan", "-f", str(path))
    assert result.exit_code == 2
    assert "this is not YAML" in result.output


def test_a_profile_of_a_config_map_is_looked_for_beside_the_manifest(tmp_path: Path) -> None:
    reference = {"configMapRef": {"name": "measured", "key": "mine.yaml"}}
    path = tmp_path / "pool.yaml"
    path.write_text(yaml.safe_dump(pool_manifest(planning={"profile": reference})))
    result = run("plan", "-f", str(path))
    assert result.exit_code == 1
    assert str(tmp_path / "mine.yaml") in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        pytest.param(
            ("load", "-f", EXAMPLE, "--url", "http://127.0.0.1:9"), 1, "nothing answers", id="no-router"
        ),
        pytest.param(
            ("load", "-f", EXAMPLE, "--url", "http://127.0.0.1:9", "--duration", "long"),
            2,
            "60s or 5m",
            id="duration",
        ),
        pytest.param(("plan", "-f", "/nowhere.yaml"), 2, "/nowhere.yaml", id="no-manifest"),
        pytest.param(("local",), 2, "rolloutpool local -f pool.yaml", id="local-without-manifest"),
        pytest.param(
            ("local", "-f", EXAMPLE, "--engine", "localhost:1", "--port", "0"),
            2,
            "http://HOST:PORT",
            id="bad-engine",
        ),
        pytest.param(
            ("local", "--state-dir", "/x", "status"), 2, "after `status`", id="option-at-the-wrong-place"
        ),
        pytest.param(("local", "status"), 1, "rolloutpool local -f pool.yaml", id="status-of-nothing"),
        pytest.param(("local", "stop"), 0, "No pool runs", id="stop-nothing"),
        pytest.param(("status", "mixed"), 1, "KUBECONFIG", id="no-cluster"),
    ],
)
def test_errors_say_what_to_do(
    arguments: tuple[str, ...], code: int, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTPOOL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert shown in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
