"""Free TCP ports of the loopback interface."""

from __future__ import annotations

import contextlib
import random
import socket

from rolloutpool_operator.local.options import InvalidOptions

LOOPBACK = "127.0.0.1"
FIRST_PORT, LAST_PORT = 20_000, 32_000


class PortTaken(InvalidOptions):
    """The wanted port is in use; the message says what to do."""


def free_port() -> int:
    """A port that nothing listens on now, below those that the kernel gives to outgoing connections.

    A connection of another process can so never take the port of an engine that is being restarted.

    Raises:
        PortTaken: none is free.
    """
    ports = list(range(FIRST_PORT, LAST_PORT + 1))
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    raise PortTaken(f"no port from {FIRST_PORT} to {LAST_PORT} of {LOOPBACK} is free: stop what uses them")


def router_port(wanted: int) -> int:
    """The wanted port, or a free one for 0.

    Raises:
        PortTaken: something listens on it.
    """
    if wanted == 0:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, wanted))
        except OSError as error:
            raise PortTaken(
                f"port {wanted} of {LOOPBACK} is not free ({error}): choose another with --port"
            ) from None
    return wanted


class PortBook:
    """One port per name, the same for as long as this process lives, so that addresses outlast restarts."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}

    def port_of(self, name: str) -> int:
        """The name's port; a free one the first time."""
        if name not in self._ports:
            self._ports[name] = free_port()
        return self._ports[name]

    def forget(self, name: str) -> None:
        """Let the name's port go."""
        self._ports.pop(name, None)
