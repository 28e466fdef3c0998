# mypy: disable-error-code="import-not-found"
"""vLLM's own scheduler, driven through traces; runs inside the environment that `install` makes.

Reads one trace a line from standard input and answers with one line each: the run as JSON, or
`{"error": ...}`. Follows what vLLM's EngineCore does around its scheduler, with the answers known
beforehand in place of a model, one step after the other (no asynchronous scheduling).
"""

import json
import logging
import os
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from vllm_oracle.driving import Step, Summary, drive
from vllm_oracle.traces import Job, Limits, token, trace_from_json

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""A config.json to satisfy vLLM's checks; no weights exist."""


class KvEvents:
    """Counts the blocks that enter and leave the prefix cache, from vLLM's own KV cache events."""

    def __init__(self) -> None:
        self.stored = 0
        self.removed = 0

    def publish(self, batch: Any) -> None:
        """Take the events of one step."""
        for event in batch.events:
            count = len(getattr(event, "block_hashes", ()))
            if type(event).__name__ == "BlockStored":
                self.stored += count
            else:
                self.removed += count


class VllmEngine:
    """vLLM's scheduler as `drive` uses it."""

    def __init__(self, config: Any, limits: Limits) -> None:
        attention = FullAttentionSpec(
            block_size=limits.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=limits.num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=limits.block_size,
            log_stats=True,
        )
        self.events = KvEvents()
        self.scheduler.kv_event_publisher = self.events
        self._hasher = _hasher(config, limits)
        self._preempted: list[str] = []
        self._report_preemptions()
        self._jobs: dict[str, Job] = {}
        self._held: dict[str, int] = {}
        self._cached: dict[str, int] = {}
        self._preemptions: dict[str, int] = {}
        self._queries = 0
        self._hits = 0

    def _report_preemptions(self) -> None:
        """Preemptions in their order: the scheduler's output has them as a set."""
        preempt = self.scheduler._preempt_request

        def reporting(request: Any, *args: Any, **kwargs: Any) -> None:
            self._preempted.append(request.request_id)
            preempt(request, *args, **kwargs)

        self.scheduler._preempt_request = reporting

    def add(self, job: Job, number: int) -> None:
        """Queue a job."""
        request = Request(
            job.job_id,
            job.prompt_tokens(),
            SamplingParams(max_tokens=job.output_tokens, ignore_eos=True),
            None,
            arrival_time=float(number),
            cache_salt=job.salt or None,
            block_hasher=self._hasher,
        )
        self._jobs[job.job_id] = job
        self._cached[job.job_id] = 0
        self.scheduler.add_request(request)

    def abort(self, job_id: str, number: int) -> None:
        """End a job, as vLLM does when its client has gone."""
        self.scheduler.finish_requests(job_id, RequestStatus.FINISHED_ABORTED)
        self._held.pop(job_id, None)

    def step(self, number: int) -> Step:
        """Run one step."""
        removed = self.events.removed
        plan = self.scheduler.schedule()
        preempted, self._preempted[:] = list(self._preempted), []
        for job_id in preempted:
            self._held.pop(job_id, None)
            self._preemptions[job_id] = self._preemptions.get(job_id, 0) + 1
        for started in plan.scheduled_new_reqs:
            if started.req_id not in self._preemptions:
                self._cached[started.req_id] = started.num_computed_tokens
        scheduled = dict(plan.num_scheduled_tokens)
        new_blocks = {job_id: self._new_blocks(job_id) for job_id in scheduled}
        requests = [self.scheduler.requests[job_id] for job_id in scheduled]
        self._update(plan, requests)
        finished = [request.request_id for request in requests if request.is_finished()]
        for job_id in finished:
            del self._held[job_id]
        return Step(
            number=number,
            scheduled=scheduled,
            preempted=preempted,
            finished=finished,
            evicted=self.events.removed - removed,
            free=self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            new_blocks={job_id: new for job_id, new in new_blocks.items() if new and job_id not in finished},
        )

    def summary(self) -> Summary:
        """Totals of the run."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return Summary(
            cached=self._cached,
            preempted=self._preemptions,
            prefix_queries=self._queries,
            prefix_hits=self._hits,
            blocks_stored=self.events.stored,
            blocks_evicted=self.events.removed,
            eviction_order=[block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        )

    def _new_blocks(self, job_id: str) -> list[int]:
        (table,) = self.scheduler.kv_cache_manager.get_block_ids(job_id)
        new = list(table[self._held.get(job_id, 0) :])
        self._held[job_id] = len(table)
        return new

    def _update(self, plan: Any, requests: list[Any]) -> None:
        """Hand the step's tokens in: a request with no uncomputed tokens left samples one."""
        order = {request.request_id: index for index, request in enumerate(requests)}
        sampled = [
            [token(self._jobs[request.request_id].output_stream, request.num_output_tokens)]
            if request.num_computed_tokens >= request.num_tokens
            else []
            for request in requests
        ]
        output = ModelRunnerOutput(req_ids=list(order), req_id_to_index=order, sampled_token_ids=sampled)
        for outputs in self.scheduler.update_from_output(plan, output).values():
            stats = outputs.scheduler_stats.prefix_cache_stats if outputs.scheduler_stats else None
            if stats is not None:
                self._queries += stats.queries
                self._hits += stats.hits


def _hasher(config: Any, limits: Limits) -> Any:
    if not limits.enable_prefix_caching:
        return None
    function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(function)
    return get_request_block_hasher(limits.block_size, function)


def _config(model: str, limits: Limits) -> Any:
    """vLLM's configuration. Raises ValueError if it silently took other limits than those asked for."""
    config = VllmConfig(
        model_config=ModelConfig(
            model=model, skip_tokenizer_init=True, max_model_len=limits.max_model_len, enforce_eager=True
        ),
        cache_config=CacheConfig(
            block_size=limits.block_size, enable_prefix_caching=limits.enable_prefix_caching
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
        ),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = limits.num_blocks
    taken = Limits(
        num_blocks=config.cache_config.num_gpu_blocks,
        block_size=config.cache_config.block_size,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        max_model_len=config.model_config.max_model_len,
        enable_prefix_caching=config.cache_config.enable_prefix_caching,
    )
    if taken != limits:
        raise ValueError(f"vLLM made {taken} of {limits}")
    return config


def main() -> None:
    """Answer traces until standard input ends."""
    logging.disable(logging.WARNING)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM writes to standard output must not mix with the answers
    with tempfile.TemporaryDirectory() as model:
        Path(model, "config.json").write_text(json.dumps(MODEL))
        for line in sys.stdin:
            try:
                trace = trace_from_json(json.loads(line))
                run = drive(trace, VllmEngine(_config(model, trace.limits), trace.limits))
                answer: dict[str, Any] = asdict(run)
            except Exception:
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
