from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_api.planning import PlanningMode, Role
from rolloutpool_planner.candidates import breach, candidates, capacity, demanded_rate, model_of, pace_of
from rolloutpool_planner.inputs import Demand, EngineLimits, Parallelism, PlannerInputs, WorkloadClass
from rolloutpool_planner.mix import mix_of
from rolloutpool_planner.performance import DecodeModel, PrefillModel, RoleModel, batch_sizes
from rolloutpool_planner.testing import AGENTIC, RLHF, RLVR, sample_inputs, with_slo
from rolloutpool_sim.profile import decode_step_seconds, load_builtin

ROLES = tuple(Role)


def model(role: Role, inputs: PlannerInputs, tensor_parallel: int = 1) -> RoleModel:
    assert inputs.profile is not None
    engine = inputs.profile.at(tensor_parallel)
    mix = mix_of(inputs)
    return model_of(role, engine, mix, inputs.limits, pace_of(mix, inputs.limits, inputs.profile.parallelism))


def alone(c: WorkloadClass, **changes: object) -> PlannerInputs:
    return sample_inputs(classes=(replace(c, share=1.0),), **changes)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("c", [pytest.param(c, id=c.name) for c in (RLVR, RLHF, AGENTIC)])
def test_latency_and_kv_never_fall_with_load(role: Role, c: WorkloadClass) -> None:
    replica = model(role, alone(c))
    states = [replica.state(replica.highest_load() * part / 20) for part in range(1, 21)]

    for before, after in pairwise(states):
        assert after.kv_tokens >= before.kv_tokens
        assert (after.itl_p95 or 0) >= (before.itl_p95 or 0)
        assert all(a >= b for a, b in zip(after.ttft_p95, before.ttft_p95, strict=True))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("ttft", "itl"),
    [
        pytest.param(None, None, id="no SLO"),
        pytest.param(1.0, None, id="TTFT"),
        pytest.param(None, 0.03, id="ITL"),
        pytest.param(0.7, 0.02, id="both"),
    ],
)
def test_capacity_is_the_last_load_within_all_limits(
    role: Role, ttft: float | None, itl: float | None
) -> None:
    inputs = sample_inputs(classes=with_slo(RLVR, RLHF, AGENTIC, ttft=ttft, itl=itl))
    replica = model(role, inputs, tensor_parallel=2)
    load, limit = capacity(replica)

    assert load > 0
    assert breach(replica, replica.state(load)) is None
    if load < replica.highest_load():
        beyond = breach(replica, replica.state(load * 1.001))
        assert beyond is not None
        assert beyond.text == limit


def test_decode_rate_follows_from_the_step_time() -> None:
    replica = model(Role.DECODE, alone(RLHF))
    assert isinstance(replica, DecodeModel)
    context = round(10 * replica.mix.decode_context)
    step = decode_step_seconds(replica.engine, batch=10, context_tokens=context)

    assert replica.rate(10) == pytest.approx(10 / step / replica.mix.output_per_sample)


def test_prefilling_costs_an_aggregated_replica_throughput_and_itl() -> None:
    inputs = alone(AGENTIC)
    aggregated, decode = model(Role.AGGREGATED, inputs), model(Role.DECODE, inputs)
    load = aggregated.highest_load() / 2

    assert aggregated.highest_load() < decode.highest_load()
    assert aggregated.state(load).itl_mean > decode.state(load).itl_mean


def test_a_prefill_engine_recomputes_histories_that_do_not_fit() -> None:
    inputs = alone(AGENTIC)
    roomy = model(Role.PREFILL, inputs)
    assert isinstance(roomy, PrefillModel)
    tight = replace(roomy, engine=roomy.engine.model_copy(update={"kv_capacity_tokens": 30_000}))

    assert capacity(tight)[0] < capacity(roomy)[0] / 2


def test_kv_limits_sessions_that_idle_long() -> None:
    patient = alone(replace(AGENTIC, tool_gap_seconds=600.0))
    load, limit = capacity(model(Role.DECODE, patient))

    assert "KV capacity" in limit
    assert load < capacity(model(Role.DECODE, alone(AGENTIC)))[0] / 5


def test_samples_of_one_prompt_share_its_prefill() -> None:
    grouped = replace(RLHF, samples_per_prompt=8)

    assert (
        capacity(model(Role.PREFILL, alone(grouped)))[0] > 4 * capacity(model(Role.PREFILL, alone(RLHF)))[0]
    )


