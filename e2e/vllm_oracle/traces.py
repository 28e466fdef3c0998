"""Traces: what is asked of an engine, and when, on the clock of its steps."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

Segment = tuple[int, int]
"""(stream, tokens): the first so many tokens of a token stream."""


def token(stream: int, position: int) -> int:
    """The token id at `position` of a stream, 3 to 30002: streams differ from their first token on."""
    mixed = (stream * 0x9E3779B1 + position * 0x85EBCA77 + 0x1234567) & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D & 0xFFFFFFFF
    return 3 + (mixed ^ (mixed >> 12)) % 30000


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Sizes of the engine, named as vLLM's flags; `num_blocks` counts the null block."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One request.

    Its prompt is the join of `prompt`; its answer is the first `output_tokens` tokens of `output_stream`, or
    fewer where it meets `max_model_len`, so the next turn of a session prompts with
    `(*prompt, (output_stream, output_tokens), ...)`. It arrives before step `at`, or, with `after`, `at`
    steps after that job has ended. With `abort_after` it is aborted so many steps after its arrival unless
    it has ended.
    """

    job_id: str
    prompt: tuple[Segment, ...]
    output_tokens: int
    output_stream: int
    at: int = 0
    after: str | None = None
    salt: str = ""
    abort_after: int | None = None

    def prompt_tokens(self) -> list[int]:
        """Token ids of the prompt."""
        return [token(stream, position) for stream, count in self.prompt for position in range(count)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Jobs for one engine; those that arrive before the same step arrive in the order given here."""

    name: str
    limits: Limits
    jobs: tuple[Job, ...]

    def __post_init__(self) -> None:
        known: set[str] = set()
        for job in self.jobs:
            if job.job_id in known:
                raise ValueError(f"trace {self.name} has two jobs {job.job_id}")
            if job.after is not None and job.after not in known:
                raise ValueError(f"job {job.job_id} comes after {job.after}, which does not come before it")
            known.add(job.job_id)


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """A trace as plain JSON values, fields at their defaults left out."""
    return {
        "name": trace.name,
        "limits": asdict(trace.limits),
        "jobs": [dict(_given(job)) for job in trace.jobs],
    }


def trace_from_json(data: Mapping[str, Any]) -> Trace:
    """The inverse of `trace_to_json`. Raises TypeError for unknown fields, ValueError for a bad trace."""
    jobs = (
        Job(**{**job, "prompt": tuple((stream, count) for stream, count in job["prompt"])})
        for job in data["jobs"]
    )
    return Trace(name=data["name"], limits=Limits(**data["limits"]), jobs=tuple(jobs))


def _given(job: Job) -> Iterator[tuple[str, Any]]:
    for field in fields(job):
        value = getattr(job, field.name)
        if value != field.default:
            yield field.name, value
