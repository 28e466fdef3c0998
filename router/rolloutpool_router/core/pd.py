"""Prefill/decode: where a prompt is computed, and the two requests that vLLM's NIXL connector needs.

Leg 1 goes to a prefill engine, which computes the prompt and answers with `kv_transfer_params`; leg 2 is the
client's request with those parameters and goes to the session's decode engine, which fetches the KV blocks.
This version prefills remotely wherever it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

REQUEST_PREFILL: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""kv_transfer_params of leg 1: compute the prompt and keep its blocks for another engine to fetch."""


@dataclass(frozen=True)
class PrefillEngine:
    """A prefill engine that is up."""

    name: str
    revision: str
    """Revision of its group."""
    outstanding_tokens: int
    """Prompt tokens that it has been sent and not answered."""
    cached_tokens: int = 0
    """Tokens of this prompt that it is thought to hold."""


@dataclass(frozen=True)
class Local:
    """The decode engine computes the prompt itself."""

    reason: str


@dataclass(frozen=True)
class Remote:
    """A prefill engine computes the prompt."""

    engine: str
    reason: str


def one_sequence(body: Mapping[str, Any]) -> bool:
    """Whether a request asks for one sample of one prompt: vLLM hands over the KV blocks of one sequence."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
    samples = max((value for name in ("n", "best_of") if isinstance(value := body.get(name), int)), default=1)
    return samples <= 1 and not several and not body.get("use_beam_search")


def choose_prefill(
    engines: Sequence[PrefillEngine], *, revision: str, prompt_tokens: int, rng: Random
) -> Local | Remote:
    """The prefill engine with the least work ahead of this prompt's first token; local where there is none.

    Args:
        engines: prefill engines that are up.
        revision: of the session's decode engine; KV moves only within one revision.
        prompt_tokens: length of the prompt, estimated.
        rng: breaks ties.
    """
    paired = [engine for engine in engines if engine.revision == revision]
    if not paired:
        return Local("no prefill engine of the decode engine's revision is up")

    def work(engine: PrefillEngine) -> int:
        return engine.outstanding_tokens + max(0, prompt_tokens - engine.cached_tokens)

    least = min(work(engine) for engine in paired)
    chosen = rng.choice([engine for engine in paired if work(engine) == least])
    return Remote(chosen.name, f"least work: {least} prompt tokens")


def prefill_leg(body: Mapping[str, Any]) -> dict[str, Any]:
    """Body of leg 1: the client's, for one token, not streamed."""
    leg = {key: value for key, value in body.items() if key not in ("min_tokens", "stream_options")}
    leg |= {"stream": False, "max_tokens": 1, "kv_transfer_params": dict(REQUEST_PREFILL)}
    if "max_completion_tokens" in leg:
        leg["max_completion_tokens"] = 1
    return leg


def decode_leg(body: Mapping[str, Any], kv_transfer_params: Mapping[str, Any]) -> dict[str, Any]:
    """Body of leg 2: the client's, with leg 1's parameters verbatim: vLLM keeps adding fields."""
    return {**body, "kv_transfer_params": kv_transfer_params}
