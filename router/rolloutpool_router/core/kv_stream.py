"""The stream of an engine's KV events: what came twice, what is missing, and whether the engine began anew.

Each batch has a number, counted from 0 by the engine's publisher. Where a live batch is not the next one, the
publisher is asked to repeat what is missing; the repetition begins with the last batch that was applied, to
see that it is the same publisher's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from xxhash import xxh3_64_intdigest

from rolloutpool_router.core.kv_blocks import BlockCounts, EngineBlocks
from rolloutpool_router.core.kv_events import Malformed, decode_event, raw_events


@dataclass
class KvCounts:
    """What came from all engines, since the router began."""

    batches: int = 0
    events: int = 0
    malformed: int = 0
    """Messages and events that were none of vLLM's, passed over."""
    gaps: int = 0
    """Times that batches were missing."""
    replays: int = 0
    """Times that a publisher repeated them."""
    resets: int = 0
    """Times that all that was known of an engine's cache was given up."""
    blocks: BlockCounts = field(default_factory=BlockCounts)


class KvStream:
    """One engine's batches, in the order in which they must be applied."""

    def __init__(self, blocks: EngineBlocks, counts: KvCounts) -> None:
        self._blocks = blocks
        self._counts = counts
        self._applied = -1
        """Number of the last batch that was applied."""
        self._digest = 0
        """Hash of its payload."""
        self._live = -1
        """Number of the last one that came live."""

    @property
    def repeat_from(self) -> int:
        """Number with which a repetition should begin."""
        return max(self._applied, 0)

    def live(self, seq: int, payload: bytes) -> list[msgspec.Raw] | None:
        """Events to apply of a batch that came live; None if others are missing before it."""
        if seq <= self._live:
            self.reset()
        self._live = seq
        if seq > self._applied + 1:
            return None
        return self._accept(seq, payload) if seq > self._applied else []

    def repeated(self, seq: int, payload: bytes) -> list[msgspec.Raw]:
        """Events to apply of a batch that was repeated."""
        if seq == self._applied and xxh3_64_intdigest(payload) != self._digest:
            self.reset()
        if self._applied >= 0 and seq > self._applied + 1:
            self.reset()
        return self._accept(seq, payload) if seq > self._applied else []

    def after_gap(self, seq: int, payload: bytes) -> list[msgspec.Raw]:
        """Events to apply of the live batch that showed a gap, once the repetition is over."""
        if self._applied >= 0 and seq > self._applied + 1:
            self.reset()
        self._live = max(self._live, seq)
        return self._accept(seq, payload) if seq > self._applied else []

    def apply(self, event: msgspec.Raw) -> None:
        """Apply one event."""
        self._counts.events += 1
        try:
            decoded = decode_event(event)
        except Malformed:
            self._counts.malformed += 1
            return
        if decoded is not None:
            self._blocks.apply(decoded)

    def reset(self) -> None:
        """Give up all that is known of the engine's cache."""
        self._counts.resets += 1
        self._blocks.reset()
        self._applied, self._live, self._digest = -1, -1, 0

    def _accept(self, seq: int, payload: bytes) -> list[msgspec.Raw]:
        self._applied = seq
        self._digest = xxh3_64_intdigest(payload)
        self._counts.batches += 1
        try:
            return raw_events(payload)
        except Malformed:
            self._counts.malformed += 1
            return []
