"""Addresses of hosts: looked up once for many connections, and kept for a moment.

A burst of connections to one engine would otherwise queue as many look-ups in the few threads that do them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable

KEPT_SECONDS = 10.0
"""How long addresses are used before the name is looked up again."""
MAX_KEPT = 1024

Lookup = Callable[[str], Awaitable[list[str]]]


async def look_up(host: str) -> list[str]:
    """Addresses of a host, from the system.

    Raises:
        OSError: it has none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class Names:
    """Remembers the addresses of hosts."""

    def __init__(self, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._known: dict[str, tuple[float, list[str]]] = {}
        """When they were found, and the addresses."""
        self._pending: dict[str, asyncio.Task[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """Addresses of a host, in the order in which to try them.

        Raises:
            OSError: it has none.
            UnicodeError: it cannot be a name.
        """
        if _is_address(host):
            return [host]
        found_at, known = self._known.get(host, (0.0, []))
        if known and asyncio.get_running_loop().time() - found_at < KEPT_SECONDS:
            return known
        pending = self._pending.get(host)
        if pending is None:
            pending = self._pending[host] = asyncio.ensure_future(self._find(host))
            pending.add_done_callback(_retrieve)
        # Whoever waits may be cancelled; the others still want the answer.
        return await asyncio.shield(pending)

    def forget(self, host: str) -> None:
        """Look this one up again next time: its addresses did not answer."""
        self._known.pop(host, None)

    def close(self) -> None:
        """Give up what is being looked up."""
        for pending in self._pending.values():
            pending.cancel()

    async def _find(self, host: str) -> list[str]:
        try:
            found = await self._lookup(host)
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[host] = (asyncio.get_running_loop().time(), found)
            return found
        finally:
            del self._pending[host]


def _retrieve(task: asyncio.Task[list[str]]) -> None:
    """Take note of a failure that nobody waits for any more."""
    if not task.cancelled():
        task.exception()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
