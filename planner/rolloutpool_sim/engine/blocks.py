"""The pool of KV cache blocks: allocation, reference counts, prefix cache, eviction (vLLM V1's BlockPool).

A block is an integer id. It is *used* while its reference count is above zero and *free* otherwise. A free
block keeps its contents and its hash, so that a later request with the same prefix can take it back, until
it is handed out for new contents. Free blocks wait in one queue, first to be reused first. Every operation
costs only the blocks it names, never the size of the pool.
"""

from collections import OrderedDict
from collections.abc import Iterable

from rolloutpool_sim.engine.watcher import CacheWatcher

NULL_BLOCK = 0
"""vLLM sets block 0 aside as a placeholder: a pool of `n` blocks has `n - 1` to hand out."""


class BlockPool:
    """A fixed number of KV blocks with prefix caching.

    `evicted` counts cached blocks that lost their contents to a new use, and `stored` those that got a hash.
    `watcher`, where there is one, is told of each.
    """

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        if num_blocks < 2:
            raise ValueError(f"a block pool needs 2 blocks or more (one is the null block), not {num_blocks}")
        self.num_blocks = num_blocks
        self.caching = caching
        self.evicted = 0
        self.stored = 0
        self.watcher: CacheWatcher | None = None
        self._references = [0] * num_blocks
        self._hash_of: list[int | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        # Blocks are not de-duplicated: two requests that compute the same prefix at once each keep their
        # own copy. Almost all hashes have one block, so the set of copies is only made when there is a
        # second.
        self._cached: dict[int, int | dict[int, None]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks with at least one holder (the null block is neither used nor free)."""
        return self.num_blocks - 1 - len(self._free)

    @property
    def usage(self) -> float:
        """Used fraction of the pool, 0..1, as `vllm:kv_cache_usage_perc` has it."""
        return self.used_blocks / (self.num_blocks - 1)

    @property
    def cached_blocks(self) -> int:
        """Blocks, used or free, whose contents can serve as a prefix.

        Costs the size of the cache: for tests.
        """
        return sum(1 if isinstance(found, int) else len(found) for found in self._cached.values())

    def references(self, block: int) -> int:
        """Holders of `block`."""
        return self._references[block]

    def is_free(self, block: int) -> bool:
        """Whether `block` is in the free queue."""
        return block in self._free

    def hash_of(self, block: int) -> int | None:
        """Prefix hash of the contents of `block`; None if it is not full or not cached."""
        return self._hash_of[block]

    def eviction_order(self) -> tuple[int, ...]:
        """Free blocks, the next to be reused first. Costs the size of the pool: for tests."""
        return tuple(self._free)

    def lookup(self, prefix_hash: int) -> int | None:
        """Return the block that has held `prefix_hash` longest, or None."""
        found = self._cached.get(prefix_hash)
        if found is None or isinstance(found, int):
            return found
        return next(iter(found))

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks for new contents from the front of the free queue; what they cached is evicted.

        Raises ValueError if there are too few; callers check `free_blocks` first.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked of a pool with {len(self._free)} free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            if self._hash_of[block] is not None:
                self._forget(block)
                self.evicted += 1
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a holder to each of `blocks`, taking those that were free out of the free queue."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a holder from each of `blocks`, given in the order in which they should be reused.

        Freed blocks without a hash go to the front of the queue (reused first, they can serve nobody),
        cached ones to its end, which makes eviction least recently used.
        """
        unhashed: list[int] = []
        for block in blocks:
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            if self._hash_of[block] is None:
                unhashed.append(block)
            else:
                self._free[block] = None
        for block in reversed(unhashed):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def store(self, block: int, prefix_hash: int) -> None:
        """Make the contents of the full block `block` findable under `prefix_hash`."""
        if not self.caching:
            return
        self._hash_of[block] = prefix_hash
        found = self._cached.get(prefix_hash)
        if found is None:
            self._cached[prefix_hash] = block
        elif isinstance(found, int):
            self._cached[prefix_hash] = {found: None, block: None}
        else:
            found[block] = None
        self.stored += 1

    def forget_all(self) -> None:
        """Make no block's contents findable any more. Costs the size of the pool."""
        self._hash_of = [None] * self.num_blocks
        self._cached.clear()
        if self.watcher is not None:
            self.watcher.cleared()

    def _forget(self, block: int) -> None:
        prefix_hash = self._hash_of[block]
        assert prefix_hash is not None
        self._hash_of[block] = None
        if self.watcher is not None:
            self.watcher.evicted(prefix_hash)
        found = self._cached[prefix_hash]
        if isinstance(found, int):
            del self._cached[prefix_hash]
            return
        del found[block]
        if not found:
            del self._cached[prefix_hash]
