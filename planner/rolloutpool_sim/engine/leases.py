"""KV blocks that a prefill engine keeps for the decode engine that will read them, each until a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rolloutpool_sim.engine.blocks import BlockPool

_EXTENSION = 2 / 3
"""A heartbeat of the decode engine extends a lease by this part of its full length (NIXL's connector)."""


@dataclass(frozen=True, slots=True)
class _Lease:
    ends_at: float
    blocks: Sequence[int]
    tokens: int
    read: bool = False


class Leases:
    """Blocks held for readers.

    Times are engine seconds. Bounded by the pool: each lease holds blocks of it.
    """

    def __init__(self, pool: BlockPool, seconds: float) -> None:
        self._pool = pool
        self._seconds = seconds
        self._held: dict[str, _Lease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def grant(self, request_id: str, blocks: Sequence[int], *, tokens: int, now: float) -> None:
        """Keep `blocks`, which hold `tokens` tokens, for the reader of `request_id`."""
        self._held[request_id] = _Lease(now + self._seconds, blocks, tokens)

    def extend(self, request_id: str, now: float) -> bool:
        """Keep the blocks a while longer for a reader that still waits. False if the lease is gone."""
        lease = self._held.get(request_id)
        if lease is None or lease.read:
            return False
        self._held[request_id] = replace(lease, ends_at=max(lease.ends_at, now + self._seconds * _EXTENSION))
        return True

    def read(self, request_id: str, *, until: float) -> int | None:
        """Let a reader have the blocks until `until`, then free them.

        Returns the tokens they hold, or None if the lease has ended or its blocks are being read already.
        """
        lease = self._held.get(request_id)
        if lease is None or lease.read:
            return None
        self._held[request_id] = replace(lease, ends_at=until, read=True)
        return lease.tokens

    def next_end(self) -> float | None:
        """When the first lease ends, or None if there is none."""
        return min((lease.ends_at for lease in self._held.values()), default=None)

    def expire(self, now: float) -> int:
        """Free the blocks of the leases that have ended; return how many of them nobody had read."""
        ended = [request_id for request_id, lease in self._held.items() if lease.ends_at <= now]
        unread = 0
        for request_id in ended:
            lease = self._held.pop(request_id)
            unread += not lease.read
            self._pool.release(reversed(lease.blocks))
        return unread
