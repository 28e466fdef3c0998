"""The table of images agrees with pyproject.toml and with the Dockerfiles."""

import re
from typing import Any

import pytest

from cluster.components import COMPONENTS, PROJECT, Component, package_folders, read_pyproject, requirements

PYPROJECT: dict[str, Any] = {
    "project": {
        "name": "thing",
        "dependencies": ["base>=1"],
        "optional-dependencies": {
            "a": ["thing[b, c]", "only-a"],
            "b": ["shared[extra]>=2", "thing[a]"],
            "c": ["shared[extra]>=2", "thing-like[x]"],
        },
    }
}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        pytest.param("c", ["base>=1", "shared[extra]>=2", "thing-like[x]"], id="plain"),
        pytest.param(
            "a", ["base>=1", "only-a", "shared[extra]>=2", "thing-like[x]"], id="other extras, in a circle"
        ),
    ],
)
def test_requirements(extra: str, expected: list[str]) -> None:
    assert requirements(PYPROJECT, extra) == expected


def test_unknown_extra() -> None:
    with pytest.raises(KeyError, match="nothing"):
        requirements(PYPROJECT, "nothing")


COMPONENT = pytest.mark.parametrize("component", COMPONENTS.values(), ids=COMPONENTS.keys())


@COMPONENT
def test_packages_are_the_projects(component: Component) -> None:
    folders = package_folders(read_pyproject())
    for package in component.packages:
        top, *rest = package.split(".")
        assert (PROJECT / folders[top]).joinpath(*rest, "__init__.py").is_file()


@COMPONENT
def test_module_is_in_a_package_of_the_image(component: Component) -> None:
    assert component.module.split(".")[0] in component.packages


@COMPONENT
def test_dockerfile_agrees(component: Component) -> None:
    text = (PROJECT / component.dockerfile).read_text()
    entrypoint = ", ".join(f'"{word}"' for word in component.entrypoint)
    assert re.findall(r'"\.\[(.*)\]"', text) == [component.extra]
    assert f"ENTRYPOINT [{entrypoint}]" in text
    assert "USER 65532:65532" in text
    assert f"-f {component.dockerfile}" in text