@given(
    slo=st.floats(0.012, 0.2),
    looser=st.floats(1.0, 3.0),
    role=st.sampled_from([Role.AGGREGATED, Role.DECODE]),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
)
@settings(max_examples=25, deadline=None)
def test_a_looser_slo_never_costs_capacity(
    slo: float, looser: float, role: Role, tensor_parallel: int
) -> None:
    tight = sample_inputs(classes=with_slo(RLVR, RLHF, AGENTIC, itl=slo))
    loose = sample_inputs(classes=with_slo(RLVR, RLHF, AGENTIC, itl=slo * looser))

    ours = capacity(model(role, tight, tensor_parallel))[0]
    assert capacity(model(role, loose, tensor_parallel))[0] >= ours * (1 - 1e-9)


def test_batch_sizes_rise_to_the_limit() -> None:
    sizes = list(batch_sizes(256))

    assert sizes[:4] == [1, 2, 3, 4]
    assert sizes[-1] == 256
    assert all(b > a and b <= max(a + 1, a * 1.1) for a, b in pairwise(sizes))


def test_candidates_cover_roles_and_parallelisms_in_a_fixed_order() -> None:
    inputs = sample_inputs(allowed_parallelism=(Parallelism(2), Parallelism(1)))
    assert inputs.profile is not None

    labels = [c.label for c in candidates(inputs, inputs.profile).usable]
    assert labels == [f"{role} TP{tp}" for role in ("aggregated", "prefill", "decode") for tp in (1, 2)]


@pytest.mark.parametrize(
    ("changes", "what", "reason"),
    [
        pytest.param(
            {"limits": EngineLimits(max_model_len=1_000_000)},
            "kv",
            "holds 434000 tokens, less than the model length of 1000000",
            id="model length",
        ),
        pytest.param(
            {"classes": (replace(RLVR, share=1.0, prompt_tokens_p95=500_000),)},
            "kv",
            "holds 434000 tokens, a long rlvr session has 511000",
            id="long sessions",
        ),
        pytest.param(
            {"classes": with_slo(RLVR, RLHF, AGENTIC, itl=0.004)},
            "itl",
            "ITL p95 SLO 4 ms of agentic is out of reach: idle it takes 7.",
            id="ITL",
        ),
        pytest.param(
            {"classes": with_slo(RLVR, RLHF, AGENTIC, ttft=0.03)},
            "ttft",
            "TTFT p95 SLO 0.03 s of agentic is out of reach: idle it takes 0.",
            id="TTFT",
        ),
    ],
)
def test_rejected_replicas_say_why(changes: dict[str, object], what: str, reason: str) -> None:
    inputs = sample_inputs(mode=PlanningMode.AGGREGATED, allowed_parallelism=(Parallelism(1),), **changes)
    assert inputs.profile is not None

    (rejected,) = candidates(inputs, inputs.profile).rejected
    assert rejected.what == what
    assert reason in rejected.reason


def test_requests_become_samples() -> None:
    inputs = sample_inputs(demand=Demand(requests_per_second=9.6))
    assert inputs.profile is not None

    assert demanded_rate(inputs, candidates(inputs, inputs.profile)) == pytest.approx(9.6 / 4.8)


def test_open_sessions_become_samples_by_littles_law() -> None:
    inputs = sample_inputs(demand=Demand(concurrent_sessions=100))
    assert inputs.profile is not None
    found = candidates(inputs, inputs.profile)
    home = max(found.of(Role.AGGREGATED), key=lambda c: c.capacity / c.gpus)
    state = home.model.state(home.capacity)

    demand = demanded_rate(inputs, found)
    assert demand is not None
    residency = found.mix.residency_seconds(ttft=state.ttft_mean, itl=state.itl_mean)
    assert demand * residency == pytest.approx(100)


def test_larger_engines_serve_more_of_every_role() -> None:
    inputs = sample_inputs(profile=load_builtin("emulated-32b-h100"))
    assert inputs.profile is not None
    found = candidates(inputs, inputs.profile)

    for role in Role:
        ordered = [c.capacity for c in found.of(role) if c.parallelism.pipeline_parallel == 1]
        assert ordered == sorted(ordered)
