"""Each program starts with what its extra installs, and nothing else."""

import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "rolloutpool"
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"no module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import {module}
"""


def installed_with(extra: str) -> set[str]:
    """Names of the distributions that the project with an extra brings, all that they need included."""
    found: set[str] = set()
    wanted = [(PROJECT, extra)]
    while wanted:
        name, extra = wanted.pop()
        for line in requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            other = canonicalize_name(requirement.name)
            wanted += [(other, own) for own in ("", *requirement.extras) if other not in found or own]
            found.add(other)
    return found


@pytest.mark.parametrize(
    ("extra", "module"),
    [
        pytest.param("router", "rolloutpool_router.main", id="router"),
        pytest.param("router-image", "rolloutpool_router.spans", id="router with traces"),
        pytest.param("operator", "rolloutpool_operator.main", id="operator"),
        pytest.param("emulator", "rolloutpool_sim.emulator", id="emulator"),
        pytest.param("cli", "rolloutpool_cli.main", id="cli"),
    ],
)
def test_a_program_needs_only_its_extra(extra: str, module: str) -> None:
    there = installed_with(extra) | {PROJECT}
    absent = {
        name
        for name, distributions in packages_distributions().items()
        if not {canonicalize_name(each) for each in distributions} & there
    }
    code = WITHOUT.format(absent=absent, module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
