"""`/metrics` with the names, labels and buckets of vLLM 0.32.

Durations are engine seconds, as a GPU's would be.

Totals and gauges are read from the engine when scraped; only latencies are recorded as they happen.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rolloutpool_sim.engine import Engine, FinishedRequest, StepResult
from rolloutpool_sim.engine.kv import blocks_for

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_SMALL_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
_TTFT = (*_SMALL_TTFT, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_ITERATION_TOKENS = (1, *(2**power for power in range(3, 15)))
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
_PARAMS_N = (1, 2, 5, 10, 20)
_TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
_FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
_SLEEP_STATES = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
_LABELS = ("model_name", "engine")

_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("time to first token", _TTFT),
    "inter_token_latency_seconds": ("inter-token latency", _ITL),
    "request_time_per_output_token_seconds": ("time per output token of a request", _ITL),
    "e2e_request_latency_seconds": ("end-to-end request latency", _LATENCY),
    "request_queue_time_seconds": ("time spent waiting by a request", _LATENCY),
    "request_prefill_time_seconds": ("time spent in prefill by a request", _LATENCY),
    "request_decode_time_seconds": ("time spent in decode by a request", _LATENCY),
    "request_inference_time_seconds": ("time spent running by a request", _LATENCY),
    "request_num_preemptions": ("preemptions of a request", _PREEMPTIONS),
    "request_params_n": ("the n parameter of a request", _PARAMS_N),
    "iteration_tokens_total": ("tokens per engine step", _ITERATION_TOKENS),
}
_TOKEN_HISTOGRAMS = {
    "request_prompt_tokens": "prompt tokens of a request",
    "request_generation_tokens": "generated tokens of a request",
    "request_prefill_kv_computed_tokens": "prompt tokens of a request that were not cached",
    "request_params_max_tokens": "the max_tokens parameter of a request",
    "request_max_num_generation_tokens": "the most tokens asked for by a request",
}


class Metrics:
    """One emulator's metrics, in a registry of its own."""

    def __init__(self, engine: Engine, *, model_name: str, kv_transfer: bool) -> None:
        self._registry = CollectorRegistry()
        self._finished = dict.fromkeys(_FINISHED_REASONS, 0)
        labels = (model_name, "0")
        buckets = _one_two_five(engine.config.max_model_len)
        described = dict(_HISTOGRAMS) | {name: (text, buckets) for name, text in _TOKEN_HISTOGRAMS.items()}
        if kv_transfer:
            described["nixl_xfer_time_seconds"] = ("transfer duration of KV", _TRANSFER)
        self._histograms = {
            name: self._histogram(name, text, bounds).labels(*labels)
            for name, (text, bounds) in described.items()
        }
        self._registry.register(_EngineCollector(engine, labels, self._finished, kv_transfer=kv_transfer))

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        unit = ", in engine seconds" if name.endswith("_seconds") else ""
        help_text = f"Histogram of {text}{unit}."
        return Histogram(f"vllm:{name}", help_text, _LABELS, buckets=bounds, registry=self._registry)

    def render(self) -> bytes:
        """Return the exposition in Prometheus' text format."""
        return generate_latest(self._registry)

    def step(self, result: StepResult) -> None:
        """Record a step's latencies and size."""
        ttft = self._histograms["time_to_first_token_seconds"]
        itl = self._histograms["inter_token_latency_seconds"]
        for token in result.tokens:
            (itl if token.position else ttft).observe(token.latency)
        if result.scheduled:
            self._histograms["iteration_tokens_total"].observe(sum(result.scheduled.values()))
        for load in result.loads:
            self._histograms["nixl_xfer_time_seconds"].observe(load.seconds)

    def finished(self, request: FinishedRequest) -> None:
        """Record a request that has ended."""
        self._finished[request.reason] += 1
        decoded = max(request.output_tokens - 1, 1)
        values: dict[str, float] = {
            "e2e_request_latency_seconds": request.finished_at - request.arrival,
            "request_queue_time_seconds": request.queue_seconds,
            "request_prefill_time_seconds": request.prefill_seconds,
            "request_decode_time_seconds": request.decode_seconds,
            "request_inference_time_seconds": request.prefill_seconds + request.decode_seconds,
            "request_time_per_output_token_seconds": request.decode_seconds / decoded,
            "request_num_preemptions": request.preemptions,
            "request_prompt_tokens": request.prompt_tokens,
            "request_generation_tokens": request.output_tokens,
            "request_prefill_kv_computed_tokens": request.prompt_tokens
            - request.cached_tokens
            - request.remote_tokens,
            "request_params_max_tokens": request.max_tokens,
            "request_max_num_generation_tokens": request.output_tokens,
            "request_params_n": 1,
        }
        for name, value in values.items():
            self._histograms[name].observe(value)


