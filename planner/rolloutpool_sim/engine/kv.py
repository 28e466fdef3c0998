"""Which blocks a request holds: prefix lookup, allocation and release (vLLM V1's KVCacheManager)."""

from collections.abc import Sequence

from rolloutpool_sim.engine.blocks import BlockPool
from rolloutpool_sim.engine.hashing import extend_hashes
from rolloutpool_sim.engine.request import RequestState


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that `tokens` tokens take."""
    return -(-tokens // block_size)


class KvManager:
    """Allocates the blocks of requests from one pool; a request's blocks are in its own state."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size

    def find_prefix(self, state: RequestState) -> list[int]:
        """Return the blocks of the longest cached prefix, never of all tokens: the last is recomputed."""
        if not self.pool.caching:
            return []
        self._extend_hashes(state)
        found: list[int] = []
        for prefix_hash in state.hashes[: (len(state.tokens) - 1) // self.block_size]:
            block = self.pool.lookup(prefix_hash)
            if block is None:
                break
            found.append(block)
        return found

    def grow(self, state: RequestState, new_tokens: int) -> bool:
        """Make room for `new_tokens` more of a running request; False, changing nothing, if there is none."""
        target = state.computed + new_tokens
        if target > len(state.blocks) * self.block_size:
            missing = blocks_for(target, self.block_size) - len(state.blocks)
            if missing > self.pool.free_blocks:
                return False
            state.blocks.extend(self.pool.allocate(missing))
        # Most steps of most requests neither need nor fill a block: they end here, which is what decoding
        # costs.
        if target // self.block_size > state.cached_blocks:
            self.cache(state, target)
        return True

    def admit(
        self,
        state: RequestState,
        *,
        hit: Sequence[int],
        new_tokens: int,
        remote_tokens: int = 0,
        reserved: int = 0,
    ) -> bool:
        """Give a request without blocks those of `hit`, and room for remote and newly computed tokens.

        Refused (False, changing nothing) unless the free blocks hold the whole sequence, not only its
        first chunk (vLLM's `scheduler_reserve_full_isl`), and leave `reserved` blocks. Blocks that wait
        for remote KV are not cached until it has arrived (`cache`).
        """
        # A hit on a free block takes that block out of the free queue, so it counts against the free ones.
        revived = sum(self.pool.is_free(block) for block in hit)
        free = self.pool.free_blocks - revived
        target = len(hit) * self.block_size + remote_tokens + new_tokens
        missing = blocks_for(target, self.block_size) - len(hit)
        if blocks_for(len(state.tokens), self.block_size) - len(hit) > free or missing > free - reserved:
            return False
        self.pool.touch(hit)
        state.blocks = [*hit, *self.pool.allocate(missing)]
        state.cached_blocks = len(hit)
        if not remote_tokens:
            self.cache(state, target)
        return True

    def missing_blocks(self, state: RequestState) -> int:
        """Blocks that a request still lacks to hold all of its present tokens."""
        return max(blocks_for(len(state.tokens), self.block_size) - len(state.blocks), 0)

    def cache(self, state: RequestState, tokens: int) -> None:
        """Enter the full blocks of the first `tokens` tokens into the prefix cache, once scheduled."""
        full = min(tokens, len(state.tokens)) // self.block_size
        if full <= state.cached_blocks or not self.pool.caching:
            return
        self._extend_hashes(state)
        for index in range(state.cached_blocks, full):
            self.pool.store(state.blocks[index], state.hashes[index])
        if self.pool.watcher is not None:
            self._tell(state, state.cached_blocks, full)
        state.cached_blocks = full

    def free(self, state: RequestState) -> None:
        """Give all blocks back, the tail first: the beginning of a prompt is shared most and goes last."""
        self.pool.release(reversed(self.take(state)))

    def take(self, state: RequestState) -> list[int]:
        """Take a request's blocks from it unreleased; the caller must release them, the tail first."""
        blocks = state.blocks
        state.blocks = []
        state.cached_blocks = 0
        return blocks

    def _tell(self, state: RequestState, first: int, full: int) -> None:
        """Tell the watcher of the blocks from `first` up to `full`."""
        assert self.pool.watcher is not None
        self.pool.watcher.stored(
            state.hashes[first:full],
            parent=state.hashes[first - 1] if first else None,
            tokens=state.tokens[first * self.block_size : full * self.block_size],
            cache_salt=state.request.cache_salt,
        )

    def _extend_hashes(self, state: RequestState) -> None:
        extend_hashes(state.hashes, state.tokens, block_size=self.block_size, seed=state.hash_seed)
