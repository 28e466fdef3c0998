"""Invariants of the engine under random loads, and thrashing when the cache is too small."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_sim.engine import Engine, EngineConfig, EngineRequest, FinishedRequest, StepResult, Transfer
from rolloutpool_sim.profile import load_builtin

SPEED = load_builtin("emulated-8b-h100").at(1)
USABLE, BLOCK = 20, 4


def _word(seed: int, position: int) -> int:
    return (seed * 7919 + position * 104729) % 30011


@st.composite
def _load(draw: st.DrawFn) -> list[tuple[int, EngineRequest]]:
    """Requests with their steps of arrival; prompts share beginnings, and some take part in KV transfer."""
    requests: list[tuple[int, EngineRequest]] = []
    for number in range(draw(st.integers(1, 14))):
        shared, own = draw(st.integers(0, 24)), draw(st.integers(1, 30))
        prompt = [_word(1, position) for position in range(shared)] + [
            _word(number + 2, p) for p in range(own)
        ]
        request = EngineRequest(
            request_id=str(number),
            prompt=prompt,
            max_tokens=draw(st.integers(1, 25)),
            next_token=partial(_word, 100 + number % 3),
            stop_after=draw(st.none() | st.integers(1, 25)),
            transfer=draw(
                st.sampled_from([Transfer.NONE] * 4 + [Transfer.REMOTE_DECODE, Transfer.REMOTE_PREFILL])
            ),
        )
        requests.append((draw(st.integers(0, 40)), request))
    return sorted(requests, key=lambda arrival: arrival[0])


def _check_blocks(engine: Engine, live: set[str], *, orphans: set[str]) -> None:
    """Free and used blocks are all there are, counts are right, and no two requests write to one block."""
    pool = engine.pool
    assert pool.free_blocks + pool.used_blocks == USABLE
    tables = {request_id: engine.block_table(request_id) for request_id in live}
    holders = [block for table in tables.values() for block in table]
    assert 0 not in holders
    for table in tables.values():
        assert len(set(table)) == len(table)
        assert all(not pool.is_free(block) for block in table)
    for block in set(holders):
        assert pool.references(block) >= holders.count(block)
        if holders.count(block) > 1:
            assert pool.hash_of(block) is not None, "a block that is still written to is shared"
    if not len(engine.leases) and not orphans:  # an aborted load keeps its blocks a while
        assert pool.used_blocks == len(set(holders))


def _run(
    engine: Engine, load: list[tuple[int, EngineRequest]], aborts: frozenset[str] = frozenset()
) -> tuple[list[StepResult], dict[str, FinishedRequest]]:
    """Run a load to its end, checking invariants after every step; KV takes two steps to come."""
    left, live, steps = list(load), set[str](), list[StepResult]()
    finished: dict[str, FinishedRequest] = {}
    loading: list[tuple[int, str]] = []
    now, number = 0.0, 0
    while left or live or loading:
        assert number < 5000, "the engine does not finish"
        while left and left[0][0] <= number:
            _, request = left.pop(0)
            engine.add(request, now)
            live.add(request.request_id)
        for due, request_id in [one for one in loading if one[0] <= number]:
            loading.remove((due, request_id))
            engine.finish_load(request_id, ok=int(request_id) % 3 > 0, now=now)
        if number == 10:
            ended = engine.abort(aborts & live, now)
            finished |= {end.request_id: end for end in ended}
            live -= finished.keys()
        step = engine.step(now)
        steps.append(step)
        loading += [(number + 2, one.request_id) for one in step.loads]
        finished |= {end.request_id: end for end in step.finished}
        live -= finished.keys()
        _check_step(engine, step)
        _check_blocks(engine, live, orphans={one[1] for one in loading} - live)
        now = max(step.ends_at, now + 0.01)
        number += 1
        if not step.scheduled and not loading and (event := engine.next_event()) is not None:
            now = max(now, event)
    return steps, finished


def _check_step(engine: Engine, step: StepResult) -> None:
    assert sum(step.scheduled.values()) <= engine.config.max_num_batched_tokens
    assert all(count >= 1 for count in step.scheduled.values())
    assert len(step.scheduled) <= engine.config.max_num_seqs
    assert (step.seconds > 0) == bool(step.scheduled)
    assert not set(step.preempted) & step.scheduled.keys()
    assert {token.request_id for token in step.tokens} <= step.scheduled.keys()
    assert all(token.latency >= 0 for token in step.tokens)


def _engine(budget: int, seqs: int) -> Engine:
    config = EngineConfig(
        num_blocks=USABLE + 1,
        block_size=BLOCK,
        max_model_len=USABLE * BLOCK,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        kv_load_failure="recompute",
    )
    return Engine(config, SPEED)


@settings(max_examples=150)
@given(
    load=_load(),
    budget=st.sampled_from([3, 16, 200]),
    seqs=st.integers(1, 8),
    aborted=st.sets(st.integers(0, 13)),
)
def test_every_request_ends_and_blocks_are_conserved(
    load: list[tuple[int, EngineRequest]], budget: int, seqs: int, aborted: set[int]
) -> None:
    engine = _engine(budget, seqs)
    steps, finished = _run(engine, load, frozenset(map(str, aborted)))
    assert finished.keys() == {request.request_id for _, request in load}
    tokens: dict[str, list[int]] = {}
    for step in steps:
        for token in step.tokens:
            assert token.position == len(tokens.setdefault(token.request_id, []))
            tokens[token.request_id].append(token.token)
    for _, request in load:
        end = finished[request.request_id]
        output = tokens.get(request.request_id, [])
        assert output == [request.next_token(position) for position in range(len(output))]
        assert end.output_tokens == len(output)
        assert 0 <= end.cached_tokens <= end.prompt_tokens - 1
        assert end.cached_tokens + end.remote_tokens <= end.prompt_tokens
        assert end.cached_tokens % BLOCK == 0
        if end.reason != "abort":
            assert len(output) == min(
                request.max_tokens, request.stop_after or 99, engine.config.max_model_len - end.prompt_tokens
            )
    while (event := engine.next_event()) is not None:
        engine.step(event)
    assert engine.pool.used_blocks == 0
    assert engine.counters.generation_tokens == sum(map(len, tokens.values()))


@settings(max_examples=30)
@given(load=_load(), budget=st.sampled_from([16, 200]))
def test_the_same_load_gives_the_same_run(load: list[tuple[int, EngineRequest]], budget: int) -> None:
    first, second = _engine(budget, 6), _engine(budget, 6)
    assert _run(first, load) == _run(second, load)
    assert first.counters == second.counters
    assert first.pool.eviction_order() == second.pool.eviction_order()


@pytest.mark.parametrize("prompts", [pytest.param(1, id="one prompt"), pytest.param(24, id="own prompts")])
def test_an_overfull_cache_thrashes(
    prompts: int, make_request: Callable[..., EngineRequest], make_engine: Callable[..., Engine]
) -> None:
    """With less KV: more preemptions and recomputation, fewer hits, less throughput, for the same output."""
    outcomes = []
    for usable in (600, 150, 75):
        engine = make_engine(usable=usable, max_model_len=1000)
        now, prompt = 0.0, 64
        for turn in range(4):
            for session in range(24):
                seed = 1 + session % prompts
                engine.add(make_request(f"{session}.{turn}", prompt, seed=seed, out=160), now)
            while engine.running or engine.waiting:
                now = engine.step(now).ends_at
            prompt += 40
        hits = engine.counters.prefix_cache_hits / engine.counters.prefix_cache_queries
        outcomes.append((engine.counters, hits, engine.counters.generation_tokens / now))
    roomy, tight, overfull = outcomes
    assert roomy[0].preemptions == 0
    assert 0 < tight[0].preemptions < overfull[0].preemptions
    assert 0 == roomy[0].recomputed_tokens < tight[0].recomputed_tokens < overfull[0].recomputed_tokens
    assert roomy[2] > tight[2] > overfull[2]
    assert roomy[1] >= tight[1] >= overfull[1]
    assert len({counters.generation_tokens for counters, _, _ in outcomes}) == 1
