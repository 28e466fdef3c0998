"""What the engine does with requests.

Batching, prefix hits, chunks, preemption, ends, and how long it takes.
"""

from collections.abc import Callable
from typing import Any

import pytest

from rolloutpool_sim.engine import Engine, EngineConfig, EngineRequest, FinishedRequest, StepResult
from rolloutpool_sim.profile import attention_pairs, step_seconds

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., EngineRequest]
Drain = Callable[..., tuple[list[StepResult], dict[str, FinishedRequest]]]


def test_one_request_prefills_once_and_decodes_a_token_a_step(
    make_engine: MakeEngine, make_request: MakeRequest, drain: Drain
) -> None:
    engine = make_engine()
    engine.add(make_request("a", 40, out=3), 5.0)
    steps, finished = drain(engine, now=7.0)
    assert [step.scheduled for step in steps] == [{"a": 40}, {"a": 1}, {"a": 1}]
    assert [step.prefill_tokens for step in steps] == [40, 0, 0]
    assert [token.position for step in steps for token in step.tokens] == [0, 1, 2]
    end = finished["a"]
    assert (end.reason, end.output_tokens, end.prompt_tokens, end.cached_tokens) == ("length", 3, 40, 0)
    pairs = attention_pairs(new_tokens=40, context_tokens=0)
    prefill = step_seconds(engine.profile, prefill_tokens=40, prefill_pairs=pairs)
    assert steps[0].seconds == pytest.approx(prefill)
    assert steps[1].seconds == pytest.approx(
        step_seconds(engine.profile, decode_batch=1, decode_context_tokens=41)
    )
    assert end.queue_seconds == pytest.approx(2.0)
    assert end.prefill_seconds == pytest.approx(prefill)
    assert steps[0].tokens[0].latency == pytest.approx(2.0 + prefill)
    assert end.decode_seconds == pytest.approx(steps[1].seconds + steps[2].seconds)
    assert end.finished_at == steps[-1].ends_at
    assert engine.pool.used_blocks == 0


@pytest.mark.parametrize(
    ("prompt", "again", "hit"),
    [
        pytest.param(48, 48, 32, id="whole prompt cached: the last token is recomputed, so its block too"),
        pytest.param(50, 50, 48, id="the partial last block is never cached"),
        pytest.param(48, 80, 48, id="a longer prompt takes all full blocks"),
        pytest.param(48, 20, 16, id="a shorter one those that it has"),
        pytest.param(15, 15, 0, id="less than a block"),
    ],
)
def test_prefix_hits_count_full_blocks(
    prompt: int, again: int, hit: int, make_engine: MakeEngine, make_request: MakeRequest, drain: Drain
) -> None:
    engine = make_engine()
    for request_id, length in (("a", prompt), ("b", again)):
        engine.add(make_request(request_id, length, out=1), 0.0)
        _, finished = drain(engine)
    assert finished["b"].cached_tokens == hit
    assert engine.counters.prefix_cache_queries == prompt + again
    assert engine.counters.prefix_cache_hits == hit


def test_the_next_turn_hits_the_answer_of_the_last(
    make_engine: MakeEngine, make_request: MakeRequest, drain: Drain
) -> None:
    engine = make_engine()
    first = make_request("a", 40, out=30)
    engine.add(first, 0.0)
    steps, _ = drain(engine)
    answer = [token.token for step in steps for token in step.tokens]
    engine.add(make_request("b", out=1, seed=2), 0.0)
    drain(engine)
    prompt = [*first.prompt, *answer, 1, 2, 3]
    engine.add(EngineRequest(request_id="c", prompt=prompt, max_tokens=1, next_token=first.next_token), 0.0)
    _, finished = drain(engine)
    # The answer's last token was never fed back, so 69 of 70 tokens were computed: four blocks of 16.
    assert finished["c"].cached_tokens == 64


def test_prefixes_are_not_shared_across_salts_nor_without_caching(
    make_engine: MakeEngine, make_request: MakeRequest, drain: Drain
) -> None:
    engine = make_engine()
    for request_id, salt in (("a", "one"), ("b", "two"), ("c", "one")):
        engine.add(make_request(request_id, 64, cache_salt=salt), 0.0)
        _, finished = drain(engine)
        assert finished[request_id].cached_tokens == (48 if request_id == "c" else 0)
    engine = make_engine(enable_prefix_caching=False)
    for request_id in "ab":
        engine.add(make_request(request_id, 64), 0.0)
        _, finished = drain(engine)
    assert finished["b"].cached_tokens == 0
    assert engine.counters.prefix_cache_queries == 0


