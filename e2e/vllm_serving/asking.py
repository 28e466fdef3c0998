"""What tests ask, and what they read from the answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_serving.engines import BLOCK_SIZE

ENGINE_HEADER = "x-rolloutpool-engine"
EDGE_TOKENS = 2
"""Tokens at the end of a prompt that may be cut differently once text follows."""
WORDS = ("quick", "brown", "fox", "lazy", "dog", "tool", "step", "problem")


def text(seed: int, words: int) -> str:
    """Words that differ from those of another seed from the first on."""
    return f"{seed} " + " ".join(WORDS[(seed * 7 + n * n + n) % len(WORDS)] for n in range(words))


def tokens(seed: int, count: int) -> list[int]:
    """Token ids that differ from those of another seed from the first on; none of them is special."""
    return [3 + (seed * 31 + n * n * 7 + n) % 500 for n in range(count)]


def user(content: str) -> dict[str, str]:
    """A message of the user."""
    return {"role": "user", "content": content}


def whole_blocks(count: int) -> int:
    """How many of the first `count` tokens fill whole KV blocks."""
    return max(count, 0) // BLOCK_SIZE * BLOCK_SIZE


def cached_tokens(usage: Mapping[str, Any] | None) -> int:
    """Prompt tokens that the engine says it found in its prefix cache."""
    details = (usage or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def same_answer(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two answers are equal but for their ids and times, and what the cache spared."""
    return _kept(left) == _kept(right)


def _kept(answer: Mapping[str, Any]) -> dict[str, Any]:
    dropped = ("id", "request_id", "created", "usage")
    return {name: value for name, value in answer.items() if name not in dropped}


def content(chunks: Sequence[Any]) -> str:
    """The text of a streamed chat answer's first choice."""
    return "".join(
        choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == 0
    )
