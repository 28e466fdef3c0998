"""The block pool against a plain model of it, and its eviction order."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rolloutpool_sim.engine.blocks import NULL_BLOCK, BlockPool
from rolloutpool_sim.engine.hashing import extend_hashes, salt_seed


def test_blocks_are_handed_out_in_order_and_the_null_block_never() -> None:
    pool = BlockPool(5)
    assert pool.allocate(4) == [1, 2, 3, 4]
    assert (pool.free_blocks, pool.used_blocks, pool.usage) == (0, 4, 1.0)
    assert pool.references(NULL_BLOCK) == 0
    with pytest.raises(ValueError, match="1 blocks asked of a pool with 0 free"):
        pool.allocate(1)


def test_the_tail_of_a_request_is_evicted_first_and_requests_in_order_of_their_end() -> None:
    pool = BlockPool(7)
    first, second = pool.allocate(3), pool.allocate(3)
    for block in (*first, *second):
        pool.store(block, 100 + block)
    pool.release(reversed(second))
    pool.release(reversed(first))
    assert pool.eviction_order() == (6, 5, 4, 3, 2, 1)
    pool.touch([pool.lookup(104) or 0])
    assert pool.allocate(2) == [6, 5]
    assert pool.lookup(106) is None
    assert pool.lookup(103) == 3
    assert pool.evicted == 2


def test_blocks_without_a_hash_are_reused_first() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(4)
    pool.store(blocks[0], 7)
    pool.release(reversed(blocks))
    assert pool.eviction_order() == (4, 3, 2, 1)
    blocks = pool.allocate(2)
    assert blocks == [4, 3]
    assert pool.evicted == 0


def test_a_touched_block_moves_to_the_end_of_the_queue_when_freed() -> None:
    pool = BlockPool(4)
    for block in pool.allocate(3):
        pool.store(block, block)
    pool.release([1, 2, 3])
    pool.touch([1])
    pool.release([1])
    assert pool.eviction_order() == (2, 3, 1)


def test_copies_of_a_prefix_serve_in_order_and_survive_each_other() -> None:
    pool = BlockPool(4)
    one, two, three = pool.allocate(3)
    for block in (one, two, three):
        pool.store(block, 9)
    assert pool.lookup(9) == one
    assert (pool.stored, pool.cached_blocks) == (3, 3)
    pool.release([one])
    assert pool.allocate(1) == [one]
    assert pool.lookup(9) == two
    pool.release([two])
    pool.release([three])
    pool.allocate(2)
    assert pool.lookup(9) is None
    assert pool.cached_blocks == 0


def test_without_caching_nothing_is_found() -> None:
    pool = BlockPool(3, caching=False)
    block = pool.allocate(1)[0]
    pool.store(block, 1)
    assert pool.lookup(1) is None
    assert pool.hash_of(block) is None


def test_a_pool_needs_room() -> None:
    with pytest.raises(ValueError, match="needs 2 blocks or more"):
        BlockPool(1)


class PoolModel(RuleBasedStateMachine):
    """Holders take, share and give back blocks; the pool is compared with what they hold."""

    SIZE = 12

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.SIZE + 1)
        self.holders: list[list[int]] = []
        self.next_hash = 0

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        free = self.pool.eviction_order()
        if count > len(free):
            with pytest.raises(ValueError, match="free"):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        assert tuple(blocks) == free[:count]
        assert all(self.pool.hash_of(block) is None for block in blocks)
        self.holders.append(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), same=st.booleans())
    def fill(self, data: st.DataObject, same: bool) -> None:
        blocks = data.draw(st.sampled_from(self.holders))
        for block in blocks:
            if self.pool.hash_of(block) is None:
                self.next_hash += 0 if same and self.next_hash else 1
                self.pool.store(block, self.next_hash)

    @rule(wanted=st.integers(1, 30))
    def share(self, wanted: int) -> None:
        block = self.pool.lookup(wanted)
        if block is not None:
            assert self.pool.hash_of(block) == wanted
            self.pool.touch([block])
            self.holders.append([block])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        blocks = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        before = self.pool.eviction_order()
        self.pool.release(reversed(blocks))
        after = self.pool.eviction_order()
        kept = [block for block in after if block in before]
        assert tuple(kept) == before, "a release must not reorder what was free"

    @invariant()
    def blocks_are_conserved(self) -> None:
        held = [block for blocks in self.holders for block in blocks]
        assert self.pool.free_blocks + self.pool.used_blocks == self.SIZE
        assert self.pool.used_blocks == len(set(held))
        for block in range(1, self.SIZE + 1):
            assert self.pool.references(block) == held.count(block)
            assert self.pool.is_free(block) == (block not in held)


TestPoolModel = PoolModel.TestCase


def _hashes(tokens: list[int], salt: str = "") -> list[int]:
    hashes: list[int] = []
    extend_hashes(hashes, tokens, block_size=4, seed=salt_seed(salt))
    return hashes


@pytest.mark.parametrize(
    ("change", "equal_blocks"),
    [
        pytest.param(lambda t: [*t, 9, 9, 9, 9], 3, id="longer"),
        pytest.param(lambda t: t[:11], 2, id="shorter"),
        pytest.param(lambda t: [t[0] + 1, *t[1:]], 0, id="first token"),
        pytest.param(lambda t: [*t[:5], t[5] + 1, *t[6:]], 1, id="second block"),
    ],
)
def test_hashes_cover_the_whole_prefix(change: Callable[[list[int]], list[int]], equal_blocks: int) -> None:
    tokens = list(range(12))
    ours, theirs = _hashes(tokens), _hashes(change(tokens))
    same = [a == b for a, b in zip(ours, theirs, strict=False)]
    assert same == [index < equal_blocks for index in range(len(same))]


def test_hashes_depend_on_the_salt_and_can_be_extended() -> None:
    tokens = list(range(12))
    assert set(_hashes(tokens)).isdisjoint(_hashes(tokens, "other"))
    hashes = _hashes(tokens[:6])
    extend_hashes(hashes, tokens, block_size=4, seed=salt_seed(""))
    assert hashes == _hashes(tokens)
