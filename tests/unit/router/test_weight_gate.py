"""The pause gate and the token: what they let through, without a socket."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.weights import PauseGate, TokenFile


async def test_the_gates_epoch_tells_of_a_pause_that_came_and_went() -> None:
    gate = PauseGate()
    before = gate.epoch
    gate.open()
    assert gate.epoch == before
    gate.close()
    gate.open()
    assert gate.is_open
    assert gate.epoch > before


@given(closes=st.lists(st.booleans(), max_size=20))
async def test_the_gates_epoch_counts_how_often_it_closed(closes: list[bool]) -> None:
    gate, was_open, closed = PauseGate(), True, 0
    for close in closes:
        (gate.close if close else gate.open)()
        closed += close and was_open
        was_open = not close
    assert (gate.is_open, gate.epoch) == (was_open, closed)


@pytest.mark.parametrize(
    ("authorization", "admitted"),
    [
        pytest.param("Bearer t\udcff", True, id="a token that is no text"),
        pytest.param("Bearer \udcff", False, id="no text"),
        pytest.param("Bearer t\u00ff", False, id="the same letter as UTF-8"),
        pytest.param("Basic \udcff", False, id="no text in Basic"),
        pytest.param("\udcff", False, id="no text for a scheme"),
    ],
)
def test_any_bytes_may_come_for_a_token(tmp_path: Path, authorization: str, admitted: bool) -> None:
    (tmp_path / "token").write_bytes(b"t\xff\n")
    assert TokenFile(tmp_path / "token").admits(authorization) is admitted
