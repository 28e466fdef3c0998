"""Predicted against simulated: one aggregated replica under Poisson arrivals of single-turn requests."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean, quantiles

import pytest

from rolloutpool_api.planning import Role
from rolloutpool_planner.candidates import capacity, model_of, pace_of
from rolloutpool_planner.mix import Z95, ClassMix, Lognormal, mix_of
from rolloutpool_planner.testing import RLHF, sample_inputs
from rolloutpool_sim.engine import Engine, EngineConfig, EngineRequest
from rolloutpool_sim.profile import load_builtin

WORKLOAD = replace(RLHF, share=1.0, output_tokens_p50=100, output_tokens_p95=300)
REQUESTS = 1000
WARM_UP = 250


def arrivals(mix: ClassMix, rate: float, rng: random.Random) -> Iterator[tuple[float, EngineRequest]]:
    now = 0.0
    for number in range(REQUESTS):
        now += rng.expovariate(rate)
        start = number * 100_000
        prompt = range(start, start + draw(mix.prompt, rng))
        yield (
            now,
            EngineRequest(
                request_id=str(number),
                prompt=prompt,
                max_tokens=draw(mix.output, rng),
                next_token=lambda i, start=start: start + 50_000 + i,  # type: ignore[misc]
            ),
        )


def draw(tokens: Lognormal, rng: random.Random) -> int:
    sigma = math.log(tokens.p95 / tokens.p50) / Z95
    return min(max(1, round(tokens.p50 * math.exp(rng.gauss(0.0, sigma)))), 40_000)


def simulate(engine: Engine, requests: list[tuple[float, EngineRequest]]) -> tuple[list[float], list[float]]:
    """TTFT of every request and all its inter-token latencies, after the warm-up."""
    ttft: list[float] = []
    itl: list[float] = []
    now, next_one = 0.0, 0
    while next_one < len(requests) or engine.running or engine.waiting:
        while next_one < len(requests) and requests[next_one][0] <= now:
            engine.add(requests[next_one][1], requests[next_one][0])
            next_one += 1
        step = engine.step(now)
        now = step.ends_at if step.seconds > 0 else requests[next_one][0]
        for token in step.tokens:
            if int(token.request_id) >= WARM_UP:
                (itl if token.position else ttft).append(token.latency)
    return ttft, itl


@pytest.mark.parametrize("part", [pytest.param(p, id=f"{p:.0%} of capacity") for p in (0.2, 0.5)])
def test_predictions_are_close_to_the_simulation(part: float) -> None:
    inputs = sample_inputs(classes=(WORKLOAD,))
    profile = load_builtin("emulated-8b-h100").at(1)
    mix = mix_of(inputs)
    model = model_of(Role.AGGREGATED, profile, mix, inputs.limits, pace_of(mix, inputs.limits, (profile,)))
    load = capacity(model)[0] * part
    predicted = model.state(load)

    config = EngineConfig(num_blocks=profile.kv_capacity_tokens // 16, max_model_len=131_072)
    requests = list(arrivals(mix.classes[0], load, random.Random(7)))
    ttft, itl = simulate(Engine(config, profile), requests)

    assert fmean(itl) == pytest.approx(predicted.itl_mean, rel=0.25)
    assert fmean(ttft) == pytest.approx(predicted.ttft_mean, rel=0.25)
    assert quantiles(ttft, n=20)[-1] == pytest.approx(predicted.ttft_p95[0], rel=0.25)