class _EngineCollector(Collector):
    def __init__(
        self, engine: Engine, labels: tuple[str, str], finished: dict[str, int], *, kv_transfer: bool
    ) -> None:
        self._engine = engine
        self._labels = labels
        self._finished = finished
        self._kv_transfer = kv_transfer

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        yield from self._gauges()
        yield from self._counters()

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        engine = self._engine
        yield self._gauge("num_requests_running", "Requests in model execution batches.", engine.running)
        yield self._gauge("num_requests_waiting", "Requests waiting to be processed.", engine.waiting)
        yield self._gauge(
            "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.pool.usage
        )
        reasons = {"capacity": engine.waiting - engine.deferred, "deferred": engine.deferred}
        yield self._by("num_requests_waiting_by_reason", "Waiting requests by reason.", "reason", reasons)
        yield self._by("engine_sleep_state", "Engine sleep state.", "sleep_state", _SLEEP_STATES)
        if self._kv_transfer:
            name = "num_requests_kv_fetch_by_stage"
            yield self._by(name, "Requests whose KV is fetched, by stage.", "stage", engine.kv_fetch_stages())
        yield self._cache_info()

    def _cache_info(self) -> GaugeMetricFamily:
        """Sizes of the KV cache; vLLM counts its null block among them."""
        config = self._engine.config
        concurrency = config.num_blocks / blocks_for(config.max_model_len, config.block_size)
        info = {
            "engine": "0",
            "block_size": str(config.block_size),
            "enable_prefix_caching": str(config.enable_prefix_caching),
            "num_gpu_blocks": str(config.num_blocks),
            "kv_cache_size_tokens": str(int(concurrency * config.max_model_len)),
            "kv_cache_max_concurrency": str(concurrency),
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the CacheConfig", labels=list(info)
        )
        family.add_metric(list(info.values()), 1)
        return family

    def _counters(self) -> Iterator[CounterMetricFamily]:
        totals = self._engine.counters
        computed = totals.prompt_tokens - totals.prompt_tokens_cached - totals.prompt_tokens_remote
        cached = totals.prompt_tokens_cached + totals.prompt_tokens_remote
        plain = {
            "prefix_cache_queries": totals.prefix_cache_queries,
            "prefix_cache_hits": totals.prefix_cache_hits,
            "external_prefix_cache_queries": totals.external_prefix_cache_queries,
            "external_prefix_cache_hits": totals.external_prefix_cache_hits,
            "mm_cache_queries": 0,
            "mm_cache_hits": 0,
            "num_preemptions": totals.preemptions,
            "prompt_tokens": totals.prompt_tokens,
            "prompt_tokens_cached": cached,
            "generation_tokens": totals.generation_tokens,
            "nixl_num_failed_transfers": totals.failed_loads,
            "nixl_num_kv_expired_reqs": totals.expired_leases,
        }
        for name, value in plain.items():
            if self._kv_transfer or not name.startswith("nixl_"):
                yield self._counter(name, value)
        sources = {
            "local_compute": computed,
            "local_cache_hit": totals.prompt_tokens_cached,
            "external_kv_transfer": totals.prompt_tokens_remote,
        }
        yield self._counter_by("prompt_tokens_by_source", "source", sources)
        tiers = {"device": totals.prefix_cache_hits, "p2p": totals.external_prefix_cache_hits}
        yield self._counter_by("prompt_tokens_cached_by_source", "source", tiers)
        yield self._rejections()
        yield self._counter_by("request_success", "finished_reason", self._finished)

    def _rejections(self) -> CounterMetricFamily:
        """The emulator has no bound on its queue, so nothing is ever rejected, as in vLLM by default."""
        family = CounterMetricFamily(
            "vllm:admission_rejections", "Rejected requests.", labels=("model_name", "reason")
        )
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            family.add_metric((self._labels[0], reason), 0)
        return family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _by(self, name: str, text: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=(*_LABELS, label))
        for key, value in values.items():
            family.add_metric((*self._labels, key), value)
        return family

    def _counter(self, name: str, value: int) -> CounterMetricFamily:
        family = CounterMetricFamily(f"vllm:{name}", f"Total of {name}.", labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter_by(self, name: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
        family = CounterMetricFamily(f"vllm:{name}", f"Total of {name}.", labels=(*_LABELS, label))
        for key, value in values.items():
            family.add_metric((*self._labels, key), value)
        return family


def _one_two_five(maximum: int) -> tuple[float, ...]:
    """Bounds 1, 2, 5, 10, ... up to `maximum`."""
    bounds: list[float] = []
    power = 1
    while power <= maximum:
        bounds += [step * power for step in (1, 2, 5) if step * power <= maximum]
        power *= 10
    return tuple(bounds)
