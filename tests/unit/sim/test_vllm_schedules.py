"""The engine against schedules recorded from vLLM's own Scheduler and KVCacheManager.

`python -m vllm_oracle record` wrote them, `make test-vllm-oracle` compares many more with vLLM itself.
"""

import pytest

from vllm_oracle.difference import difference
from vllm_oracle.driving import Run
from vllm_oracle.model import run_model
from vllm_oracle.recording import RECORDED, read_recording
from vllm_oracle.traces import Trace

CASES = [pytest.param(trace, run, id=trace.name) for trace, run in read_recording(RECORDED)]


@pytest.mark.parametrize(("trace", "vllm"), CASES)
def test_every_step_is_as_vllm_scheduled_it(trace: Trace, vllm: Run) -> None:
    report = difference(trace, vllm=vllm, model=run_model(trace))
    assert report is None, report
