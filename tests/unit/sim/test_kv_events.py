"""The emulator's KV events: who applies them knows the prefix cache exactly; and where they are published."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_sim.emulator.kv_events import EventRecorder
from rolloutpool_sim.emulator.settings import KvEventsSettings, SettingsError, parse_settings
from rolloutpool_sim.engine import Engine, EngineConfig, EngineRequest
from rolloutpool_sim.engine.hashing import extend_hashes, salt_seed
from rolloutpool_sim.profile import load_builtin

BLOCK = 4
MASK = 2**64 - 1


def watched_engine(blocks: int) -> tuple[Engine, EventRecorder]:
    config = EngineConfig(
        num_blocks=blocks, max_model_len=(blocks - 1) * BLOCK, block_size=BLOCK, max_num_seqs=4
    )
    engine, recorder = Engine(config, load_builtin("emulated-8b-h100").at(1)), EventRecorder(BLOCK)
    engine.pool.watcher = recorder
    return engine, recorder


def request(name: str, prompt: list[int], *, output: int = 3, salt: str = "") -> EngineRequest:
    return EngineRequest(
        request_id=name, prompt=prompt, max_tokens=output, next_token=lambda at: at, cache_salt=salt
    )


def run(engine: Engine) -> None:
    now = 0.0
    while engine.running or engine.waiting:
        now = engine.step(now).ends_at


def test_an_event_has_all_that_a_prefix_is_told_by() -> None:
    engine, recorder = watched_engine(20)
    engine.add(request("a", list(range(10)), salt="s"), 0.0)
    run(engine)
    hashes: list[int] = []
    extend_hashes(hashes, [*range(10), 0, 1], block_size=BLOCK, seed=salt_seed("s"))

    first, second = recorder.take()
    assert first == {
        "type": "BlockStored",
        "block_hashes": [block & MASK for block in hashes[:2]],
        "parent_block_hash": None,
        "token_ids": list(range(8)),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["s"], None],
    }
    assert second["parent_block_hash"] == hashes[1] & MASK
    assert second["token_ids"] == [8, 9, 0, 1]
    assert "extra_keys" not in second
    engine.pool.forget_all()
    assert recorder.take() == [{"type": "AllBlocksCleared"}]
    assert recorder.take() == []


@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_who_applies_the_events_knows_the_cache(seed: int) -> None:
    rng = Random(seed)
    engine, recorder = watched_engine(24)
    cached: Counter[int] = Counter()
    for number in range(20):
        prompt = [rng.randrange(2)] * rng.randrange(1, 30) + [rng.randrange(9)] * rng.randrange(1, 30)
        engine.add(request(str(number), prompt, output=rng.randrange(1, 20), salt=rng.choice(["", "s"])), 0.0)
        if rng.random() < 0.5:
            run(engine)
        if rng.random() < 0.05:
            engine.pool.forget_all()
        for event in recorder.take():
            apply(event, cached)
        assert sum(cached.values()) == engine.pool.cached_blocks
        for block in range(engine.pool.num_blocks):
            found = engine.pool.hash_of(block)
            assert found is None or cached[found & MASK] > 0


def apply(event: dict[str, Any], cached: Counter[int]) -> None:
    if event["type"] == "AllBlocksCleared":
        cached.clear()
    elif event["type"] == "BlockStored":
        cached.update(event["block_hashes"])
    else:
        cached.subtract(event["block_hashes"])
        assert min(cached.values()) >= 0


def config_of(**fields: Any) -> KvEventsSettings | None:
    return parse_settings(["m", "--kv-events-config", json.dumps(fields)], {}).kv_events


def test_where_events_are_published() -> None:
    assert parse_settings(["m"], {}).kv_events is None
    assert config_of(enable_kv_cache_events=False) is None
    assert config_of(enable_kv_cache_events=True, publisher="null") is None
    assert config_of(enable_kv_cache_events=True) == KvEventsSettings()
    made = config_of(
        enable_kv_cache_events=True,
        publisher="zmq",
        endpoint="tcp://*:1",
        replay_endpoint="tcp://*:2",
        buffer_steps=3,
        hwm=4,
    )
    assert made == KvEventsSettings(endpoint="tcp://*:1", replay_endpoint="tcp://*:2", buffer_steps=3)


@pytest.mark.parametrize("fields", [{"endpoint": 5}, {"buffer_steps": "many"}, {"buffer_steps": True}])
def test_odd_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="--kv-events-config"):
        config_of(enable_kv_cache_events=True, **fields)
