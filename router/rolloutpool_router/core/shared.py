"""Prompt prefixes that resident sessions share on one engine: charged once, however many hold them.

A prompt is cut at marks that lie ever further apart, so that a session costs a handful of keys; the blocks
between two marks are held once while any resident session has that prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

from rolloutpool_router.core.prefix import MAX_CHUNKS, PrefixKey

MARKS = tuple(
    sorted({n for power in range(10) for n in (2**power, 3 * 2**power // 2) if 1 <= n <= MAX_CHUNKS})
)
"""Chunks of a prompt at which its prefix is marked: 1, 2, 3, 4, 6, 8, 12, ... 512."""
CHUNK_TOKENS = 64.0
"""Tokens of one chunk where the prompt's length is not known."""


Mark = tuple[PrefixKey, float]
"""A piece of a prompt's prefix: the key of all of the prompt up to its end, and the KV blocks of the piece.

A plain tuple, since the garbage collector does not go through those of numbers: sessions hold a million.
"""


def marks(prefix: Sequence[PrefixKey], *, prompt_tokens: int, block_size: int) -> tuple[Mark, ...]:
    """The pieces of a prompt.

    Args:
        prefix: keys of its leading chunks (`prefix.Prompt.prefix_keys`).
        prompt_tokens: length of the prompt; 0 if unknown.
        block_size: KV block size, in tokens.
    """
    if not prefix:
        return ()
    chunk_blocks = CHUNK_TOKENS / block_size
    if prompt_tokens and len(prefix) < MAX_CHUNKS:
        chunk_blocks = prompt_tokens / (len(prefix) + 0.5) / block_size
    found: list[Mark] = []
    before = 0
    for chunks in MARKS:
        if chunks > len(prefix):
            break
        found.append((prefix[chunks - 1], (chunks - before) * chunk_blocks))
        before = chunks
    return tuple(found)


def blocks_of(pieces: Sequence[Mark]) -> float:
    """KV blocks of all pieces of a prompt."""
    return sum([blocks for _, blocks in pieces]) if pieces else 0.0


class SharedPrefixes:
    """The marks that the residents of one engine hold."""

    def __init__(self) -> None:
        self._held: dict[PrefixKey, tuple[int, float]] = {}
        """By key: how many hold it, and the blocks that it is charged with, those of the first who came."""
        self.blocks = 0.0
        """KV blocks of all marks held, each counted once."""

    def missing(self, pieces: Sequence[Mark]) -> float:
        """Blocks that a newcomer with these marks would add."""
        if not pieces:
            return 0.0
        return sum([blocks for key, blocks in pieces if key not in self._held])

    def add(self, pieces: Sequence[Mark]) -> None:
        """A session with these marks came."""
        for key, its_blocks in pieces:
            holders, blocks = self._held.get(key, (0, its_blocks))
            if not holders:
                self.blocks += blocks
            self._held[key] = (holders + 1, blocks)

    def remove(self, pieces: Sequence[Mark]) -> None:
        """A session with these marks left."""
        for key, _ in pieces:
            holders, blocks = self._held[key]
            if holders > 1:
                self._held[key] = (holders - 1, blocks)
            else:
                del self._held[key]
                self.blocks -= blocks
        if not self._held:
            self.blocks = 0.0
