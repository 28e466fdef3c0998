"""What a step of the engine did, for callers to deliver, count and show. All times are engine seconds."""

from dataclasses import dataclass
from typing import NamedTuple

from rolloutpool_sim.engine.request import FinishReason


class NewToken(NamedTuple):
    """One output token; `latency` is since the request's previous token, or its arrival (then TTFT)."""

    request_id: str
    position: int
    token: int
    latency: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRequest:
    """A request that ended, with the measurements vLLM makes of it.

    `queue_seconds` runs from arrival to first being scheduled, `prefill_seconds` from there to the first
    token, `decode_seconds` from the first token to the last, all including preemptions. `cached_tokens` is
    the part of the prompt found in the local prefix cache at first admission, `remote_tokens` the part
    that came from another engine. `lease` says whether the blocks are kept for a decode engine;
    `block_ids` are those blocks and `computed_tokens` the tokens in them.
    """

    request_id: str
    reason: FinishReason
    arrival: float
    finished_at: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    cached_tokens: int
    remote_tokens: int
    preemptions: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    lease: bool = False
    block_ids: tuple[int, ...] = ()
    computed_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A request waits for `tokens` tokens of remote KV, which take `seconds` from when they were asked for.

    The caller fetches them and reports with `Engine.finish_load`.
    """

    request_id: str
    tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """One step. It began at `started_at` and takes `seconds`; tokens and ends become visible at `ends_at`.

    `seconds` is 0 if there was nothing to compute: then nothing more happens until a request arrives, a
    load or a lease ends, or another request is aborted. `scheduled` maps request ids to their tokens of
    this step.
    """

    started_at: float
    seconds: float
    scheduled: dict[str, int]
    prefill_tokens: int
    tokens: tuple[NewToken, ...]
    finished: tuple[FinishedRequest, ...]
    preempted: tuple[str, ...]
    loads: tuple[Load, ...]

    @property
    def ends_at(self) -> float:
        """When the step's results are there and the next step may begin."""
        return self.started_at + self.seconds


@dataclass(slots=True)
class Counters:
    """Totals since the engine began, named as vLLM's metrics. Prefix cache queries and hits are in tokens.

    A preempted request that is admitted again does not count as a query, as in vLLM.
    """

    steps: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    external_prefix_cache_queries: int = 0
    external_prefix_cache_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_remote: int = 0
    generation_tokens: int = 0
    recomputed_tokens: int = 0
    expired_leases: int = 0
    failed_loads: int = 0
