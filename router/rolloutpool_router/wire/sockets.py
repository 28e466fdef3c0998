"""What is asked of TCP sockets beyond reading and writing."""

from __future__ import annotations

import asyncio
import resource
import socket

PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""TCP keepalive of quiet connections: a machine that is gone without a word is noticed within 35 s."""
_ESTABLISHED = 1
"""First byte of Linux's struct tcp_info: the connection is open both ways."""
_RESET_ON_CLOSE = b"\1\0\0\0\0\0\0\0"
"""struct linger: on, 0 s."""


def allow_open_files() -> int:
    """Raise this process's soft limit of open files to the hard one; the limit that then holds.

    A relayed request takes two, and without a free one engines look unreachable.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def probe(transport: asyncio.BaseTransport) -> None:
    """Have the kernel probe a quiet connection."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def peer_has_left(transport: asyncio.BaseTransport) -> bool:
    """The other side closed or reset the connection; what it sent before may still be unread.

    Says so also while nobody reads. Only Linux tells; elsewhere always False.
    """
    sock: socket.socket | None = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_INFO", None)
    if sock is None or option is None:
        return False
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, option, 1)[0] != _ESTABLISHED
    except OSError:
        return True


def reset_on_close(transport: asyncio.BaseTransport) -> None:
    """Make the close of a connection a reset, which nobody can take for the end of an answer."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
