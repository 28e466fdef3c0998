"""What an engine's KV events say about prompts of token ids: which prefix keys it holds.

The engine names blocks by hashes of its own. They are mapped to the keys that `prompts` computes from a
request's token ids, through the token ids of each event and the block before: a block whose predecessor is
not known (it was stored before this router listened) is passed over with all that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from rolloutpool_router.core.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    number,
    numbers,
)
from rolloutpool_router.core.prefix import PrefixIndex
from rolloutpool_router.core.prompts import TOKEN_BYTES, blocks_per_key, chained, token_bytes, token_space

MAX_BLOCKS = 2**20
"""Blocks known of all engines together, each about 160 bytes."""
MAX_ENGINE_BLOCKS = 2**17
"""The same of one engine: 2 million tokens in blocks of 16."""
FULL_ATTENTION = "full_attention"
"""Kind of KV cache group that keeps a prompt's whole prefix; others give up blocks that are still of use."""


@dataclass
class BlockCounts:
    """Blocks that events spoke of, since the router began."""

    stored: int = 0
    """Mapped to a prompt's prefix."""
    removed: int = 0
    """Known ones that were evicted."""
    unmapped: int = 0
    """Stored where this router cannot tell the prefix: predecessor unknown, images, another block size."""


class EngineBlocks:
    """The blocks of one engine."""

    def __init__(
        self,
        index: PrefixIndex,
        engine: str,
        *,
        model: str,
        block_size: int,
        counts: BlockCounts,
        max_blocks: int = MAX_ENGINE_BLOCKS,
    ) -> None:
        """Know no block yet.

        Args:
            index: is told which keys the engine holds.
            engine: its name there.
            model: name of the base model, as requests give it.
            block_size: tokens of a block; blocks of another size are passed over.
            counts: of all engines.
            max_blocks: most blocks that are remembered; the ones stored first go first.
        """
        self._index = index
        self._engine = engine
        self._model = model
        self._block_size = block_size
        self._counts = counts
        self._per_key = blocks_per_key(block_size)
        self._known: dict[int, int] = {}
        """By the engine's hash: the key of the prefix that ends with the block, times `_per_key`, plus the
        block's place among those of one prompt key."""
        self._copies: dict[int, int] = {}
        """Further blocks with the same hash: requests that compute a prefix at once each keep their own."""
        self.max_blocks = max_blocks

    def __len__(self) -> int:
        return len(self._known)

    def apply(self, event: KvEvent) -> None:
        """Take in one event; never raises, whatever is in it."""
        if isinstance(event, AllBlocksCleared):
            self.reset()
        elif (event.medium or "GPU") != "GPU" or event.group_idx:
            return
        elif isinstance(event, BlockRemoved):
            self._remove(event)
        elif event.kv_cache_spec_kind in (None, FULL_ATTENTION):
            self._store(event)

    def reset(self) -> None:
        """Nothing is known of the engine any more."""
        self._known.clear()
        self._copies.clear()
        self._index.forget(self._engine)

    def _store(self, event: BlockStored) -> None:
        hashes = numbers(event.block_hashes)
        tokens = token_bytes(event.token_ids) if event.block_size == self._block_size else None
        before = self._before(event)
        if tokens is None or before is None or len(event.token_ids) != len(hashes) * self._block_size:
            self._counts.unmapped += len(hashes)
            return
        parent, place = before
        mapped = self._mapped(event)
        keys = chained(parent, tokens, self._block_size * TOKEN_BYTES)
        ends = []
        for block, key in zip(hashes[:mapped], keys[:mapped], strict=True):
            place = (place + 1) % self._per_key
            if block in self._known:
                self._copies[block] = self._copies.get(block, 0) + 1
            else:
                self._known[block] = key * self._per_key + place
            if place == self._per_key - 1:
                ends.append(key)
        self._counts.stored += mapped
        self._counts.unmapped += len(hashes) - mapped
        self._index.record(ends, self._engine)
        if len(self._known) > self.max_blocks:
            self._shorten()

    def _before(self, event: BlockStored) -> tuple[int, int] | None:
        """Key and place of the block before an event's first; None if it is not known."""
        if event.parent_block_hash is not None:
            known = self._known.get(number(event.parent_block_hash))
            return divmod(known, self._per_key) if known is not None else None
        salt = _extras(event, 0)
        if len(salt) > 1 or not all(isinstance(part, str) for part in salt):
            return None
        return token_space(event.lora_name or self._model, "".join(salt)), self._per_key - 1

    def _mapped(self, event: BlockStored) -> int:
        """How many of an event's blocks hold tokens alone; a salt counts in the first of a prompt only."""
        if event.extra_keys is None:
            return len(event.block_hashes)
        first = 1 if event.parent_block_hash is None else 0
        places = range(first, len(event.block_hashes))
        return next((place for place in places if _extras(event, place)), len(event.block_hashes))

    def _remove(self, event: BlockRemoved) -> None:
        for block in numbers(event.block_hashes):
            copies = self._copies.pop(block, 0)
            if copies > 1:
                self._copies[block] = copies - 1
            elif not copies:
                self._evict(block)

    def _evict(self, block: int) -> None:
        known = self._known.pop(block, None)
        if known is None:
            return
        self._counts.removed += 1
        key, place = divmod(known, self._per_key)
        # Blocks are evicted from the end of a prompt, so the last one of a key goes first.
        if place == self._per_key - 1:
            self._index.drop(key, self._engine)

    def _shorten(self) -> None:
        """Forget the older half."""
        for block in list(islice(self._known, len(self._known) - self.max_blocks // 2)):
            self._copies.pop(block, None)
            self._evict(block)
        self._known = dict(self._known)


def _extras(event: BlockStored, place: int) -> list[Any]:
    """What a block's hash covers beside its tokens, the block before and the adapter."""
    extras = event.extra_keys
    own = extras[place] if extras is not None and place < len(extras) else None
    if not own:
        return []
    return own[1:] if event.lora_name is not None and own[0] == event.lora_name else own
