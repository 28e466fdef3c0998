"""Reads the KV events that engines publish over ZeroMQ, and keeps the prefix index true to them.

`pool.KvEvents` follows the engines of the view in force, one `follower.Follower` each; what a message means
is in `core.kv_events`, `core.kv_stream` and `core.kv_blocks`. It must not decide what an event means, nor
hold the event loop up for longer than a few events take.
"""

from rolloutpool_router.kv_events.metrics import KvCollector
from rolloutpool_router.kv_events.pool import KvEvents

__all__ = ["KvCollector", "KvEvents"]
