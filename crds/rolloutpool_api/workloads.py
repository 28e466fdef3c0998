"""Spec: the rollout classes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from rolloutpool_api import cel
from rolloutpool_api.base import ApiModel, rules

ClassName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]*[a-z0-9])?$", max_length=32)]
"""Name of a rollout class: rlvr, rlhf, agentic or the user's own."""
Tokens = Annotated[int, Field(ge=1, le=16_777_216)]


class HeaderMatch(ApiModel):
    """A request header and its value."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$", max_length=128)]
    """Header name, any case."""
    value: Annotated[str, Field(min_length=1, max_length=256)]
    """Exact value."""


class FieldMatch(ApiModel):
    """A field of the request's JSON body and its value."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,3}$", max_length=128)]
    """Names from the body's top level on, with dots between: metadata.environment."""
    value: Annotated[str, Field(min_length=1, max_length=256)]
    """Exact value; numbers are compared as text."""


class MatchRules(ApiModel):
    """Which requests belong to the class when they carry no X-Rollout-Class header; any rule suffices."""

    header: HeaderMatch | None = None
    """A header with this value."""
    models: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(default=[], max_length=16)
    """Requests for one of these model names. Engines serve the model under each of them too; where
    engine.extraArgs has --enable-lora they are adapters, which the trainer loads by these names."""
    session_prefix: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Sessions whose id starts so."""
    body_field: FieldMatch | None = None
    """A body field with this value."""
    api_key_sha256: list[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default=[], max_length=16)
    """Requests whose API key (Authorization: Bearer, or x-api-key) has one of these SHA-256 digests in hex:
    printf %s "$KEY" | sha256sum. The keys themselves do not belong in the object."""
    path_prefix: (
        Annotated[str, Field(pattern=r"^/[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+){0,3}$", max_length=128)] | None
    ) = None
    """Requests below this path, which is taken off before they go to an engine: with /math a trainer's base
    URL is http://ROUTER/math/v1."""


class TokenPrior(ApiModel):
    """Expected token counts."""

    model_config = ConfigDict(json_schema_extra=rules(cel.TOKEN_PRIOR))

    p50: Tokens
    """Median, in tokens."""
    p95: Tokens
    """95th percentile, in tokens."""


class Priors(ApiModel):
    """What a session of the class is expected to look like until enough have been seen."""

    prompt_tokens: TokenPrior = TokenPrior(p50=512, p95=2048)
    """Tokens that the first prompt holds."""
    output_tokens: TokenPrior = TokenPrior(p50=512, p95=2048)
    """Tokens generated in one turn."""
    turn_tokens: Annotated[int, Field(ge=0, le=16_777_216)] = 256
    """Tokens that the environment adds before each later turn (tool output)."""
    turns: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Requests in one session."""
    tool_gap_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    """Mean time between an answer and the session's next request, in seconds."""
    samples_per_prompt: Annotated[int, Field(ge=1, le=1024)] = 1
    """Samples drawn from one prompt (GRPO group size)."""


class ClassSlo(ApiModel):
    """Latency objectives of one class, where they differ from the pool's."""

    ttft_milliseconds: Annotated[int, Field(ge=1, le=3_600_000)] | None = None
    """Time to first token, 95th percentile, in milliseconds."""
    itl_milliseconds: Annotated[int, Field(ge=1, le=60_000)] | None = None
    """Inter-token latency, 95th percentile, in milliseconds."""


class OverloadAnswer(StrEnum):
    """What a request gets that cannot enter yet."""

    HOLD = "Hold"
    REJECT = "Reject"


class Overload(ApiModel):
    """What a new session gets while its class is full."""

    answer: OverloadAnswer = OverloadAnswer.HOLD
    """Hold: it waits, first come first served. Reject: it is answered at once."""
    status: int = Field(default=503, ge=400, le=599)
    """HTTP status of a rejection."""
    retry_after_seconds: int = Field(default=10, ge=0, le=60)
    """Retry-After of a rejection, in seconds."""
    max_waiting: int = Field(default=10_000, ge=1, le=100_000)
    """Requests of the class that may wait at once; more are rejected."""
    max_wait_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """Longest wait of a request, in seconds; then it is rejected. Default: no limit, since trainers retry."""


class WorkloadSpec(ApiModel):
    """One rollout class."""

    name: ClassName
    """What requests name in the X-Rollout-Class header."""
    share: float = Field(gt=0, le=1)
    """Part of the consumed samples that the trainer wants from this class; all shares sum to 1."""
    match: MatchRules = MatchRules()
    """Which requests belong to the class when they do not name it."""
    priors: Priors = Priors()
    """What its sessions are expected to look like."""
    slo: ClassSlo | None = None
    """Latency objectives, where they differ from spec.slo."""
    overload: Overload = Overload()
    """What a new session gets while the class is full."""
    session_idle_seconds: Annotated[float, Field(ge=0, le=86_400)] | None = None
    """Seconds without a request after which a session has ended. Default: 0 (with its answer) for turns = 1,
    else the longer of 120 s and 20 tool gaps. POST /finish_session ends one at once."""

    def idle_seconds(self) -> float:
        """Seconds without a request after which a session of this class has ended."""
        if self.session_idle_seconds is not None:
            return self.session_idle_seconds
        return 0.0 if self.priors.turns == 1 else max(120.0, 20 * self.priors.tool_gap_seconds)
