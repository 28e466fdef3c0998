"""Priors: footprint and residency of a session, before any was seen."""

from __future__ import annotations

import pytest

from rolloutpool_api.planning import SloSpec
from rolloutpool_api.workloads import ClassSlo, Priors, TokenPrior, WorkloadSpec
from rolloutpool_router.core.demand import mean_tokens, prior_cost, prior_life, prior_peak, queue_share

SLO = SloSpec(ttft_milliseconds=1000, itl_milliseconds=10)


def exactly(tokens: int) -> TokenPrior:
    return TokenPrior(p50=tokens, p95=tokens)


def workload(*, turns: int, gap: float = 0.0, slo: ClassSlo | None = None, samples: int = 1) -> WorkloadSpec:
    priors = Priors(
        prompt_tokens=exactly(160),
        output_tokens=exactly(100),
        turn_tokens=60,
        turns=turns,
        tool_gap_seconds=gap,
        samples_per_prompt=samples,
    )
    return WorkloadSpec(name="w", share=1, priors=priors, slo=slo)


@pytest.mark.parametrize(
    ("spec", "footprint", "residency"),
    [
        # 1 s + 100 x 10 ms; 160 growing to 260 tokens: 210 on average
        pytest.param(workload(turns=1), 14, 2.0, id="one-turn"),
        # turns start at 160 and 320, each 2 s: averages 210 and 370, so 290 tokens
        pytest.param(workload(turns=2), 19, 4.0, id="two-turns-at-once"),
        # (2 x 210 + 6 x 260 + 2 x 370) / 10 = 272 tokens
        pytest.param(workload(turns=2, gap=6), 17, 10.0, id="a-gap-holds-the-blocks"),
        pytest.param(
            workload(turns=1, slo=ClassSlo(itl_milliseconds=40)), 14, 5.0, id="slo-of-the-class-first"
        ),
    ],
)
def test_a_prior_costs_its_time_average(spec: WorkloadSpec, footprint: int, residency: float) -> None:
    cost = prior_cost(spec, block_size=16, slo=SLO)

    assert cost.footprint_blocks == footprint
    assert cost.residency_seconds == pytest.approx(residency)


@pytest.mark.parametrize(
    ("spec", "start", "footprint", "peak"),
    [
        # 160 tokens at first, 260 at the end
        pytest.param(workload(turns=1), 10, 14, 17, id="one-turn"),
        # 160, 260; 320, 420 at the end: 290 on average
        pytest.param(workload(turns=2), 10, 19, 27, id="two-turns"),
        # three of four samples bring no prompt of their own
        pytest.param(workload(turns=1, samples=4), 2.5, 14 - 7.5, 17, id="samples-of-one-prompt-share-it"),
        pytest.param(workload(turns=1, samples=1024), 1, 14 - 10 * 1023 / 1024, 17, id="never-less-than-one"),
    ],
)
def test_a_prior_life_counts_what_a_session_does_not_share(
    spec: WorkloadSpec, start: float, footprint: float, peak: int
) -> None:
    life = prior_life(spec, block_size=16, slo=SLO)

    assert (life.start_blocks, life.footprint_blocks) == pytest.approx((start, footprint))
    assert life.residency_seconds == prior_cost(spec, block_size=16, slo=SLO).residency_seconds
    assert prior_peak(spec, block_size=16) == peak


def test_no_prior_is_longer_than_the_model_takes() -> None:
    assert prior_cost(workload(turns=9), block_size=16, slo=SLO, max_tokens=320).footprint_blocks == 20
    assert prior_peak(workload(turns=9), block_size=16, max_tokens=320) == 20


def test_the_mean_of_a_skewed_prior_is_above_its_median() -> None:
    assert mean_tokens(exactly(500)) == 500
    assert mean_tokens(TokenPrior(p50=500, p95=2000)) == pytest.approx(713, abs=1)


def test_the_queue_is_divided_by_capacity() -> None:
    assert queue_share(30, 100, 300) == pytest.approx(10)
    assert queue_share(30, 0, 0) == 0
