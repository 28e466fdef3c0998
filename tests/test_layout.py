"""Guards of the layout: nothing may shadow the standard library, and files stay small."""

import operator
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMPONENTS = ("operator", "router", "planner", "crds", "cli", "tests", "e2e")
MOST_LINES = 500


@pytest.mark.parametrize("component", COMPONENTS)
def test_no_package_marker_in_component_folder(component: str) -> None:
    """With one, a folder named operator would take the standard library's place."""
    assert not (ROOT / component / "__init__.py").exists()


def test_operator_is_the_standard_librarys() -> None:
    assert Path(operator.__file__).is_relative_to(sysconfig.get_path("stdlib"))


def test_operator_is_the_standard_librarys_from_the_root() -> None:
    command = [sys.executable, "-c", "import operator; print(operator.itemgetter)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def python_files() -> list[Path]:
    return [path for component in COMPONENTS for path in sorted((ROOT / component).rglob("*.py"))]


def test_files_are_small() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_every_package_says_what_must_not_be_done_in_it() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if path.name == "__init__.py"
        and "must not" not in path.read_text()
        and "No I/O" not in path.read_text()
    ]
    assert silent == []
