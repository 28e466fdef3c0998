"""docs/engine-health.md tells the constants of engine health as they are, and every standing."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rolloutpool_router.core.standing import Standing

TEXT = (Path(__file__).parents[3] / "docs" / "engine-health.md").read_text()
ROWS = re.findall(r"^\| `(\w+)\.([\w.]+)` \| ([^|]+) \|", TEXT, re.MULTILINE)


def constants(module: str) -> set[str]:
    """Constants of a module."""
    found: dict[str, Any] = vars(import_module(f"rolloutpool_router.core.{module}"))
    return {
        f"{module}.{name}"
        for name, value in found.items()
        if name.isupper() and isinstance(value, int | float)
    }


@pytest.mark.parametrize(("module", "name", "value"), ROWS, ids=[f"{m}.{n}" for m, n, _ in ROWS])
def test_a_constant_has_the_value_told(module: str, name: str, value: str) -> None:
    found: Any = import_module(f"rolloutpool_router.core.{module}")
    *holder, last = name.split(".")
    for kind in holder:
        found = getattr(found, kind)()
    assert getattr(found, last) == ast.literal_eval(value.strip())


def test_all_are_told() -> None:
    told = {f"{module}.{name}" for module, name, _ in ROWS}
    assert told >= constants("health") | constants("stalls")
    assert {name for name in Standing if f"`{name.value}`" not in TEXT} == set()
