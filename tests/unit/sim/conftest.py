"""Engines and requests for the tests of the engine model."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rolloutpool_sim.engine import Engine, EngineConfig, EngineRequest, FinishedRequest, StepResult
from rolloutpool_sim.profile import load_builtin

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., EngineRequest]
Drain = Callable[..., tuple[list[StepResult], dict[str, FinishedRequest]]]


def _word(seed: int, position: int) -> int:
    return (seed * 7919 + position * 104729) % 30011


@pytest.fixture
def make_engine() -> MakeEngine:
    """Engine of 8B on one H100 with a cache of `usable` blocks of 16 tokens (and the null block)."""

    def make(usable: int = 64, **limits: Any) -> Engine:
        size = limits.get("block_size", 16)
        fields = {"num_blocks": usable + 1, "max_model_len": usable * size, **limits}
        return Engine(EngineConfig(**fields), load_builtin("emulated-8b-h100").at(1))

    return make


@pytest.fixture
def make_request() -> MakeRequest:
    """Request whose prompt and output are streams of the given seeds."""

    def make(
        request_id: str, prompt: int = 32, *, seed: int = 1, out: int = 4, **fields: Any
    ) -> EngineRequest:
        return EngineRequest(
            request_id=request_id,
            prompt=[_word(seed, position) for position in range(prompt)],
            max_tokens=out,
            next_token=partial(_word, 1000 + seed),
            **fields,
        )

    return make


@pytest.fixture
def drain() -> Drain:
    """Step an engine until nothing is left to do; return its steps and finished requests."""

    def run(
        engine: Engine, now: float = 0.0, limit: int = 20000
    ) -> tuple[list[StepResult], dict[str, FinishedRequest]]:
        steps: list[StepResult] = []
        finished: dict[str, FinishedRequest] = {}
        while engine.running or engine.waiting or len(engine.leases):
            assert len(steps) < 20000, "the engine does not finish"
            step = engine.step(now)
            steps.append(step)
            finished |= {request.request_id: request for request in step.finished}
            for load in step.loads:
                engine.finish_load(load.request_id, ok=True, now=now + load.seconds)
            now = max([step.ends_at, *(now + load.seconds for load in step.loads)])
            if not step.scheduled and not step.loads:
                event = engine.next_event()
                assert event is not None, "the engine is stuck"
                now = max(now, event)
        return steps, finished

    return run
