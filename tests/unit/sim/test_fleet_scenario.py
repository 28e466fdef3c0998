"""Scenario files: what is read, what is refused, and how samples are drawn from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_sim.fleet.dist import Distribution, draw
from rolloutpool_sim.fleet.pool import pool_spec
from rolloutpool_sim.fleet.sampling import ClassSource, Sample, history_keys
from rolloutpool_sim.fleet.scenario import Scenario, ScenarioError, load_scenario, parse_scenario
from rolloutpool_sim.fleet.workload import Workload, WorkloadChange

MIXED = """
name: two
fleet: {engines: 2, kvTokens: 20000, maxModelLen: 8192}
workloads:
  - name: rlvr
    share: 0.5
    groupSize: 4
    systemTokens: 64
    promptTokens: 100
    outputTokens: {lognormal: {median: 200, sigma: 0.7}, max: 2000}
    groupCorrelation: 0.5
  - name: agentic
    share: 0.5
    groupSize: 2
    systemTokens: 512
    promptTokens: {uniform: {low: 100, high: 300}}
    outputTokens: {lognormal: {median: 50, p95: 200}}
    turns: {lognormal: {median: 5, p95: 10}}
    turnTokens: {mixture: [{weight: 9, dist: 50}, {weight: 1, dist: {exponential: {mean: 400}}}]}
    toolGapSeconds: {exponential: {mean: 1}}
