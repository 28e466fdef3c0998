"""How answers are written: each API has a form of its own, and all speak of the same sequences. Pure."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_sim.emulator.errors import ErrorInfo
from rolloutpool_sim.engine import FinishedRequest

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What the parts of one answer have in common. `created` is Unix time in seconds."""

    public_id: str
    """The client's X-Request-Id, or a fresh id."""
    model: str
    created: int
    cached_details: bool
    """Whether usage tells of cached tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One finished sequence: its prompt, output tokens, and the engine's account of it."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    finished: FinishedRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A whole answer."""

    outputs: Sequence[Output]
    prompts: Sequence[int]
    """Lengths of the prompts, each once however many samples it has."""
    cached: int
    """Cached tokens of the last prompt."""
    kv_transfer_params: dict[str, Any] | None
    """For the decode engine, from a prefill-only request."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(self.prompts)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all outputs."""
        return sum(len(output.tokens) for output in self.outputs)


class Form(ABC):
    """Writes one answer, whole or as a stream; a fresh one for every request."""

    @abstractmethod
    def whole(self, result: Result) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    def opening(self, index: int, prompt_tokens: int) -> bytes:
        """Events before the first token of a sequence; empty where there are none."""
        return b""

    @abstractmethod
    def piece(
        self, index: int, tokens: Sequence[int], *, prompt: Sequence[int], sent: int, reason: str | None
    ) -> bytes:
        """Events for new tokens of a sequence.

        Args:
            index: of the sequence.
            tokens: the new ones.
            prompt: of the sequence.
            sent: tokens so far, the new ones among them.
            reason: why it ended; None: it goes on.
        """

    @abstractmethod
    def closing(self, result: Result) -> bytes:
        """Events after the last token."""

    @abstractmethod
    def failed(self, error: ErrorInfo) -> bytes:
        """Events that end a stream in the middle."""


def event(body: dict[str, Any], name: str = "") -> bytes:
    """Return one server-sent event, with its name where the API names events."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def usage(about: About, prompt_tokens: int, completion_tokens: int, *, cached: int | None) -> dict[str, Any]:
    """Return the usage object of completions and tokens; `cached` None: not told."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached}
        if about.cached_details and cached is not None
        else None,
    }
