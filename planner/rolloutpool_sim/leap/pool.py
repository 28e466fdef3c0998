"""The pool of KV blocks as extents: prefix lookup, allocation, release and eviction, as vLLM's block pool.

vLLM frees a request's blocks tail first, takes new blocks from the front of the free queue, and puts freed
blocks without a hash at that front. So a free extent is evicted from its end, and the queue is a number of
blank blocks (which need no identity) followed by extents in least recently used order.
"""

from typing import NamedTuple

from rolloutpool_sim.leap.request import State
from rolloutpool_sim.leap.streams import Extent, Path, Stream, link, unlink

Piece = tuple[Extent, int, int]
"""Blocks `lo`..`hi` (exclusive) of an extent."""


class Prefix(NamedTuple):
    """The cached beginning of a prompt: its pieces in order, their blocks, and how many of these are free."""

    pieces: list[Piece]
    blocks: int
    free: int


class ExtentPool:
    """Blocks of one engine. `free` counts those without a holder, `evicted` cached ones that were reused."""

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        self.usable = num_blocks - 1  # vLLM sets one block aside as a placeholder
        self.free = self.usable
        self.evicted = 0
        self._blank = self.usable
        self._block_size = block_size
        self._caching = caching
        self._births = 0
        self._queue = Extent(Stream(None, (0, None)), 0, 0, born=0)  # a ring; this one is both its ends

    def find(self, path: Path, limit: int, step: int) -> Prefix:
        """Return the cached beginning of a prompt, up to block `limit`.

        `step` is the batch's present step, from which follows how far decoding requests have come.
        """
        pieces: list[Piece] = []
        pos = revived = 0
        for stream, end in path:
            if end > limit:
                end = limit
            if pos >= end:
                continue
            self.catch_up(stream, step)
            if stream.overlapping:
                found = _oldest_copies(stream, pos, end)
            else:
                found = [(one, one.lo, min(one.hi, end)) for one in stream.extents if one.lo < end]
            for piece in found:
                pos = piece[2]
                if not piece[0].holders:
                    revived += pos - piece[1]
            pieces += found
            if pos < end:
                break
        return Prefix(pieces, pos, revived)

    def hold(self, state: State, prefix: Prefix) -> None:
        """Make `state`, which holds nothing yet, a holder of `prefix`."""
        for extent, lo, hi in prefix.pieces:
            if lo > extent.lo:
                self._split(extent, lo)
            if hi < extent.hi:
                extent = self._split(extent, hi)
            elif extent.grower is not None:  # what it appends from now on is its own
                extent.grower.tail = None
                extent.grower = None
            if not extent.holders:
                self.free -= hi - lo
                unlink(extent)
            extent.holders[state] = None
            state.extents.append(extent)
        state.full = prefix.blocks

    def take(self, count: int) -> None:
        """Hand out `count` blocks, at most `free`: blank ones, then (evicted) the least recently used."""
        self.free -= count
        if count <= self._blank:
            self._blank -= count
            return
        count -= self._blank
        self._blank = 0
        self.evicted += count
        while count:
            extent = self._queue.after
            size = extent.hi - extent.lo
            if size > count:
                extent.hi -= count
                return
            count -= size
            unlink(extent)
            self._forget(extent)

    def catch_up(self, stream: Stream, step: int) -> None:
        """Cache what the requests that decode in `stream` have filled by `step`, in the order of filling."""
        growers = stream.growers
        if len(growers) > 1:
            growers = sorted(growers, key=lambda state: (-state.offset, state.order))
        for state in growers:
            self.store(state, (step + state.offset) // self._block_size)

    def store(self, state: State, full: int) -> None:
        """Cache the blocks of `state` before block `full`, which the steps scheduled so far fill."""
        pos = state.full
        if full <= pos or not self._caching:
            return
        path = state.path
        while pos < full:
            stream, end = path[state.at]
            if end <= pos:
                state.at += 1
                continue
            end = min(end, full)
            tail = state.tail
            if tail is not None and tail.stream is stream and not stream.overlapping:
                tail.hi = end
            else:
                self._append(state, stream, pos, end)
            pos = end
        state.full = full

    def release(self, state: State, blocks: int) -> None:
        """Take its `blocks` blocks from `state`, the tail first; cached ones nobody else holds queue up."""
        blank = blocks - state.full
        self._blank += blank
        freed = blank
        if state.tail is not None:
            state.tail.grower = None
            state.tail = None
        last: Extent | None = None
        for extent in reversed(state.extents):
            holders = extent.holders
            del holders[state]
            if holders:
                last = None
                continue
            freed += extent.hi - extent.lo
            stream = extent.stream
            if last is not None and last.lo == extent.hi and last.stream is stream and not stream.overlapping:
                last.lo = extent.lo
                stream.extents.remove(extent)
            else:
                link(extent, before=self._queue)
                last = extent
        self.free += freed
        state.extents.clear()
        state.full = state.at = 0

    def _append(self, state: State, stream: Stream, lo: int, hi: int) -> None:
        """Make a new extent the tail of what `state` holds."""
        self._births += 1
        extent = Extent(stream, lo, hi, born=self._births)
        extent.holders[state] = None
        if stream.extents and stream.extents[-1].hi > lo:
            stream.overlapping = True
        stream.extents.append(extent)
        state.extents.append(extent)
        if state.tail is not None:
            state.tail.grower = None
        state.tail = extent
        extent.grower = state

    def _split(self, extent: Extent, at: int) -> Extent:
        """Cut the blocks before `at` off `extent` and return them as one of their own."""
        lower = Extent(extent.stream, extent.lo, at, born=extent.born)
        extent.lo = at
        extents = extent.stream.extents
        extents.insert(extents.index(extent), lower)
        if extent.holders:
            lower.holders = extent.holders.copy()
            for holder in extent.holders:
                holder.extents.insert(holder.extents.index(extent), lower)
        else:
            link(lower, before=extent.after)
        return lower

    def _forget(self, extent: Extent) -> None:
        stream = extent.stream
        extents = stream.extents
        extents.remove(extent)
        if len(extents) < 2:
            stream.overlapping = False
            if not extents:
                stream.drop_if_unused()


def _oldest_copies(stream: Stream, pos: int, end: int) -> list[Piece]:
    """Cached blocks from `pos` up to `end` of an overlapping stream, of each the copy cached first."""
    pieces: list[Piece] = []
    while pos < end:
        copies = [one for one in stream.extents if one.lo <= pos < one.hi]
        if not copies:
            break
        best = min(copies, key=lambda one: one.born)
        older = [one.lo for one in stream.extents if one.born < best.born and pos < one.lo]
        stop = min([best.hi, end, *older])
        pieces.append((best, pos, stop))
        pos = stop
    return pieces
