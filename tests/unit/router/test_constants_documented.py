"""docs/admission.md tells the constants of the core as they are."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[3] / "docs" / "admission.md").read_text()
ROWS = re.findall(r"^\| `(\w+)\.(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE)


def test_there_are_constants() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize(("module", "name", "value"), ROWS, ids=[f"{m}.{n}" for m, n, _ in ROWS])
def test_a_constant_has_the_value_told(module: str, name: str, value: str) -> None:
    found = getattr(import_module(f"rolloutpool_router.core.{module}"), name)

    assert found == ast.literal_eval(value.strip())
