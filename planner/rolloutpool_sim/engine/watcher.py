"""What an engine tells of its prefix cache to whoever wants to know: vLLM's KV events."""

from collections.abc import Sequence
from typing import Protocol


class CacheWatcher(Protocol):
    """Is told of every change of a prefix cache, as it happens."""

    def stored(
        self, hashes: Sequence[int], *, parent: int | None, tokens: Sequence[int], cache_salt: str
    ) -> None:
        """Full blocks that follow each other entered the cache.

        `parent` is the hash of the block before them, None where they begin a prompt; `tokens` are theirs.
        """

    def evicted(self, prefix_hash: int) -> None:
        """A cached block was handed out for new contents."""

    def cleared(self) -> None:
        """No block's contents can be found any more."""
