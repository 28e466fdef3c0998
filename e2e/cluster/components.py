"""The images of this project: what goes into each and what each runs. The Dockerfiles say the same."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
REPOSITORY = "localhost/rolloutpool"


@dataclass(frozen=True)
class Component:
    """One image: the extra with its requirements, our packages (dotted names) in it, its main module."""

    name: str
    extra: str
    packages: tuple[str, ...]
    module: str
    dockerfile: str

    @property
    def entrypoint(self) -> tuple[str, ...]:
        """What the container runs; a pod's args are appended."""
        return ("python3", "-m", self.module)


COMPONENTS = {
    component.name: component
    for component in (
        Component(
            name="operator",
            extra="operator",
            packages=(
                "rolloutpool_api",
                "rolloutpool_operator",
                "rolloutpool_planner",
                "rolloutpool_router.core",
                "rolloutpool_sim",
            ),
            module="rolloutpool_operator.main",
            dockerfile="operator/Dockerfile",
        ),
        Component(
            name="router",
            extra="router-image",
            packages=("rolloutpool_api", "rolloutpool_router"),
            module="rolloutpool_router.main",
            dockerfile="router/Dockerfile",
        ),
        Component(
            name="emulator",
            extra="emulator",
            packages=("rolloutpool_api", "rolloutpool_router.core", "rolloutpool_sim"),
            module="rolloutpool_sim.emulator",
            dockerfile="planner/Dockerfile",
        ),
    )
}


def reference(name: str) -> str:
    """The image's reference on a node that got it from a file."""
    return f"{REPOSITORY}/{name}:dev"


def read_pyproject(project: Path = PROJECT) -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((project / "pyproject.toml").read_text())


def requirements(pyproject: Mapping[str, Any], extra: str) -> list[str]:
    """The project's requirements and those of `extra`, with references to other extras resolved; sorted.

    Raises:
        KeyError: no such extra.
    """
    project = pyproject["project"]
    found = set(project["dependencies"])
    todo, seen = [extra], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for line in project["optional-dependencies"][name]:
            own = re.fullmatch(rf"{re.escape(project['name'])}\[([\w, -]+)\]", line)
            if own:
                todo += [part.strip() for part in own[1].split(",")]
            else:
                found.add(line)
    return sorted(found)


def package_folders(pyproject: Mapping[str, Any]) -> dict[str, str]:
    """Our top-level packages and their folders below the project."""
    folders: Sequence[str] = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return {folder.rsplit("/", 1)[-1]: folder for folder in folders}
