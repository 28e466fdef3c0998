"""Streams of tokens in a trie, and the extents of KV blocks that hold their beginnings.

A block belongs to the stream in which it ends, since its hash covers everything before: a block that
straddles two segments is the later one's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from rolloutpool_sim.leap.request import Segment

if TYPE_CHECKING:
    from rolloutpool_sim.leap.request import State

_ENDLESS = 1 << 60

Path = list[tuple["Stream", int]]
"""The streams of a prompt, in order, each with the block at which the next one takes over."""


class Stream:
    """A node of the trie: one segment key behind a given prefix.

    `extents` are in order and without gaps, one following the other, unless the stream is `overlapping`
    (some blocks exist twice, as vLLM does not de-duplicate them); `offloaded` are those in a second tier.
    `growers` are the requests that decode in this stream at present, `loads` counts those that load blocks
    of it, and `users` those known to the engine whose prompts end in it.
    """

    __slots__ = (
        "children",
        "extents",
        "growers",
        "key",
        "loads",
        "offloaded",
        "overlapping",
        "parent",
        "users",
    )

    def __init__(self, parent: Stream | None, key: tuple[int, Hashable]) -> None:
        self.parent = parent
        self.key = key
        self.children: dict[tuple[int, Hashable], Stream] = {}
        self.extents: list[Extent] = []
        self.offloaded: list[Extent] = []
        self.growers: list[State] = []
        self.overlapping = False
        self.loads = 0
        self.users = 0

    def drop_if_unused(self) -> None:
        """Take this stream out of the trie, and its parents, if nothing is left of them."""
        stream = self
        while not (stream.extents or stream.offloaded or stream.users or stream.children):
            parent = stream.parent
            if parent is None:
                return
            del parent.children[stream.key]
            stream = parent


class Extent:
    """Cached blocks `lo`..`hi` (exclusive, counted from the start of the prompt) of one stream.

    All have the same `holders`; without any the extent is free and linked into the free queue by `before`
    and `after`. `grower` is the holder that appends blocks as it fills them. Of two extents with the same
    blocks the one with the smaller `born` was cached first.
    """

    __slots__ = ("after", "before", "born", "grower", "hi", "holders", "lo", "stream")

    def __init__(self, stream: Stream, lo: int, hi: int, *, born: int) -> None:
        self.stream = stream
        self.lo = lo
        self.hi = hi
        self.born = born
        self.holders: dict[State, None] = {}
        self.grower: State | None = None
        self.before = self.after = self


def link(extent: Extent, *, before: Extent) -> None:
    """Put `extent` into a ring of extents, just before another one."""
    extent.after, extent.before = before, before.before
    before.before.after = extent
    before.before = extent


def unlink(extent: Extent) -> None:
    """Take `extent` out of its ring."""
    extent.before.after, extent.after.before = extent.after, extent.before


class Trie:
    """All streams that have blocks or requests; bounded by these."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.root = Stream(None, (0, None))

    def path(self, prompt: Iterable[Segment]) -> Path:
        """Streams of a prompt, made where unknown, each with the block at which its successor begins.

        The last one, which the answer continues, has no end.
        """
        stream, before, tokens = self.root, 0, 0
        path: Path = []
        for segment in prompt:
            key = (before, segment.key)
            found = stream.children.get(key)
            if found is None:
                found = stream.children[key] = Stream(stream, key)
            stream = found
            before = segment.tokens
            tokens += before
            path.append((stream, tokens // self._block_size))
        path[-1] = (stream, _ENDLESS)
        return path

    def known(self, prompt: Iterable[Segment]) -> Path:
        """Like `path`, but only as far as the streams are known, and each only up to the prompt's tokens."""
        stream, before, tokens = self.root, 0, 0
        path: Path = []
        for segment in prompt:
            found = stream.children.get((before, segment.key))
            if found is None:
                break
            stream, before = found, segment.tokens
            tokens += before
            path.append((stream, tokens // self._block_size))
        return path
