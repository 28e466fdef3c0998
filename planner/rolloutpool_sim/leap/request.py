"""Requests of the leaping engine: tokens known by the identity of their streams, and the engine's records.

A *stream* is an endless sequence of tokens behind a given prefix (a system prompt, a group's prompt, one
session's history). A prompt is a path of streams, each up to some length. So a prefix costs as much to name,
compare and cache as it has segments, however long it is.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rolloutpool_sim.engine.request import FinishReason

if TYPE_CHECKING:
    from rolloutpool_sim.leap.streams import Extent, Path, Stream


@dataclass(frozen=True, slots=True)
class Segment:
    """The first `tokens` tokens of a stream; equal keys behind equal segments are equal tokens."""

    key: Hashable
    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"segment {self.key!r} has {self.tokens} tokens")


@dataclass(frozen=True, slots=True)
class LeapRequest:
    """One sequence to generate: `output_tokens` tokens after `prompt`.

    Segments that others share come first, the session's own stream last (it may have 0 tokens yet). The
    answer continues the last segment's stream: a session's next prompt ends with the same key and more
    tokens. Raises ValueError for an empty prompt or no output.
    """

    request_id: str
    prompt: tuple[Segment, ...]
    output_tokens: int

    def __post_init__(self) -> None:
        if self.output_tokens < 1:
            raise ValueError(f"request {self.request_id} asks for {self.output_tokens} output tokens")
        if self.prompt_tokens < 1:
            raise ValueError(f"request {self.request_id} has an empty prompt")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum([segment.tokens for segment in self.prompt])


class State:
    """The engine's mutable record of one request; times are engine seconds, None until it has happened.

    `length` is the number of tokens known and `computed` of those with KV; while the request decodes both
    follow from the batch's step count and `offset`. `path` are its streams, each with the block at which
    the next one takes over; `full` its leading blocks that are hashed, in `extents`, in order; `tail` the
    extent that its next full block joins and `at` that block's place in `path`. `load` are the streams of
    which it loads blocks from a second tier, until `loaded_at`.
    """

    __slots__ = (
        "arrival",
        "at",
        "computed",
        "decoding",
        "end_reason",
        "end_tokens",
        "extents",
        "first_token_at",
        "full",
        "hit_tokens",
        "last_token_at",
        "length",
        "load",
        "loaded_at",
        "offset",
        "order",
        "output_tokens",
        "path",
        "preemptions",
        "prompt_tokens",
        "remote_tokens",
        "request_id",
        "scheduled_at",
        "tail",
    )

    def __init__(
        self,
        request: LeapRequest,
        *,
        prompt_tokens: int,
        path: Path,
        arrival: float,
        max_model_len: int,
    ) -> None:
        end = prompt_tokens + request.output_tokens
        self.request_id = request.request_id
        self.output_tokens = request.output_tokens
        self.path = path
        self.arrival = arrival
        self.prompt_tokens = self.length = prompt_tokens
        self.end_tokens = min(end, max_model_len)
        self.end_reason: FinishReason = "stop" if end <= max_model_len else "length"
        self.computed = self.offset = self.order = 0
        self.decoding = False
        self.full = self.at = 0
        self.extents: list[Extent] = []
        self.tail: Extent | None = None
        self.load: list[Stream] = []
        self.loaded_at = 0.0
        self.preemptions = self.hit_tokens = self.remote_tokens = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
