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


def one_sequence(body: Mapping[str, Any], *, prompts: int) -> bool:
    """Whether a request asks for one sample of one prompt: vLLM hands over the KV blocks of one sequence."""
    samples = max((value for name in ("n", "best_of") if isinstance(value := body.get(name), int)), default=1)
    return samples <= 1 and prompts <= 1 and not body.get("use_beam_search")


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


PREFILL_LEG_DROPS = frozenset({"min_tokens", "stream_options"})
"""Fields of the client's body that leg 1 leaves out: they do not go with one token, not streamed."""


def prefill_leg(body: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of leg 1 that differ from the client's body: one token, not streamed."""
    values: dict[str, Any] = {"stream": False, "kv_transfer_params": REQUEST_PREFILL}
    if isinstance(sampling := body.get("sampling_params"), dict):  # /inference/v1/generate
        kept = {name: value for name, value in sampling.items() if name != "min_tokens"}
        return values | {"sampling_params": kept | {"max_tokens": 1}}
    if "input" in body:  # /v1/responses, which knows no max_tokens
        return values | {"max_output_tokens": 1}
    return values | dict.fromkeys({"max_tokens"} | ({"max_completion_tokens"} & body.keys()), 1)


def decode_leg(kv_transfer_params: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of leg 2 that differ from the client's body: the parameters verbatim, since vLLM adds some."""
    return {"kv_transfer_params": kv_transfer_params}
