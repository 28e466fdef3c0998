"""Requests: what a caller hands to the engine, and the engine's own record of one that it has taken in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


class Transfer(Enum):
    """The part that a request plays in disaggregated serving (the `do_remote_*` of `kv_transfer_params`)."""

    NONE = "none"
    REMOTE_DECODE = "do_remote_decode"
    REMOTE_PREFILL = "do_remote_prefill"


class Status(Enum):
    """Where a request stands in the scheduler; the names are vLLM's."""

    WAITING = "waiting"
    WAITING_FOR_REMOTE_KVS = "waiting for remote kvs"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRequest:
    """One sequence to generate.

    `prompt` holds token ids, at least one. `next_token(i)` is the model: the id of the i-th output token.
    It must be a pure function, so that a recomputed or repeated request repeats its output. Generation
    ends with "length" after `max_tokens` tokens or at the engine's `max_model_len`, or with "stop" at the
    `stop_after`-th token if that comes first. Prefixes are shared only between requests of one
    `cache_salt`.
    """

    request_id: str
    prompt: Sequence[int]
    max_tokens: int
    next_token: Callable[[int], int]
    stop_after: int | None = None
    cache_salt: str = ""
    transfer: Transfer = Transfer.NONE

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError(f"request {self.request_id} has an empty prompt")
        if self.max_tokens < 1:
            raise ValueError(f"request {self.request_id} asks for {self.max_tokens} output tokens")
        if self.stop_after is not None and self.stop_after < 1:
            raise ValueError(f"request {self.request_id} would stop after {self.stop_after} tokens")


@dataclass(slots=True, eq=False)
class RequestState:
    """The engine's mutable record of one request; times are engine seconds, None until it has happened.

    `tokens` is the prompt and the output so far, and `hashes` the prefix hashes of its full blocks.
    `computed` counts the tokens whose KV is in `blocks` after the steps scheduled so far; `cached_blocks`
    those of `blocks` that are in the prefix cache. The request ends with `end_reason` when it has
    `end_tokens` tokens, prompt included.
    """

    request: EngineRequest
    request_id: str
    tokens: list[int]
    hash_seed: int
    arrival: float
    prompt_tokens: int
    end_tokens: int
    end_reason: FinishReason
    status: Status = Status.WAITING
    hashes: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    cached_blocks: int = 0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    preemptions: int = 0
    local_hit_tokens: int = 0
    remote_hit_tokens: int = 0
    load_ready: bool = False
    load_failed: bool = False
    remote_pending: bool = False

    @property
    def output_tokens(self) -> int:
        """Output tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens
