"""Priors: footprint and residency of a session, and their blend with what was seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_api.planning import SloSpec
from rolloutpool_api.workloads import ClassSlo, Priors, TokenPrior, WorkloadSpec
from rolloutpool_router.core.demand import SessionCost, mean_tokens, prior_cost, queue_share
from rolloutpool_router.core.estimates import PRIOR_WEIGHT, FinishedWindow, blend, blend_cost

SLO = SloSpec(ttft_milliseconds=1000, itl_milliseconds=10)


def exactly(tokens: int) -> TokenPrior:
    return TokenPrior(p50=tokens, p95=tokens)


def workload(*, turns: int, gap: float = 0.0, slo: ClassSlo | None = None) -> WorkloadSpec:
    priors = Priors(
        prompt_tokens=exactly(160),
        output_tokens=exactly(100),
        turn_tokens=60,
        turns=turns,
        tool_gap_seconds=gap,
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


def test_the_mean_of_a_skewed_prior_is_above_its_median() -> None:
    assert mean_tokens(exactly(500)) == 500
    assert mean_tokens(TokenPrior(p50=500, p95=2000)) == pytest.approx(713, abs=1)


def test_the_queue_is_divided_by_capacity() -> None:
    assert queue_share(30, 100, 300) == pytest.approx(10)
    assert queue_share(30, 0, 0) == 0


def test_a_blend_fades_from_the_prior_to_the_observed() -> None:
    assert blend(10, 0, 0) == 10
    assert blend(10, 20, round(PRIOR_WEIGHT)) == pytest.approx(15)
    assert blend(10, 20, 100_000) == pytest.approx(20, abs=0.01)
    assert blend_cost(SessionCost(1, 2), SessionCost(3, 4), 8) == SessionCost(2, 3)


@given(prior=st.floats(0, 1e6), observed=st.floats(0, 1e6), observations=st.integers(0, 10_000))
def test_a_blend_lies_between(prior: float, observed: float, observations: int) -> None:
    low, high = sorted((prior, observed))

    assert low * (1 - 1e-9) <= blend(prior, observed, observations) <= high * (1 + 1e-9)


def test_finished_sessions_count_for_the_window_only() -> None:
    window = FinishedWindow()
    window.add(now=0, cost=SessionCost(10, 1))
    window.add(now=50, cost=SessionCost(20, 3))
    window.add(now=60, cost=SessionCost(30, 5))

    assert window.observed(now=99, window_seconds=100).observations == 3
    later = window.observed(now=101, window_seconds=100)
    assert (later.cost, later.observations) == (SessionCost(25, 4), 2)
    assert window.observed(now=1000, window_seconds=100).observations == 0
