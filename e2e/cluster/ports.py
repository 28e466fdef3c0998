"""Free TCP ports of the loopback interface."""

import contextlib
import random
import socket

from cluster.errors import ClusterError

HOST = "127.0.0.1"
FIRST_PORT, LAST_PORT = 10_000, 19_999
"""Below the ports that a kernel gives to outgoing connections, so that no client can have the port of a
server that a test stops and starts again; beside those that a local pool takes."""


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that nothing listens on now.

    Raises:
        ClusterError: there are not as many.
    """
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(range(FIRST_PORT, LAST_PORT + 1), k=LAST_PORT + 1 - FIRST_PORT):
            if len(ports) == count:
                break
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server((HOST, port)))
                ports.append(port)
    if len(ports) < count:
        raise ClusterError(
            f"{count} ports from {FIRST_PORT} to {LAST_PORT} of {HOST} are wanted, {len(ports)} are free"
        )
    return ports
