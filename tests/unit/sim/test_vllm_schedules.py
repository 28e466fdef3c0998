"""The engine against schedules recorded from vLLM 0.32.0.

The recording drove vLLM's own Scheduler and KVCacheManager without a model. For each load the file has, per
step, the tokens scheduled for each request in batch order, the requests preempted, the number of cached
blocks evicted and of free blocks left; then the prompt tokens that each request found cached.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rolloutpool_sim.engine import Engine, EngineConfig, EngineRequest, FinishedRequest
from rolloutpool_sim.profile import load_builtin

RECORDED = json.loads(Path(__file__).with_name("vllm_0_32_schedules.json").read_text())


def _token(seed: int, position: int) -> int:
    """Token streams of the recording."""
    mixed = (seed * 0x9E3779B1 + position * 0x85EBCA77 + 0x1234567) & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D & 0xFFFFFFFF
    return 3 + (mixed ^ (mixed >> 12)) % 30000


def _request(request_id: str, prompt: list[list[int]], out: int, seed: int) -> EngineRequest:
    tokens = [_token(stream, position) for stream, length in prompt for position in range(length)]
    return EngineRequest(
        request_id=request_id, prompt=tokens, max_tokens=out, next_token=partial(_token, seed)
    )


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in RECORDED["cases"]])
def test_every_step_is_as_vllm_scheduled_it(case: dict[str, Any]) -> None:
    config = case["config"]
    capacity = (config["blocks"] - 1) * config["block_size"]
    limits = {key: value for key, value in config.items() if key != "blocks"}
    engine = Engine(
        EngineConfig(num_blocks=config["blocks"], max_model_len=capacity, **limits),
        load_builtin("emulated-8b-h100").at(1),
    )
    left = sorted(case["requests"], key=lambda request: request[1])
    finished: dict[str, FinishedRequest] = {}
    for number, scheduled, preempted, evicted, free in case["steps"]:
        while left and left[0][1] <= number:
            request_id, _, prompt, out, seed = left.pop(0)
            engine.add(_request(request_id, prompt, out, seed), float(number))
        before = engine.pool.evicted
        step = engine.step(float(number))
        finished |= {request.request_id: request for request in step.finished}
        assert list(step.scheduled.items()) == list(scheduled.items()), f"step {number}"
        assert list(step.preempted) == preempted, f"step {number}"
        assert (engine.pool.evicted - before, engine.pool.free_blocks) == (evicted, free), f"step {number}"
    assert {request_id: end.cached_tokens for request_id, end in finished.items()} == case["cached"]
    assert {i: end.preemptions for i, end in finished.items() if end.preemptions} == case["preempted"]
    counters = engine.counters
    assert case["totals"] == {
        "prefix_queries": counters.prefix_cache_queries,
        "prefix_hits": counters.prefix_cache_hits,
        "preemptions": counters.preemptions,
        "blocks_stored": engine.pool.stored,
        "blocks_evicted": engine.pool.evicted,
    }
