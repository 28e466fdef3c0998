"""What the container's limit of memory is, as control groups tell it, and what of it bodies may take."""

from pathlib import Path

import pytest

from rolloutpool_router.bodies import BUDGET_BYTES, Budget
from rolloutpool_router.memory import memory_limit

GIB = 2**30


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        pytest.param("memory.max", f"{GIB}\n", GIB, id="version-2"),
        pytest.param("memory.max", "max\n", None, id="version-2-without"),
        pytest.param("memory/memory.limit_in_bytes", f"{GIB}\n", GIB, id="version-1"),
        pytest.param("memory/memory.limit_in_bytes", "9223372036854771712\n", None, id="version-1-without"),
        pytest.param("other", "1\n", None, id="neither"),
    ],
)
def test_the_containers_limit(file: str, text: str, limit: int | None, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert memory_limit(tmp_path) == limit


@pytest.mark.parametrize(
    ("memory", "most"),
    [
        pytest.param(None, BUDGET_BYTES, id="no-limit"),
        pytest.param(GIB, GIB // 4, id="a-part-of-the-limit"),
        pytest.param(64 * GIB, BUDGET_BYTES, id="never-more-than-without"),
    ],
)
def test_bodies_get_a_part_of_it(memory: int | None, most: int) -> None:
    assert Budget.within(memory).most == most
