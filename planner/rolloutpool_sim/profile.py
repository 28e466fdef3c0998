"""How long an engine's steps take and how much KV it holds: piecewise linear alpha-beta models.

One forward pass (a *step*) of a tensor/pipeline parallel engine costs

    step = token_time(prefill tokens + decoding sequences)
         + gamma_decode  * context tokens read by the decoding sequences
         + gamma_prefill * attention pairs of the prefilled tokens

`token_time` is piecewise linear: while the weights' read dominates it is nearly flat (decode), beyond the
ridge it grows with every token (prefill). So a pure decode step is alpha + beta*batch + gamma*context, a
pure prefill is alpha + beta*tokens + attention, and a mixed step is their combination, as in chunked
prefill. The same profile drives the planner, the simulator and the emulator. All functions are pure; times
are seconds of the engine's clock.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib import resources
from itertools import pairwise
from typing import Annotated, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

DEFAULT_STEP_TOKENS = 8192
"""vLLM's default `max_num_batched_tokens` for an API server on a GPU of 70 GiB or more."""

_RELATIVE_DROP_ALLOWED = 1e-3  # rounding of fitted coefficients where two segments meet


class ProfileError(ValueError):
    """A profile is unknown, malformed, or has no entry for what was asked; the message says which."""


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class AlphaBeta(_Frozen):
    """A latency and a cost per token: `alpha + beta * tokens` seconds."""

    alpha_seconds: Seconds
    beta_seconds_per_token: Seconds


class TokenSegment(AlphaBeta):
    """One linear piece of `token_time`, valid from `from_tokens` tokens up to where the next piece begins."""

    from_tokens: int = Field(ge=0)


def _rising(segments: tuple[TokenSegment, ...]) -> tuple[TokenSegment, ...]:
    """Segments begin at 0 and are in order, and time never falls where one gives way to the next."""
    if not segments or segments[0].from_tokens != 0:
        raise ValueError("tokenTime needs a first segment with fromTokens: 0")
    for before, after in pairwise(segments):
        if after.from_tokens <= before.from_tokens:
            raise ValueError("tokenTime segments must be in increasing order of fromTokens")
        at = after.from_tokens
        left = before.alpha_seconds + before.beta_seconds_per_token * at
        if after.alpha_seconds + after.beta_seconds_per_token * at < left * (1 - _RELATIVE_DROP_ALLOWED):
            raise ValueError(f"tokenTime falls at {at} tokens: a larger step cannot be faster")
    return segments


class ParallelismProfile(_Frozen):
    """The cost model of one replica with the given tensor and pipeline parallelism.

    `decode_seconds_per_context_token` (gamma) is the KV read of one context token of one decoding sequence.
    `prefill_seconds_per_attention_pair` is the attention cost of one prefilled token looking at one
    earlier token. `transfer` is moving a prompt's KV from a prefill replica to this one.
    `kv_capacity_tokens` is what is left for KV after weights and activations; a parallelism in which the
    model does not fit is simply not listed.
    """

    tensor_parallel: Count
    pipeline_parallel: Count = 1
    token_time: Annotated[tuple[TokenSegment, ...], AfterValidator(_rising)]
    decode_seconds_per_context_token: Seconds
    prefill_seconds_per_attention_pair: Seconds = 0.0
    transfer: AlphaBeta
    kv_capacity_tokens: Count

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    def kv_capacity_blocks(self, block_size: int) -> int:
        """Whole KV blocks of `block_size` tokens that one replica holds."""
        return self.kv_capacity_tokens // block_size

    def fits(self, max_model_len: int) -> bool:
        """Whether one sequence of `max_model_len` tokens fits the KV cache, as vLLM demands at start."""
        return self.kv_capacity_tokens >= max_model_len


