"""Names, labels and gauges of the emulator's metrics."""

import re
from collections.abc import Callable

from rolloutpool_sim.emulator.metrics import Metrics
from rolloutpool_sim.engine import Engine, EngineRequest, Transfer

NAMES = (
    'admission_rejections_total{reason="max_num_queued_reqs"}',
    "e2e_request_latency_seconds_count",
    'engine_sleep_state{sleep_state="awake"}',
    "external_prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "generation_tokens_total",
    "inter_token_latency_seconds_count",
    "iteration_tokens_total_count",
    "kv_cache_usage_perc",
    "mm_cache_hits_total",
    "mm_cache_queries_total",
    "num_preemptions_total",
    "num_requests_running",
    "num_requests_waiting",
    'num_requests_waiting_by_reason{reason="capacity"}',
    'num_requests_waiting_by_reason{reason="deferred"}',
    "prefix_cache_hits_total",
    "prefix_cache_queries_total",
    'prompt_tokens_by_source_total{source="local_compute"}',
    'prompt_tokens_cached_by_source_total{source="device"}',
    "prompt_tokens_cached_total",
    "prompt_tokens_total",
    "request_decode_time_seconds_count",
    "request_generation_tokens_count",
    "request_inference_time_seconds_count",
    "request_max_num_generation_tokens_count",
    "request_num_preemptions_count",
    "request_params_max_tokens_count",
    "request_params_n_count",
    "request_prefill_kv_computed_tokens_count",
    "request_prefill_time_seconds_count",
    "request_prompt_tokens_count",
    "request_queue_time_seconds_count",
    'request_success_total{finished_reason="abort"}',
    'request_success_total{finished_reason="length"}',
    "request_time_per_output_token_seconds_count",
    "time_to_first_token_seconds_count",
)
NIXL_NAMES = (
    "nixl_num_failed_transfers_total",
    "nixl_num_kv_expired_reqs_total",
    "nixl_xfer_time_seconds_count",
    'num_requests_kv_fetch_by_stage{stage="completed_waiting"}',
    'num_requests_kv_fetch_by_stage{stage="in_progress"}',
    'num_requests_kv_fetch_by_stage{stage="waiting_to_start"}',
)


def _render(engine: Engine, *, kv_transfer: bool) -> str:
    return Metrics(engine, model_name="a", kv_transfer=kv_transfer).render().decode()


def _samples(text: str) -> dict[str, float]:
    """Samples by name and labels other than model and engine."""
    samples: dict[str, float] = {}
    for name, labels, value in re.findall(r"^vllm:([^{ ]+)\{([^}]*)\} (\S+)$", text, re.MULTILINE):
        kept = [label for label in labels.split(",") if not label.startswith(("model_name=", "engine="))]
        samples[name + "".join(f"{{{label}}}" for label in kept)] = float(value)
    return samples


def test_the_names_are_those_of_vllm(make_engine: Callable[..., Engine]) -> None:
    text = _render(make_engine(), kv_transfer=True)
    assert {*NAMES, *NIXL_NAMES} <= _samples(text).keys()
    running = re.search(r"^vllm:num_requests_running\{(.*)\} 0.0$", text, re.MULTILINE)
    assert running is not None
    assert set(running[1].split(",")) == {'model_name="a"', 'engine="0"'}
    rejections = re.search(r"^vllm:admission_rejections_total\{(.*)\} 0.0$", text, re.MULTILINE)
    assert rejections is not None
    assert "engine=" not in rejections[1]


def test_an_engine_without_a_connector_has_no_transfer_metrics(make_engine: Callable[..., Engine]) -> None:
    samples = _samples(_render(make_engine(), kv_transfer=False))
    assert set(NAMES) <= samples.keys()
    assert not samples.keys() & set(NIXL_NAMES)


def test_the_cache_is_described(make_engine: Callable[..., Engine]) -> None:
    text = _render(make_engine(usable=64, max_model_len=512), kv_transfer=False)
    info = re.search(r"^vllm:cache_config_info\{(.*)\} 1.0$", text, re.MULTILINE)
    assert info is not None
    labels = set(info[1].split(","))
    assert {'num_gpu_blocks="65"', 'block_size="16"', 'kv_cache_max_concurrency="2.03125"'} <= labels
    assert 'kv_cache_size_tokens="1040"' in labels


def test_gauges_show_the_engine_as_it_is(
    make_engine: Callable[..., Engine], make_request: Callable[..., EngineRequest]
) -> None:
    engine = make_engine(usable=64, max_num_seqs=2)
    engine.add(make_request("load", 64, seed=1, transfer=Transfer.REMOTE_PREFILL), 0.0)
    for number in range(3):
        engine.add(make_request(str(number), 64, seed=2 + number, out=9), 0.0)
    engine.step(0.0)
    samples = _samples(_render(engine, kv_transfer=True))
    assert samples["num_requests_running"] == 2
    assert samples["num_requests_waiting"] == 2
    assert samples['num_requests_waiting_by_reason{reason="deferred"}'] == 1
    assert samples['num_requests_waiting_by_reason{reason="capacity"}'] == 1
    assert samples['num_requests_kv_fetch_by_stage{stage="in_progress"}'] == 1
    assert samples["kv_cache_usage_perc"] == 3 * 4 / 64
