"""What the operator remembers of a pool: its own statuses, so that it knows those of others."""

from dataclasses import replace
from typing import Any

import pytest

from rolloutpool_api.status import RolloutPoolStatus
from rolloutpool_operator.memory import MAX_STATUSES, PoolMemory
from rolloutpool_operator.testing import FakePlatform
from rolloutpool_testkit.manifests import pool_manifest


def phase(text: str) -> RolloutPoolStatus:
    return RolloutPoolStatus(phase=text)


@pytest.mark.parametrize(
    ("known", "delivered", "expected"),
    [
        pytest.param([], {"phase": "Ready"}, False, id="nothing read yet"),
        pytest.param(["Ready"], phase("Ready").to_wire(), False, id="own"),
        pytest.param(["Ready", "Degraded"], phase("Ready").to_wire(), False, id="own, delivered late"),
        pytest.param(["Ready"], {"phase": "Failed"}, True, id="another's"),
        pytest.param(["Ready"], None, True, id="taken away"),
        pytest.param(["Ready"], {"phase": 3}, True, id="unreadable"),
    ],
)
def test_is_foreign(known: list[str], delivered: dict[str, Any] | None, expected: bool) -> None:
    memory = PoolMemory()
    memory.statuses.extend(phase(text) for text in known)
    assert memory.is_foreign(delivered) is expected


@pytest.mark.parametrize(
    ("gathered", "expected"),
    [
        pytest.param("9", ("Written", "10"), id="gathered before the write"),
        pytest.param("11", ("Gathered", "11"), id="gathered after it"),
    ],
)
async def test_a_status_gathered_before_the_last_write_is_old(
    gathered: str, expected: tuple[str, str]
) -> None:
    platform = FakePlatform(pool_manifest("pool"))
    observed = await platform.gather(platform.key)
    assert observed is not None
    metadata = {**observed.body["metadata"], "resourceVersion": gathered}
    body = {**observed.body, "metadata": metadata, "status": {"phase": "Gathered"}}
    memory = PoolMemory(stored=phase("Written"), resource_version="10")
    memory.saw(replace(observed, body=body))
    assert (memory.stored.phase, memory.resource_version) == expected


def test_few_statuses_are_remembered() -> None:
    memory = PoolMemory()
    memory.statuses.extend(phase(str(number)) for number in range(100))
    assert len(memory.statuses) == MAX_STATUSES