class PerformanceProfile(_Frozen):
    """Measured or estimated cost models of one model on one GPU product, one entry per parallelism.

    `origin` says where the numbers come from (a measurement, a published database, an estimate) and is
    shown to users wherever the numbers are used. `model_patterns` are shell patterns that served model
    names or hub ids are matched against, ignoring case. `kv_bytes_per_token` is the KV of one token on all
    GPUs of a replica together; without it nothing can be said of the blocks that CPU memory holds.
    """

    name: str = Field(min_length=1, max_length=63)
    origin: str = Field(min_length=1, max_length=1000)
    model_patterns: tuple[str, ...] = Field(min_length=1)
    kv_bytes_per_token: Annotated[int, Field(ge=1)] | None = None
    gpu_product: str = Field(min_length=1)
    parallelism: tuple[ParallelismProfile, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_entry_each(self) -> Self:
        shapes = [(p.tensor_parallel, p.pipeline_parallel) for p in self.parallelism]
        if len(set(shapes)) != len(shapes):
            raise ValueError("parallelism has two entries for one (tensorParallel, pipelineParallel)")
        return self

    def at(self, tensor_parallel: int, pipeline_parallel: int = 1) -> ParallelismProfile:
        """Return the entry of this parallelism. Raises ProfileError, naming what there is, if none."""
        for entry in self.parallelism:
            if (entry.tensor_parallel, entry.pipeline_parallel) == (tensor_parallel, pipeline_parallel):
                return entry
        known = ", ".join(f"TP{p.tensor_parallel} PP{p.pipeline_parallel}" for p in self.parallelism)
        raise ProfileError(
            f"profile {self.name} has no TP{tensor_parallel} PP{pipeline_parallel}; it has {known}"
        )

    def matches_model(self, model: str) -> bool:
        """Whether this profile is meant for `model` (a served name, hub id or path)."""
        return any(fnmatchcase(model.lower(), pattern.lower()) for pattern in self.model_patterns)


def token_seconds(segments: Sequence[TokenSegment], tokens: int) -> float:
    """Seconds of the piecewise linear `token_time` at `tokens` tokens in one step."""
    segment = segments[0]
    for candidate in segments[1:]:
        if candidate.from_tokens > tokens:
            break
        segment = candidate
    return segment.alpha_seconds + segment.beta_seconds_per_token * tokens


def attention_pairs(*, new_tokens: int, context_tokens: int) -> float:
    """Token pairs causal attention looks at when `new_tokens` follow `context_tokens` cached ones."""
    return new_tokens * (context_tokens + new_tokens / 2)


def step_seconds(
    engine: ParallelismProfile,
    *,
    prefill_tokens: int = 0,
    prefill_pairs: float = 0.0,
    decode_batch: int = 0,
    decode_context_tokens: int = 0,
) -> float:
    """Seconds of one step: `prefill_tokens` prefilled, and a token for each of `decode_batch` sequences.

    `prefill_pairs` is the sum of `attention_pairs` over the step's prefill chunks and
    `decode_context_tokens` the sum of the decoding sequences' context lengths. A step without tokens costs
    nothing.
    """
    tokens = prefill_tokens + decode_batch
    if tokens <= 0:
        return 0.0
    return (
        token_seconds(engine.token_time, tokens)
        + engine.decode_seconds_per_context_token * decode_context_tokens
        + engine.prefill_seconds_per_attention_pair * prefill_pairs
    )


def prefill_seconds(
    engine: ParallelismProfile,
    *,
    uncached_tokens: int,
    cached_tokens: int = 0,
    step_tokens: int = DEFAULT_STEP_TOKENS,
) -> float:
    """Seconds to prefill one prompt on an otherwise idle engine, in chunks of at most `step_tokens` tokens.

    `cached_tokens` precede the uncached ones and cost only the attention that looks at them.
    """
    if step_tokens < 1:
        raise ValueError("step_tokens must be at least 1")
    chunks, rest = divmod(max(uncached_tokens, 0), step_tokens)
    seconds = chunks * token_seconds(engine.token_time, step_tokens)
    if rest:
        seconds += token_seconds(engine.token_time, rest)
    pairs = attention_pairs(new_tokens=max(uncached_tokens, 0), context_tokens=cached_tokens)
    return seconds + engine.prefill_seconds_per_attention_pair * pairs


def break_even_seconds(engine: ParallelismProfile, *, tokens: int = 8192) -> float:
    """Idle time after which holding a session's KV has cost as much as computing it again would.

    Both in block-seconds: holding n of the capacity's C tokens for t seconds costs n t, and recomputing them
    keeps the whole engine, so all of C, busy for `prefill_seconds(n)`. `tokens` is n; t hardly depends on it.
    """
    return engine.kv_capacity_tokens * prefill_seconds(engine, uncached_tokens=tokens) / tokens


def decode_step_seconds(engine: ParallelismProfile, *, batch: int, context_tokens: int) -> float:
    """Seconds of a pure decode step (the ITL) of `batch` sequences whose contexts sum to `context_tokens`."""
    return step_seconds(engine, decode_batch=batch, decode_context_tokens=context_tokens)


def transfer_seconds(engine: ParallelismProfile, *, tokens: int) -> float:
    """Seconds to bring `tokens` tokens of KV into this engine from another; none for no tokens."""
    if tokens <= 0:
        return 0.0
    return engine.transfer.alpha_seconds + engine.transfer.beta_seconds_per_token * tokens


def parse_profile(text: str) -> PerformanceProfile:
    """Read a profile from YAML (as in the package's data files or a ConfigMap). Raises ProfileError."""
    try:
        return PerformanceProfile.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ProfileError(f"the profile is not valid YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "profile"
        raise ProfileError(f"the profile is not valid at {where}: {first['msg']}") from error


def builtin_names() -> tuple[str, ...]:
    """Names of the profiles that come with the package, sorted."""
    files = resources.files(__package__).joinpath("profiles").iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")))


def load_builtin(name: str) -> PerformanceProfile:
    """Load a profile that comes with the package. Raises ProfileError, naming the known ones."""
    known = builtin_names()
    if name not in known:
        raise ProfileError(f"no built-in profile {name!r}; built in are {', '.join(known)}")
    path = resources.files(__package__).joinpath("profiles", f"{name}.yaml")
    return parse_profile(path.read_text(encoding="utf-8"))
