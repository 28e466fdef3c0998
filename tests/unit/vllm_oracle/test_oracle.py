"""The oracle tells of a driver that does not do its part."""

from pathlib import Path

import pytest

from vllm_oracle.errors import OracleError
from vllm_oracle.oracle import open_oracle
from vllm_oracle.shapes import make


@pytest.mark.parametrize(
    ("script", "told"),
    [
        pytest.param(
            "echo no module >&2; exit 3", r"driver ended: exit code 3\nno module", id="does not start"
        ),
        pytest.param("read trace; exit 0", "driver ended: exit code 0", id="ends at a trace"),
        pytest.param(
            """read trace; echo '{"error": "boom"}'; read trace""",
            "failed on trace sessions-0: boom",
            id="fails on a trace",
        ),
    ],
)
def test_driver_that_fails_is_told_of(tmp_path: Path, script: str, told: str) -> None:
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with open_oracle(tmp_path) as oracle, pytest.raises(OracleError, match=told):
        oracle.run(make("sessions", 0))


def test_environment_whose_python_is_gone_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(OracleError, match=r"cannot be run.*remove .* and install it again"),
        open_oracle(tmp_path),
    ):
        pass
