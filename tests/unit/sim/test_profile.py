"""Cost models: shape, derivation of the built-in estimates, and errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_sim.profile import (
    ParallelismProfile,
    ProfileError,
    attention_pairs,
    builtin_names,
    decode_step_seconds,
    load_builtin,
    parse_profile,
    prefill_seconds,
    step_seconds,
    transfer_seconds,
)

ONE = load_builtin("emulated-8b-h100").at(1)
SMALL = """
name: tiny
origin: made up
modelPatterns: ["*tiny*"]
gpuProduct: none
parallelism:
  - tensorParallel: 1
    tokenTime:
      - {fromTokens: 0, alphaSeconds: 0.010, betaSecondsPerToken: 0.0}
      - {fromTokens: 100, alphaSeconds: 0.0, betaSecondsPerToken: 1.0e-04}
    decodeSecondsPerContextToken: 1.0e-06
    prefillSecondsPerAttentionPair: 1.0e-08
    transfer: {alphaSeconds: 0.005, betaSecondsPerToken: 1.0e-06}
    kvCapacityTokens: 1000
"""
TINY = parse_profile(SMALL).at(1)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        pytest.param(decode_step_seconds(TINY, batch=10, context_tokens=1000), 0.011, id="decode"),
        pytest.param(prefill_seconds(TINY, uncached_tokens=50), 0.010 + 1250e-8, id="small prefill is flat"),
        pytest.param(prefill_seconds(TINY, uncached_tokens=200), 0.020 + 20000e-8, id="large prefill"),
        pytest.param(
            prefill_seconds(TINY, uncached_tokens=200, cached_tokens=1000),
            0.020 + 220000e-8,
            id="cached context",
        ),
        pytest.param(
            prefill_seconds(TINY, uncached_tokens=250, step_tokens=100), 0.030 + 31250e-8, id="three chunks"
        ),
        pytest.param(
            step_seconds(
                TINY, prefill_tokens=190, prefill_pairs=100.0, decode_batch=10, decode_context_tokens=500
            ),
            0.020 + 1e-6 + 5e-4,
            id="mixed step",
        ),
        pytest.param(step_seconds(TINY), 0.0, id="nothing to do"),
        pytest.param(prefill_seconds(TINY, uncached_tokens=0), 0.0, id="all cached"),
        pytest.param(transfer_seconds(TINY, tokens=1000), 0.006, id="transfer"),
        pytest.param(transfer_seconds(TINY, tokens=0), 0.0, id="no transfer"),
    ],
)
def test_costs(actual: float, expected: float) -> None:
    assert actual == pytest.approx(expected)


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 500))
def test_chunks_add_up_to_the_attention_of_the_whole(first: int, second: int, context: int) -> None:
    whole = attention_pairs(new_tokens=first + second, context_tokens=context)
    parts = attention_pairs(new_tokens=first, context_tokens=context)
    parts += attention_pairs(new_tokens=second, context_tokens=context + first)
    assert parts == pytest.approx(whole)


@pytest.mark.parametrize(
    "engines", [pytest.param(load_builtin(n).parallelism, id=n) for n in builtin_names()]
)
@given(tokens=st.integers(0, 20000), more=st.integers(0, 5000), batch=st.integers(1, 1024))
def test_more_work_never_takes_less_time(
    engines: tuple[ParallelismProfile, ...], tokens: int, more: int, batch: int
) -> None:
    for engine in engines:
        assert prefill_seconds(engine, uncached_tokens=tokens + more) >= prefill_seconds(
            engine, uncached_tokens=tokens
        )
        small = decode_step_seconds(engine, batch=batch, context_tokens=tokens)
        assert decode_step_seconds(engine, batch=batch, context_tokens=tokens + more) >= small
        assert decode_step_seconds(engine, batch=batch + more, context_tokens=tokens) >= small


@pytest.mark.parametrize(
    ("name", "parameters", "layers", "heads"),
    [
        pytest.param("emulated-8b-h100", 8.03e9, 32, 32, id="8b"),
        pytest.param("emulated-32b-h100", 32.8e9, 64, 40, id="32b"),
    ],
)
def test_built_in_numbers_follow_the_derivation_in_their_comments(
    name: str, parameters: float, layers: int, heads: int
) -> None:
    kv = 2 * layers * 8 * 128 * 2
    all_reduce = {1: 0.0, 2: 6e-6, 4: 8e-6, 8: 11e-6}
    efficiency = {1: 1.0, 2: 0.93, 4: 0.85, 8: 0.72}
    for engine in load_builtin(name).parallelism:
        tensor, gpus = engine.tensor_parallel, engine.gpus
        fixed = 1e-3 + 2 * layers * all_reduce[tensor] + 150e-6 * (engine.pipeline_parallel - 1)
        small, large = engine.token_time
        assert small.alpha_seconds == pytest.approx(2 * parameters / (tensor * 2.68e12) + fixed, rel=1e-3)
        assert large.alpha_seconds == pytest.approx(fixed, rel=1e-3)
        compute = 2 * parameters / (4.945e14 * gpus * efficiency[tensor])
        assert large.beta_seconds_per_token == pytest.approx(compute, rel=1e-3)
        assert small.beta_seconds_per_token == pytest.approx(min(12e-6, compute / 2), rel=1e-3)
        assert engine.decode_seconds_per_context_token == pytest.approx(kv / (2.68e12 * gpus), rel=1e-3)
        attention = 4 * heads * 128 * layers / (3.956e14 * gpus * efficiency[tensor])
        assert engine.prefill_seconds_per_attention_pair == pytest.approx(attention, rel=1e-3)
        assert engine.transfer.beta_seconds_per_token == pytest.approx(kv / (40e9 * gpus), rel=1e-3)
        capacity = (gpus * (0.9 * 85.5e9 - 4e9) - 2 * parameters) / kv
        assert 0 <= capacity - engine.kv_capacity_tokens < 1000


def test_built_in_profiles_say_that_they_are_estimates_and_what_fits() -> None:
    assert builtin_names() == ("emulated-32b-h100", "emulated-8b-h100")
    for name in builtin_names():
        profile = load_builtin(name)
        assert profile.name == name
        assert "Estimate" in profile.origin
        assert "not measured" in profile.origin
        assert all(engine.fits(32768) for engine in profile.parallelism)
    large = load_builtin("emulated-32b-h100")
    assert [(e.tensor_parallel, e.pipeline_parallel) for e in large.parallelism] == [
        (2, 1),
        (4, 1),
        (8, 1),
        (1, 2),
    ]
    with pytest.raises(ProfileError, match="has no TP1 PP1; it has TP2 PP1, TP4 PP1, TP8 PP1, TP1 PP2"):
        large.at(1)


@pytest.mark.parametrize(
    ("model", "matches"),
    [
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", True, id="hub id"),
        pytest.param("/models/llama-8b", True, id="path"),
        pytest.param("Qwen/Qwen2.5-32B", False, id="another size"),
    ],
)
def test_models_are_matched_by_pattern(model: str, matches: bool) -> None:
    assert load_builtin("emulated-8b-h100").matches_model(model) is matches


def test_capacity() -> None:
    assert ONE.kv_capacity_blocks(16) == 27125
    assert (ONE.gpus, load_builtin("emulated-32b-h100").at(1, 2).gpus) == (1, 2)
    assert ONE.fits(131072)
    assert not TINY.fits(1001)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(("name: tiny", "name: tiny\nnmae: x"), "not valid at nmae", id="unknown field"),
        pytest.param(
            ("fromTokens: 0,", "fromTokens: 1,"), "needs a first segment with fromTokens: 0", id="no start"
        ),
        pytest.param(("fromTokens: 100", "fromTokens: 0"), "increasing order", id="order"),
        pytest.param(("fromTokens: 100", "fromTokens: 50"), "falls at 50 tokens", id="faster when larger"),
        pytest.param(("1.0e-06", "-1.0e-06"), "greater than or equal to 0", id="negative"),
        pytest.param(("1.0e-06", ".inf"), "finite", id="infinite"),
        pytest.param(("origin: made up", "origin: ''"), "not valid at origin", id="no origin"),
        pytest.param(("name: tiny", "name: [tiny"), "not valid YAML", id="not YAML"),
        pytest.param((SMALL, "[]"), "not valid at profile", id="not a mapping"),
    ],
)
def test_bad_profiles_are_refused_with_the_place(change: tuple[str, str], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        parse_profile(SMALL.replace(*change))


def test_a_parallelism_is_listed_once() -> None:
    entry = SMALL.split("parallelism:\n")[1]
    with pytest.raises(ProfileError, match="two entries for one"):
        parse_profile(SMALL + entry)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ProfileError, match="built in are emulated-32b-h100, emulated-8b-h100"):
        load_builtin("../secrets")


def test_profiles_survive_a_round_trip() -> None:
    profile = load_builtin("emulated-8b-h100")
    assert parse_profile(profile.model_dump_json(by_alias=True)) == profile
    assert isinstance(profile.at(2), ParallelismProfile)
