import math
from dataclasses import replace

import pytest

from rolloutpool_planner.inputs import WorkloadClass
from rolloutpool_planner.mix import BLOCK_TOKENS, ClassMix, Lognormal, mix_of
from rolloutpool_planner.testing import AGENTIC, RLHF, RLVR, sample_inputs

EXACT = WorkloadClass(
    name="exact",
    share=1.0,
    prompt_tokens_p50=1000,
    prompt_tokens_p95=1000,
    output_tokens_p50=100,
    output_tokens_p95=100,
    turn_tokens=50,
    turns=3,
    tool_gap_seconds=10.0,
    samples_per_prompt=4,
)
"""Constant lengths: first prompt 1000, answers of 100, 50 appended, 3 turns, 4 samples of a prompt."""


def test_lognormal_moments() -> None:
    sigma = math.log(11000 / 2500) / 1.6448536269514722

    assert Lognormal(2500, 11000).mean == pytest.approx(2500 * math.exp(sigma**2 / 2))
    assert Lognormal(2500, 11000).second_moment == pytest.approx(2500**2 * math.exp(2 * sigma**2))
    assert Lognormal(100, 100).second_moment == pytest.approx(100**2)


def test_uncached_tokens_where_the_session_lives() -> None:
    first, shared, later = ClassMix(workload=EXACT).turns(remote=False)

    assert (first.per_sample, first.uncached, first.cached) == (0.25, 1000, 0)
    assert (shared.per_sample, shared.uncached, shared.cached) == (0.75, BLOCK_TOKENS, 1000 - BLOCK_TOKENS)
    # Turns 2 and 3 append 50 tokens to 1100 and 1250 that are cached: 1175 on average.
    assert (later.per_sample, later.uncached) == (2, 50)
    assert later.cached == pytest.approx(1175)


def test_a_prefill_engine_also_lacks_what_was_generated() -> None:
    *_, later = ClassMix(workload=EXACT).turns(remote=True)

    assert later.uncached == pytest.approx(150)
    assert later.cached == pytest.approx(1075)
    assert later.transferred_p95 == 50


def test_single_turn_and_single_sample_have_one_kind_of_prefill() -> None:
    assert len(ClassMix(workload=RLHF).turns(remote=False)) == 1


def test_longest_session() -> None:
    assert ClassMix(workload=EXACT).longest_session_tokens == 1000 + 100 + 2 * 150


def test_residency_and_kv_over_time() -> None:
    mix = ClassMix(workload=EXACT)
    # 3 turns of 1 s prefill and 100 tokens of 20 ms, 2 gaps of 10 s.
    assert mix.residency_seconds(ttft=1.0, itl=0.02) == pytest.approx(3 * 3 + 20)
    # Prefill: 250 + 150 tokens for 1 s. Decode: 400 + 50 on average for 2 s. Gaps: 250 + 225 for 10 s.
    assert mix.kv_token_seconds(ttft=1.0, itl=0.02) == pytest.approx(3 * (400 + 450 * 2) + 2 * 475 * 10)


def test_decode_context_is_the_whole_history() -> None:
    assert ClassMix(workload=EXACT).decode_context == pytest.approx(1000 + 150 + 50)


def test_long_outputs_weigh_more_than_their_mean() -> None:
    spread = replace(EXACT, output_tokens_p95=400)
    same_mean = replace(EXACT, turns=1)
    spread_mean = Lognormal(100, 400).mean

    ratio = ClassMix(workload=replace(spread, turns=1)).kv_token_seconds(ttft=0.0, itl=1.0)
    constant = ClassMix(workload=same_mean).kv_token_seconds(ttft=0.0, itl=1.0)
    assert ratio > constant * spread_mean / 100


def test_mix_weighs_classes_by_share_and_ignores_their_order() -> None:
    mix = mix_of(sample_inputs())

    assert mix.requests_per_sample == pytest.approx(0.5 + 0.3 + 0.2 * 20)
    assert mix == mix_of(sample_inputs(classes=(AGENTIC, RLHF, RLVR)))
    assert mix.longest_session().workload.name == "agentic"
