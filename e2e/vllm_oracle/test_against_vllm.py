"""Every decision of the engine model is vLLM's: which tokens, preemptions, evictions and blocks, each step.

The environment must be there (`python -m vllm_oracle install`, or `make test-vllm-oracle`): without it
the run ends with an error and nothing is skipped.
"""

from collections.abc import Iterator

import pytest

from vllm_install.environment import installed
from vllm_install.errors import InstallError
from vllm_oracle.difference import difference
from vllm_oracle.model import run_model
from vllm_oracle.oracle import Oracle, open_oracle
from vllm_oracle.recording import RECORDED, read_recording
from vllm_oracle.shapes import SHAPES, make

SEEDS = range(12)


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    """One driver for all tests: it starts in about ten seconds and runs a trace in a tenth of one."""
    try:
        environment = installed()
    except InstallError as error:
        pytest.exit(str(error), returncode=1)
    with open_oracle(environment) as running:
        yield running


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_model_schedules_as_vllm(oracle: Oracle, shape: str, seed: int) -> None:
    """The runs are equal; if not, the report says where they part."""
    trace = make(shape, seed)
    report = difference(trace, vllm=oracle.run(trace), model=run_model(trace))
    assert report is None, report


def test_recording_is_what_vllm_does(oracle: Oracle) -> None:
    """What the ordinary tests compare with is not out of date."""
    for trace, recorded in read_recording(RECORDED):
        report = difference(trace, vllm=oracle.run(trace), model=recorded)
        assert report is None, f"the recording is old: run python -m vllm_oracle record\n{report}"
