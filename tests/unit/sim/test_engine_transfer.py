"""Prefill on one engine and decode on another: leases, loads, and what becomes of them when one side goes."""

from collections.abc import Callable

import pytest

from rolloutpool_sim.engine import Engine, EngineRequest, FinishedRequest, StepResult, Transfer
from rolloutpool_sim.profile import transfer_seconds

MakeEngine = Callable[..., Engine]
MakeRequest = Callable[..., EngineRequest]
Drain = Callable[..., tuple[list[StepResult], dict[str, FinishedRequest]]]


def _prefilled(engine: Engine, request: EngineRequest) -> FinishedRequest:
    engine.add(request, 0.0)
    return engine.step(0.0).finished[0]


def test_a_prefill_only_request_keeps_its_blocks_until_they_are_read(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine()
    end = _prefilled(engine, make_request("p", 40, out=1, transfer=Transfer.REMOTE_DECODE))
    assert (end.reason, end.lease, end.computed_tokens, len(end.block_ids)) == ("length", True, 40, 3)
    assert engine.pool.used_blocks == 3
    assert engine.leases.read("p", until=2.0) == 40
    engine.step(1.0)
    assert engine.pool.used_blocks == 3, "the reader is not done"
    engine.step(2.0)
    assert engine.pool.used_blocks == 0
    assert engine.counters.expired_leases == 0


@pytest.mark.parametrize(
    ("heartbeats", "ends"),
    [
        pytest.param([], 30.0, id="no heartbeat"),
        pytest.param([5.0], 30.0, id="an early heartbeat does not shorten"),
        pytest.param([20.0], 40.0, id="a later one extends by two thirds"),
        pytest.param([20.0, 35.0], 55.0, id="and again"),
    ],
)
def test_leases_expire(
    heartbeats: list[float], ends: float, make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine()
    finished_at = _prefilled(engine, make_request("p", out=1, transfer=Transfer.REMOTE_DECODE)).finished_at
    for at in heartbeats:
        assert engine.leases.extend("p", finished_at + at)
    event = engine.next_event()
    assert event == pytest.approx(finished_at + ends)
    assert event is not None
    engine.step(event - 1e-3)
    assert engine.pool.used_blocks > 0
    engine.step(event)
    assert (engine.pool.used_blocks, engine.counters.expired_leases) == (0, 1)
    assert engine.leases.read("p", until=99.0) is None
    assert not engine.leases.extend("p", 99.0)


def test_a_lease_is_read_once(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine()
    _prefilled(engine, make_request("p", out=1, transfer=Transfer.REMOTE_DECODE))
    assert engine.leases.read("p", until=5.0) == 32
    assert engine.leases.read("p", until=9.0) is None
    assert not engine.leases.extend("p", 9.0)


def test_an_aborted_prefill_keeps_nothing(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    engine.add(make_request("p", 64, out=1, transfer=Transfer.REMOTE_DECODE), 0.0)
    engine.step(0.0)
    assert not engine.abort(["p"], 1.0)[0].lease
    assert engine.pool.used_blocks == 0


def test_a_decode_waits_for_the_transfer_and_computes_only_the_last_token(
    make_engine: MakeEngine, make_request: MakeRequest, drain: Drain
) -> None:
    engine = make_engine()
    engine.add(make_request("d", 48, out=3, transfer=Transfer.REMOTE_PREFILL), 0.0)
    step = engine.step(0.0)
    (load,) = step.loads
    assert (load.request_id, load.tokens) == ("d", 48)
    assert load.seconds == pytest.approx(transfer_seconds(engine.profile, tokens=48))
    assert engine.pool.used_blocks == 3, "the blocks are there before the KV is"
    assert engine.pool.cached_blocks == 0, "but nobody may use them yet"
    assert engine.kv_fetch_stages() == {"waiting_to_start": 0, "in_progress": 1, "completed_waiting": 0}
    assert engine.step(0.001).scheduled == {}
    engine.finish_load("d", ok=True, now=0.005)
    assert engine.kv_fetch_stages()["completed_waiting"] == 1
    steps, finished = drain(engine, now=0.005)
    assert [one.scheduled for one in steps] == [{"d": 1}] * 3
    end = finished["d"]
    assert (end.output_tokens, end.cached_tokens, end.remote_tokens) == (3, 0, 48)
    counters = engine.counters
    assert (counters.external_prefix_cache_queries, counters.external_prefix_cache_hits) == (48, 48)
    engine.add(make_request("again", 64), 1.0)
    assert drain(engine, now=1.0)[1]["again"].cached_tokens == 48


def test_only_what_the_local_cache_lacks_is_transferred(
    make_engine: MakeEngine, make_request: MakeRequest, drain: Drain
) -> None:
    engine = make_engine()
    engine.add(make_request("before", 32, out=1), 0.0)
    drain(engine)
    engine.add(make_request("d", 64, transfer=Transfer.REMOTE_PREFILL), 1.0)
    (load,) = engine.step(1.0).loads
    assert load.tokens == 32
    engine.finish_load("d", ok=True, now=2.0)
    _, finished = drain(engine, now=2.0)
    assert (finished["d"].cached_tokens, finished["d"].remote_tokens) == (32, 32)


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_lost_kv(policy: str, make_engine: MakeEngine, make_request: MakeRequest, drain: Drain) -> None:
    engine = make_engine(kv_load_failure=policy)
    engine.add(make_request("d", 48, out=2, transfer=Transfer.REMOTE_PREFILL), 0.0)
    engine.step(0.0)
    engine.finish_load("d", ok=False, now=1.0)
    step = engine.step(1.0)
    assert engine.counters.failed_loads == 1
    if policy == "fail":
        assert [(end.request_id, end.reason) for end in step.finished] == [("d", "error")]
        assert step.scheduled == {}
    else:
        assert step.scheduled == {"d": 48}
        assert step.loads == ()
        assert drain(engine, now=2.0)[1]["d"].remote_tokens == 0
    assert engine.pool.used_blocks == 0


def test_blocks_of_an_aborted_load_are_freed_when_the_writing_ends(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine()
    engine.add(make_request("d", 48, transfer=Transfer.REMOTE_PREFILL), 0.0)
    engine.step(0.0)
    assert engine.abort(["d"], 0.5)[0].reason == "abort"
    assert engine.pool.used_blocks == 3
    engine.finish_load("d", ok=True, now=1.0)
    assert engine.pool.used_blocks == 0
    engine.finish_load("d", ok=True, now=1.0)


def test_loads_leave_room_for_the_prefills_under_way(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    engine = make_engine(usable=10, max_num_batched_tokens=32)
    engine.add(make_request("long", 96, seed=1), 0.0)
    engine.step(0.0)
    engine.add(make_request("d", 80, seed=2, transfer=Transfer.REMOTE_PREFILL), 0.0)
    # Of 6 free blocks the prefill under way still needs 2, so the 5 of the load do not fit.
    assert engine.step(0.0).loads == ()
    assert engine.block_table("d") == ()
    assert engine.kv_fetch_stages()["waiting_to_start"] == 1