def test_samples_of_one_prompt_share_its_blocks_within_a_step(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine()
    for sample in "abcd":
        engine.add(make_request(sample, 64, out=8), 0.0)
    step = engine.step(0.0)
    assert step.scheduled == {"a": 64, "b": 16, "c": 16, "d": 16}
    tables = [engine.block_table(sample) for sample in "abcd"]
    assert len({table[:3] for table in tables}) == 1
    assert len({table[3] for table in tables}) == 4
    assert engine.pool.used_blocks == 3 + 4


def test_the_budget_goes_to_running_requests_first_and_prompts_are_cut_into_chunks(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(max_num_batched_tokens=50)
    engine.add(make_request("a", 30, seed=1), 0.0)
    assert engine.step(0.0).scheduled == {"a": 30}
    engine.add(make_request("b", 120, seed=2, out=1), 0.0)
    engine.add(make_request("c", 20, seed=3, out=1), 0.0)
    chunks = [engine.step(1.0) for _ in range(3)]
    assert [step.scheduled for step in chunks] == [
        {"a": 1, "b": 49},
        {"a": 1, "b": 49},
        {"a": 1, "b": 22, "c": 20},
    ]
    assert [[token.request_id for token in step.tokens] for step in chunks] == [["a"], ["a"], ["a", "b", "c"]]


def test_max_num_seqs_bounds_the_batch_and_the_rest_wait_in_order(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(max_num_seqs=2)
    for number in range(4):
        engine.add(make_request(str(number), seed=number, out=1 + number), 0.0)
    assert list(engine.step(0.0).scheduled) == ["0", "1"]
    assert (engine.running, engine.waiting) == (1, 2)
    assert list(engine.step(1.0).scheduled) == ["1", "2"]


def test_the_last_running_request_is_preempted_and_recomputed(
    make_engine: MakeEngine, make_request: MakeRequest, drain: Drain
) -> None:
    engine = make_engine(usable=6)
    for number in range(2):
        engine.add(make_request(str(number), 40, seed=number, out=30), 0.0)
    steps, finished = drain(engine)
    preempted = [step for step in steps if step.preempted]
    assert [step.preempted for step in preempted] == [("1",)]
    assert list(preempted[0].scheduled) == ["0"]
    assert finished["1"].preemptions == 1
    assert finished["0"].finished_at < finished["1"].finished_at
    # Its own blocks were still cached in part when it came back.
    assert 0 < engine.counters.recomputed_tokens < 40 + 30
    assert engine.counters.prefix_cache_queries == 80, "a preempted request is no query, as in vLLM"
    tokens = [token.token for step in steps for token in step.tokens if token.request_id == "1"]
    request = make_request("1", 40, seed=1, out=30)
    assert tokens == [request.next_token(position) for position in range(30)]


def test_a_waiting_request_needs_room_for_its_whole_prompt(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(usable=8, max_num_batched_tokens=16)
    engine.add(make_request("a", 64, seed=1, out=20), 0.0)
    engine.add(make_request("b", 80, seed=2), 0.0)
    for _ in range(6):
        engine.step(0.0)
    assert (engine.running, engine.waiting) == (1, 1)
    assert not engine.block_table("b")


@pytest.mark.parametrize(
    ("fields", "limits", "reason", "tokens"),
    [
        pytest.param({"out": 5}, {}, "length", 5, id="max_tokens"),
        pytest.param({"out": 5, "stop_after": 3}, {}, "stop", 3, id="stops by itself"),
        pytest.param({"out": 3, "stop_after": 3}, {}, "stop", 3, id="stops at the limit"),
        pytest.param({"out": 3, "stop_after": 9}, {}, "length", 3, id="limit before the stop"),
        pytest.param({"out": 99}, {"max_model_len": 40}, "length", 8, id="context is full"),
    ],
)
def test_ends(
    fields: dict[str, Any],
    limits: dict[str, int],
    reason: str,
    tokens: int,
    make_engine: MakeEngine,
    make_request: MakeRequest,
    drain: Drain,
) -> None:
    engine = make_engine(**limits)
    engine.add(make_request("a", 32, **fields), 0.0)
    _, finished = drain(engine)
    assert (finished["a"].reason, finished["a"].output_tokens) == (reason, tokens)


def test_abort_frees_the_blocks_of_running_and_waiting_requests(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(max_num_seqs=1)
    engine.add(make_request("a", seed=1), 0.0)
    engine.add(make_request("b", seed=2), 0.0)
    engine.step(0.0)
    ended = engine.abort(["a", "b", "nobody"], 1.0)
    assert [(end.request_id, end.reason, end.output_tokens) for end in ended] == [
        ("a", "abort", 1),
        ("b", "abort", 0),
    ]
    assert (engine.running, engine.waiting, engine.pool.used_blocks) == (0, 0, 0)
    step = engine.step(2.0)
    assert (step.scheduled, step.seconds, step.finished) == ({}, 0.0, ())
    assert engine.next_event() is None


def test_requests_that_cannot_be_served_are_refused_with_the_numbers(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(usable=4)
    with pytest.raises(ValueError, match=r"maximum context length is 64 tokens.*contains 64 input tokens"):
        engine.add(make_request("a", 64), 0.0)
    engine.add(make_request("a", 63), 0.0)
    with pytest.raises(ValueError, match="id a is in use"):
        engine.add(make_request("a", 3), 0.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"prompt": 0}, "empty prompt", id="no prompt"),
        pytest.param({"out": 0}, "asks for 0 output tokens", id="no output"),
        pytest.param({"stop_after": 0}, "stop after 0", id="stops before it begins"),
    ],
)
def test_malformed_requests(fields: dict[str, int], message: str, make_request: MakeRequest) -> None:
    with pytest.raises(ValueError, match=message):
        make_request("a", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"num_blocks": 4}, "max_model_len 64 does not fit the KV cache: 4 blocks", id="too small"
        ),
        pytest.param({"block_size": 0}, "block_size must be at least 1", id="no block"),
        pytest.param({"max_num_seqs": 0}, "max_num_seqs must be at least 1", id="no batch"),
        pytest.param({"max_num_batched_tokens": 0}, "max_num_batched_tokens", id="no budget"),
        pytest.param({"kv_lease_seconds": 0}, "kv_lease_seconds must be positive", id="no lease"),
    ],
)
def test_malformed_configurations(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(**{"num_blocks": 5, "max_model_len": 64, **fields})
