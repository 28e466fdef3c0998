"""What the load sends: drawn from the priors, in the target mixture, the same for the same seed."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_api.workloads import Priors, TokenPrior, WorkloadSpec
from rolloutpool_cli.load.scenario import (
    Sample,
    Scenario,
    draw_around,
    draw_tokens,
    draw_turns,
    furthest_behind,
    words,
)

CLASSES = (
    WorkloadSpec(name="rlvr", share=0.5, priors=Priors(samples_per_prompt=4)),
    WorkloadSpec(name="rlhf", share=0.3),
    WorkloadSpec(name="agentic", share=0.2, priors=Priors(turns=6, tool_gap_seconds=0.5)),
)


def scenario(seed: int = 0, *, max_model_len: int | None = None) -> Scenario:
    return Scenario(CLASSES, max_model_len=max_model_len, run="run", rng=random.Random(seed))


def draw(count: int, seed: int = 0) -> list[Sample]:
    """Samples of a trainer of which none finishes."""
    outstanding: Counter[str] = Counter()
    source = scenario(seed)
    samples = []
    for _ in range(count):
        samples.append(source.next_sample(outstanding))
        outstanding[samples[-1].class_name] += 1
    return samples


def test_draws_have_the_priors_median_and_95th_percentile() -> None:
    rng = random.Random(1)
    drawn = sorted(draw_tokens(TokenPrior(p50=200, p95=1000), rng) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(200, rel=0.05)
    assert drawn[19_000] == pytest.approx(1000, rel=0.05)
    assert drawn[0] >= 1
    assert drawn[-1] <= 4000


def test_draws_around_a_mean_have_it() -> None:
    rng = random.Random(1)
    assert statistics.mean(draw_around(8, rng) for _ in range(20_000)) == pytest.approx(8, rel=0.05)
    assert draw_around(0, rng) == 0


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param({}, "rlvr", id="nothing-yet-the-largest-share"),
        pytest.param({"rlvr": 1}, "rlhf", id="then-the-next"),
        pytest.param({"rlvr": 1, "rlhf": 1}, "agentic", id="then-the-smallest"),
        pytest.param({"rlvr": 5, "rlhf": 3, "agentic": 2}, "rlvr", id="at-the-target-the-largest-share"),
        pytest.param({"rlvr": 9, "rlhf": 3, "agentic": 2}, "rlhf", id="one-far-ahead"),
        pytest.param({"rlvr": 5, "rlhf": 3, "agentic": 0, "gone": 50}, "agentic", id="others-do-not-count"),
    ],
)
def test_the_class_furthest_behind_is_next(counts: dict[str, int], expected: str) -> None:
    shares = {workload.name: workload.share for workload in CLASSES}
    assert furthest_behind(shares, counts) == expected


@given(window=st.integers(1, 200), seed=st.integers(0, 1000))
def test_a_window_is_in_the_target_mixture(window: int, seed: int) -> None:
    counts = Counter(sample.class_name for sample in draw(window, seed))
    for workload in CLASSES:
        assert abs(counts[workload.name] - workload.share * window) < 1.5


def test_samples_of_a_group_share_their_prompt_and_groups_do_not() -> None:
    rlvr = [sample for sample in draw(60) if sample.class_name == "rlvr"]
    prompts = [sample.prompt for sample in rlvr]
    assert [prompts.count(prompt) for prompt in dict.fromkeys(prompts)][:-1] == [4] * (len(set(prompts)) - 1)
    for prompt in set(prompts):
        lengths = {sample.turns[0].input_tokens for sample in rlvr if sample.prompt == prompt}
        assert len(lengths) == 1


def test_a_seed_gives_the_same_samples_and_session_ids_are_unique() -> None:
    assert draw(50, seed=3) == draw(50, seed=3)
    assert draw(50, seed=3) != draw(50, seed=4)
    assert len({sample.session_id for sample in draw(50)}) == 50


def test_single_turn_classes_take_one_turn_and_no_gap() -> None:
    turns = draw_turns(Priors(turns=1), prompt_tokens=100, max_model_len=None, rng=random.Random(0))
    assert len(turns) == 1
    assert turns[0].input_tokens == 100
    assert turns[0].gap_seconds == 0


@given(seed=st.integers(0, 10_000), limit=st.integers(16, 5000), prompt=st.integers(1, 10_000))
def test_a_session_never_outgrows_the_model(seed: int, limit: int, prompt: int) -> None:
    priors = Priors(turns=12, turn_tokens=300, tool_gap_seconds=1)
    turns = draw_turns(priors, prompt_tokens=prompt, max_model_len=limit, rng=random.Random(seed))
    assert turns
    assert all(turn.input_tokens >= 1 and turn.output_tokens >= 1 for turn in turns)
    assert sum(turn.input_tokens + turn.output_tokens for turn in turns) <= limit


def test_words_are_about_a_token_each() -> None:
    text = words(300, random.Random(0))
    assert len(text.split()) == 300
    assert all(len(word) <= 4 for word in text.split())
    assert text == words(300, random.Random(0))
