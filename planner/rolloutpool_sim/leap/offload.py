"""CPU memory as a second tier of the prefix cache, as vLLM's native KV offloading (`OffloadingConnector`).

As there: every full block is copied to the CPU once it is computed, an LRU cache of its own holds the
copies, a waiting request's hit in the GPU cache is continued in the CPU's, and what is found there is copied
into newly allocated blocks while the request waits and others run; a request whose blocks another one is
loading waits for those. Copies from the CPU run one after the other.

Simpler than there: copies to the CPU cost no time and hold no blocks back; the blocks of an answer are copied
when its request leaves the batch, all at once; a stream that is being loaded counts as loading as a whole;
the block with a prompt's last token is always computed, never loaded; and a request that is aborted while its
blocks are loaded gives them back at once.
"""

from dataclasses import dataclass

from rolloutpool_sim.leap.streams import Extent, Path, Stream, link, unlink


@dataclass(frozen=True, kw_only=True, slots=True)
class Offload:
    """A CPU tier of `blocks` KV blocks; a load takes `seconds_per_load` and `seconds_per_block` a block.

    Raises ValueError for sizes or times that make no sense.
    """

    blocks: int
    seconds_per_block: float
    seconds_per_load: float = 0.0

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise ValueError(
                f"an offload tier needs at least one block, not {self.blocks}; leave it out instead"
            )
        if self.seconds_per_block < 0 or self.seconds_per_load < 0:
            raise ValueError("seconds_per_block and seconds_per_load must not be negative")


class CpuTier:
    """The blocks in CPU memory. Each stream's are its first ones, in extents by when they were last used."""

    def __init__(self, offload: Offload) -> None:
        self.used = 0
        self._offload = offload
        self._busy_until = 0.0
        self._queue = Extent(Stream(None, (0, None)), 0, 0, born=0)  # a ring; this one is both its ends

    def find(self, path: Path, *, start: int, limit: int) -> int:
        """Return to which block, up to `limit`, a prompt is here, but at least `start`.

        What is here of it, before `start` too, has then been used.
        """
        here = 0
        for stream, end in path:
            end = min(end, limit)
            if end > here and stream.offloaded:
                here = min(stream.offloaded[-1].hi, end)
            if here < end:
                break
        self.store(path, here)
        return max(start, here)

    def store(self, path: Path, full: int) -> None:
        """Have the first `full` blocks of a prompt as the most recently used, the first of them most."""
        parts: list[tuple[Stream, int, int]] = []
        pos = 0
        for stream, end in path:
            end = min(end, full)
            if end > pos:
                parts.append((stream, pos, end))
                pos = end
        for stream, lo, hi in reversed(parts):
            self._renew(stream, lo, hi)
        while self.used > self._offload.blocks:
            self._evict(self.used - self._offload.blocks)

    def load(self, blocks: int, now: float) -> float:
        """Begin to load `blocks` blocks; return when they will be there."""
        begin = max(now, self._busy_until)
        self._busy_until = begin + self._offload.seconds_per_load + blocks * self._offload.seconds_per_block
        return self._busy_until

    def _renew(self, stream: Stream, lo: int, hi: int) -> None:
        """Put blocks `lo`..`hi`, the first ones of `stream`, at the end of the queue, new or not."""
        later: list[Extent] = []
        self.used += hi - lo
        for extent in stream.offloaded:
            if extent.hi <= hi:
                self.used -= extent.hi - extent.lo
                unlink(extent)
            else:
                self.used -= max(hi - extent.lo, 0)
                extent.lo = max(extent.lo, hi)
                later.append(extent)
        first = Extent(stream, lo, hi, born=0)
        link(first, before=self._queue)
        stream.offloaded = [first, *later]

    def _evict(self, count: int) -> None:
        """Drop at most `count` blocks from the least recently used extent."""
        extent = self._queue.after
        size = extent.hi - extent.lo
        if size > count:
            extent.hi -= count
            self.used -= count
            return
        self.used -= size
        unlink(extent)
        extent.stream.offloaded.remove(extent)
        extent.stream.drop_if_unused()
