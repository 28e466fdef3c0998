"""The parts of the tests with real engines that need none."""

import sys
from pathlib import Path

import pytest

from vllm_serving.asking import cached_tokens, tokens, whole_blocks
from vllm_serving.engines import Counters, read_counters, settings
from vllm_serving.errors import ServingError
from vllm_serving.processes import Process

EXPOSITION = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 300.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.796e+09
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 64.0
# TYPE vllm:external_prefix_cache_hits counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="tiny"} 32.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} 7.0
vllm:generation_tokens_total{engine="1",model_name="tiny"} 1.0
"""


def test_counters_are_read_and_subtracted() -> None:
    read = read_counters(EXPOSITION)
    assert read == Counters(queries=300, hits=64, fetched=32, generated=8, running=2, waiting=1)
    assert read.since(read) == Counters(queries=0, hits=0, fetched=0, generated=0, running=2, waiting=1)


@pytest.mark.parametrize(
    ("count", "whole"),
    [
        pytest.param(-1, 0, id="none"),
        pytest.param(31, 0, id="less than one"),
        pytest.param(64, 64, id="exact"),
        pytest.param(70, 64, id="more"),
    ],
)
def test_whole_blocks(count: int, whole: int) -> None:
    assert whole_blocks(count) == whole


def test_usage_without_details_has_no_cached_tokens() -> None:
    assert cached_tokens({"prompt_tokens": 3, "prompt_tokens_details": None}) == 0
    assert cached_tokens({"prompt_tokens_details": {"cached_tokens": 32}}) == 32


def test_prompts_of_different_seeds_share_no_beginning() -> None:
    firsts = [tokens(seed, 1)[0] for seed in range(200)]
    assert len(set(firsts)) == len(firsts)


def test_engines_get_ports_of_their_own() -> None:
    made = settings("a", "b", nixl=True)
    ports = [
        port for each in made for port in (each.port, each.events_port, each.replay_port, each.nixl_port)
    ]
    assert len(set(ports)) == 8


@pytest.mark.parametrize(
    ("script", "told"),
    [
        pytest.param("raise SystemExit('no model')", "engine ended:\nno model", id="ends"),
        pytest.param("print('hello', flush=True); input()", "engine ended", id="has no input"),
        pytest.param("import time; time.sleep(60)", "engine did not start in 0 s", id="does not get ready"),
    ],
)
def test_a_process_that_does_not_start_is_told_of(tmp_path: Path, script: str, told: str) -> None:
    process = Process([sys.executable, "-c", script], {}, tmp_path / "engine.log")
    with pytest.raises(ServingError, match=told):
        process.wait_for(lambda: False, seconds=0.2 if "sleep" in script else 10)
    assert not process.alive


def test_a_process_ends_with_its_children(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)"
    )
    process = Process([sys.executable, "-c", script], {}, tmp_path / "parent.log")
    process.stop()
    assert not process.alive