trainer: {outstanding: 60}
seconds: 120
warmupSeconds: 20
"""


LONGER = WorkloadChange(output_tokens=Distribution(constant=15))


def randoms(name: str) -> Random:
    return Random(f"7/{name}")


def workload(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "share": 1, "promptTokens": 10, "outputTokens": 10} | fields


def scenario(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "workloads": [workload()], "trainer": {"outstanding": 4}} | fields


def source(max_model_len: int = 8192, **fields: Any) -> ClassSource:
    return ClassSource(
        Workload.model_validate(workload(**fields)), max_model_len=max_model_len, randoms=randoms
    )


def samples(of: ClassSource, groups: int) -> list[Sample]:
    return [sample for _ in range(groups) for sample in of.next_group()]


def test_a_scenario_is_read_from_yaml_with_its_defaults() -> None:
    read = load_scenario(MIXED)
    assert [item.name for item in read.workloads] == ["rlvr", "agentic"]
    assert read.workloads[1].turn_tokens.mixture is not None
    assert read.fleet.engine_names() == ("engine-0", "engine-1")
    assert read.trainer.batch_samples(read.fleet.engines) == 60
    assert Scenario.model_validate(read.to_wire()) == read


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        pytest.param({"name": ""}, "name: String should have at least 1", id="empty-name"),
        pytest.param({"speed": 3}, "speed: Extra inputs are not permitted", id="unknown-field"),
        pytest.param(
            {"workloads": [workload(share=0.4)]}, "workloads: the shares sum to 0.4: change", id="shares"
        ),
        pytest.param(
            {"workloads": [workload(share=0.5), workload(share=0.5)]},
            "workloads: two classes have one name",
            id="same-name",
        ),
        pytest.param(
            {"workloads": [workload(outputTokens={"lognormal": {"median": 5}})]},
            "workloads.0.outputTokens.lognormal: give exactly one of p95 and sigma",
            id="lognormal-without-spread",
        ),
        pytest.param(
            {"workloads": [workload(outputTokens={"constant": 5, "exponential": {"mean": 3}})]},
            "workloads.0.outputTokens: give exactly one of constant, lognormal",
            id="two-distributions",
        ),
        pytest.param(
            {"workloads": [workload(turns={"uniform": {"low": 5, "high": 2}})]},
            "workloads.0.turns.uniform: high 2 is below low 5",
            id="interval-upside-down",
        ),
        pytest.param({"trainer": {}}, "trainer: mode Async needs outstanding", id="async-without-size"),
        pytest.param(
            {"trainer": {"mode": "Sync"}}, "trainer: mode Sync needs batch", id="sync-without-batch"
        ),
        pytest.param(
            {"trainer": {"outstanding": 1, "outstandingPerEngine": 1}},
            "trainer: give outstanding or outstandingPerEngine, not both",
            id="two-sizes",
        ),
        pytest.param(
            {"events": [{"at": 1}]}, "events.0: an event needs exactly one of workload", id="empty-event"
        ),
        pytest.param(
            {"events": [{"at": 1, "burst": {"class": "b", "samples": 3}}]},
            "events.0: no class 'b': name one of a",
            id="event-of-unknown-class",
        ),
        pytest.param(
            {"events": [{"at": 1, "engineLost": 16}]},
            "events.0: no engine 16: the fleet has engine-0 (or 0) to engine-15",
            id="event-of-unknown-engine",
        ),
        pytest.param(
            {"events": [{"at": 3600, "engineLost": 0}]},
            "events.0.at: 3600 is not before the end at 3600 seconds",
            id="event-after-the-end",
        ),
        pytest.param({"warmupSeconds": 3600}, "warmupSeconds: 3600 must be below", id="nothing-measured"),
        pytest.param(
            {"fleet": {"kvTokens": 1000}}, "fleet.maxModelLen: 65536 tokens do not fit", id="kv-too-small"
        ),
        pytest.param(
            {"fleet": {"profile": "none"}}, "fleet.profile: no built-in profile 'none'", id="profile"
        ),
        pytest.param(
            {"fleet": {"tensorParallel": 3}}, "fleet.profile: profile emulated-8b-h100 has no TP3", id="tp"
        ),
        pytest.param({"priors": {"b": {}}}, "priors.b: no class 'b': name one of a", id="priors"),
        pytest.param(
            {"operator": {"away": [{"from": 5, "to": 5}]}}, "operator.away.0: to 5 is not after", id="away"
        ),
        pytest.param(
            {"admission": {"policy": "Magic"}}, "admission.policy: Input should be 'MISA-T'", id="policy"
        ),
    ],
)
def test_a_wrong_scenario_is_refused_with_the_field_at_fault(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse_scenario(scenario(**fields))
    assert any(found.startswith(line) for found in str(refused.value).splitlines()), refused.value


@pytest.mark.parametrize("text", [pytest.param("- a", id="list"), pytest.param("{", id="not-yaml")])
def test_text_that_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        load_scenario(text)


@pytest.mark.parametrize(
    ("dist", "mean"),
    [
        pytest.param({"constant": 7}, 7.0, id="constant"),
        pytest.param(
            {"lognormal": {"median": 100, "sigma": 0.5}}, 100 * math.exp(0.125), id="lognormal-sigma"
        ),
        pytest.param({"exponential": {"mean": 3}}, 3.0, id="exponential"),
        pytest.param({"uniform": {"low": 2, "high": 4}}, 3.0, id="uniform"),
        pytest.param(
            {"mixture": [{"weight": 3, "dist": 0}, {"weight": 1, "dist": {"exponential": {"mean": 8}}}]},
            2.0,
            id="mixture",
        ),
    ],
)
def test_draws_have_the_mean_of_their_distribution(dist: dict[str, Any], mean: float) -> None:
    parsed, rng = Distribution.model_validate(dist), Random(1)
    drawn = [draw(parsed, rng.gauss(0, 1), rng) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(mean, rel=0.05)


def test_a_lognormal_meets_its_median_and_95th_percentile() -> None:
    parsed, rng = Distribution.model_validate({"lognormal": {"median": 700, "p95": 4000}}), Random(1)
    drawn = sorted(draw(parsed, rng.gauss(0, 1), rng) for _ in range(20_000))
    assert median(drawn) == pytest.approx(700, rel=0.05)
    assert drawn[19_000] == pytest.approx(4000, rel=0.05)


@given(score=st.floats(-40, 40), low=st.floats(0, 10), width=st.floats(0, 10))
def test_clipped_draws_stay_within_their_bounds(score: float, low: float, width: float) -> None:
    for kind in ({"lognormal": {"median": 5, "sigma": 2}}, {"exponential": {"mean": 5}}):
        parsed = Distribution.model_validate(kind | {"min": low, "max": low + width})
        assert low <= draw(parsed, score, Random(0)) <= low + width


def test_the_k_th_sample_is_the_same_whatever_was_drawn_before() -> None:
    fields: dict[str, Any] = {
        "groupSize": 3,
        "outputTokens": {"exponential": {"mean": 100}},
        "groupCorrelation": 0.5,
    }
    one, other = source(**fields), source(**fields)
    first = samples(one, 5)
    other.next_group()
    assert samples(other, 4) == first[3:]
    assert len({sample.name for sample in first}) == 15


def test_a_group_shares_its_prompt_and_classes_their_system_prompt() -> None:
    of = source(groupSize=2, systemTokens=640, promptTokens=256)
    group, other = of.next_group(), of.next_group()
    assert group[0].group is group[1].group
    assert [part.tokens for part in group[0].group.prompt] == [640, 256]
    assert group[0].group.prompt[0] == other[0].group.prompt[0]
    assert group[0].group.prompt[1] != other[0].group.prompt[1]
    assert len(group[0].group.prefix) == (640 + 256) // 64
    assert group[0].group.prefix[:10] == other[0].group.prefix[:10]
    assert not set(group[0].group.prefix[10:]) & set(other[0].group.prefix)


def test_the_keys_of_a_later_turn_begin_with_those_of_the_first() -> None:
    sample = source(promptTokens=256).next_group()[0]
    keys = history_keys(sample, 256 + 640)
    assert keys[:4] == sample.group.prefix
    assert len(keys) == len(set(keys)) == 14
    assert len(history_keys(sample, 10**7)) == 512


def test_outputs_of_one_prompt_are_as_alike_as_the_correlation_says() -> None:
    def spread_of_group_means(correlation: float) -> float:
        of = source(
            groupSize=16,
            outputTokens={"lognormal": {"median": 1000, "sigma": 0.5}},
            groupCorrelation=correlation,
        )
        logs = [
            [math.log(s.turns[0].output_tokens) for s in group]
            for group in (of.next_group() for _ in range(200))
        ]
        means = [fmean(group) for group in logs]
        return fmean([(mean - fmean(means)) ** 2 for mean in means]) / 0.25

    assert spread_of_group_means(0.0) == pytest.approx(1 / 16, abs=0.03)
    assert spread_of_group_means(0.5) == pytest.approx(0.5 + 0.5 / 16, abs=0.12)


@given(median_tokens=st.integers(1, 5000), turns=st.integers(1, 30))
def test_no_session_grows_beyond_the_longest_context(median_tokens: int, turns: int) -> None:
    of = source(
        max_model_len=2048,
        promptTokens={"lognormal": {"median": median_tokens, "sigma": 1}},
        outputTokens={"lognormal": {"median": median_tokens, "sigma": 1}},
        turns=turns,
        turnTokens=100,
    )
    for sample in samples(of, 3):
        total = sample.group.prompt_tokens + sum(t.added_tokens + t.output_tokens for t in sample.turns)
        assert total <= 2048
        assert sample.turns
        assert all(turn.output_tokens >= 1 for turn in sample.turns)
        assert sample.turns[0].added_tokens == 0


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        pytest.param(lambda of: of.change(LONGER), 1.5, id="change"),
        pytest.param(lambda of: of.grow_outputs(1.2), 1.2, id="growth"),
    ],
)
def test_a_change_holds_for_samples_drawn_later(change: Callable[[ClassSource], None], factor: float) -> None:
    of = source()
    before = of.next_group()[0].turns[0].output_tokens
    change(of)
    assert of.next_group()[0].turns[0].output_tokens == round(before * factor)


def test_priors_of_the_pool_are_those_of_the_true_distributions() -> None:
    spec = pool_spec(load_scenario(MIXED), randoms)
    rlvr, agentic = spec.workloads
    assert rlvr.priors.output_tokens.p50 == pytest.approx(200, rel=0.15)
    assert rlvr.priors.samples_per_prompt == 4
    assert rlvr.idle_seconds() == 0
    assert agentic.priors.turns == pytest.approx(5.5, abs=1)
    assert agentic.priors.tool_gap_seconds == pytest.approx(1, rel=0.15)
    assert agentic.priors.prompt_tokens.p50 == pytest.approx(712, rel=0.1)
    assert agentic.idle_seconds() == 3600


def test_priors_may_be_given_class_by_class() -> None:
    read = load_scenario(MIXED + "priors: {rlvr: {outputTokens: {p50: 9, p95: 90}}}")
    rlvr, agentic = pool_spec(read, randoms).workloads
    assert rlvr.priors.output_tokens.p50 == 9
    assert agentic.priors.turns > 1
