"""Sessions of several turns, one after the other on each connection, as fast as the router answers."""

import asyncio
import json
import sys
from dataclasses import asdict, dataclass

import uvloop

from router_bench.clients.connection import Connection, chat, connect, prompt
from router_bench.processes import HOST

OK = 200
REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class Settings:
    """What to send."""

    port: int
    sessions: int
    """How far they are numbered: the last is NAME-(sessions - 1)."""
    name: str
    """What session ids begin with."""
    rollout_class: str
    turns: int = 1
    mixed: bool = False
    """Sessions have 1, 2, ... `turns` turns in turn, else all as many."""
    finish_every: int = 0
    """Every so-manieth session is finished by POST /finish_session; 0: none."""
    first: int = 0
    """The number of the first."""
    prompt_bytes: int = 1000
    connections: int = 32
    most_seconds: float = 120.0
    """No session begins after this time."""


class _Lane:
    """One connection, its session, and the turns that it still has to go."""

    def __init__(self) -> None:
        self.serial = -1
        self.turn = 0
        self.turns = 0


class Sessions:
    """The generator."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lanes: dict[Connection, _Lane] = {}
        self._begun = settings.first
        self.ended = 0
        self.requests = 0
        self.failed = 0
        self._over = asyncio.Event()
        self._active = 0
        self._until = asyncio.get_running_loop().time() + settings.most_seconds

    async def run(self) -> None:
        """Run all sessions; a line on stdout tells now and then how far it is."""
        made = await connect(self._settings.port, self._settings.connections, self._done)
        self._lanes = {connection: _Lane() for connection in made}
        self._active = len(made)
        for connection in made:
            self._next_session(connection)
        while not self._over.is_set():
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._over.wait()
            except TimeoutError:
                self._tell()
        self._tell()
        for connection in made:
            connection.close()

    def _tell(self) -> None:
        told = {"sessions": self.ended, "requests": self.requests, "failed": self.failed}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()

    def _next_session(self, connection: Connection) -> None:
        settings, lane = self._settings, self._lanes[connection]
        if self._begun >= settings.sessions or asyncio.get_running_loop().time() > self._until:
            self._retire()
            return
        lane.serial, self._begun = self._begun, self._begun + 1
        lane.turn = 0
        lane.turns = 1 + lane.serial % settings.turns if settings.mixed else settings.turns
        self._next_turn(connection, lane)

    def _next_turn(self, connection: Connection, lane: _Lane) -> None:
        body = prompt(lane.serial, self._settings.prompt_bytes, history=lane.turn)
        session = f"{self._settings.name}-{lane.serial}"
        connection.send(chat(body, rollout_class=self._settings.rollout_class, session=session))

    def _done(self, connection: Connection, status: int) -> None:
        lane = self._lanes[connection]
        self.requests += 1
        self.failed += status != OK
        if status == 0:
            self._retire()
            return
        lane.turn += 1
        every = self._settings.finish_every
        if lane.turn < lane.turns:
            self._next_turn(connection, lane)
        elif lane.turn == lane.turns and every and lane.serial % every == 0:
            connection.send(finish(f"{self._settings.name}-{lane.serial}"))
        else:
            self.ended += 1
            self._next_session(connection)

    def _retire(self) -> None:
        self._active -= 1
        if not self._active:
            self._over.set()


def finish(session: str) -> bytes:
    """The request that ends a session."""
    return (
        f"POST /finish_session?session_id={session} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\n\r\n"
    ).encode()


async def _main() -> None:
    await Sessions(Settings(**json.loads(sys.argv[1]))).run()


def arguments(settings: Settings) -> list[str]:
    """How to run this module as a process."""
    return [sys.executable, "-m", __name__, json.dumps(asdict(settings))]


if __name__ == "__main__":
    uvloop.run(_main())
