"""Lends one address of a cell to the machine's loopback.

Run as `python -m cluster.cell.relay LISTENER NAMESPACE HOST PORT`: LISTENER is an inherited listening socket
made in the machine's namespace (a socket stays where it was made), NAMESPACE the path of the network
namespace from which HOST:PORT is dialled. Ends when standard input does, so it never outlives its caller.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the reader's end, then pass the half-close on."""
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
) -> None:
    try:
        up_reader, up_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    pumps = [
        asyncio.create_task(_pump(reader, up_writer)),
        asyncio.create_task(_pump(up_reader, writer)),
    ]
    try:
        await asyncio.gather(*pumps)
    finally:
        writer.close()
        up_writer.close()


async def relay(listener: socket.socket, host: str, port: int) -> None:
    """Serve until standard input ends."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _connection(reader, writer, host, port)

    end = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), end.set)
    await asyncio.start_server(accepted, sock=listener)
    await end.wait()


def enter(namespace: Path) -> None:
    """Join a network namespace.

    Raises:
        OSError: as setns(2) does.
    """
    with namespace.open() as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(namespace))


def main() -> None:
    """Join the namespace, serve."""
    listener, namespace, host, port = sys.argv[1:]
    enter(Path(namespace))
    asyncio.run(relay(socket.socket(fileno=int(listener)), host, int(port)))


if __name__ == "__main__":
    main()
