"""Which router a session belongs to: rendezvous hashing (highest random weight) over the routers.

Every router ranks all routers for a session by a hash of both names, so all agree without talking to one
another, and when a router comes or goes only sessions that it wins or had won move (Thaler and Ravishankar,
"Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking 6(1), 1998).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

_DIGEST_BYTES = 8


def ranking(key: bytes, routers: Iterable[str]) -> tuple[str, ...]:
    """The routers from the one that owns the key to the one that would own it last; O(n log n).

    Args:
        key: what is owned: `session_key` or the hash of a prompt.
        routers: names, in any order.
    """
    return tuple(sorted(set(routers), key=lambda name: (_weight(key, name), name), reverse=True))


def session_key(session: str) -> bytes:
    """The key of a named session."""
    return session.encode(errors="surrogatepass")


def _weight(key: bytes, router: str) -> bytes:
    # A router's name holds no NUL, so no two pairs of name and key are the same bytes.
    return blake2b(router.encode() + b"\0" + key, digest_size=_DIGEST_BYTES).digest()
