"""Watches of the operator that die or fall silent: it hears of it, heals or says so, and never gives up.

No other operator may run meanwhile: it would do what this one should.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Cluster
from rolloutpool_testkit.operators import Operator, World, eventually, quiet

NAMESPACE = "operator-watches"


@pytest.fixture(scope="module")
def world(control_plane: Cluster) -> Iterator[World]:
    # Room for any plan, also where there is no other node; no pod runs there.
    control_plane.add_node("giant-watches", gpus=8192)
    found = World(control_plane, NAMESPACE)
    yield found
    found.close()
    control_plane.remove_node("giant-watches")


class Relay:
    """Passes connections on to the API server, until told to freeze or refuse them."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        found = config["clusters"][0]["cluster"]
        host, _, port = found["server"].removeprefix("https://").partition(":")
        self._target = (host, int(port))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._frozen = 0
        """Connections before this one carry nothing."""
        self.port = self._listen(0)
        found["server"] = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def freeze(self) -> None:
        """Connections that are open stay open and carry nothing any more; new ones work."""
        self._frozen = len(self._threads)

    def refuse(self) -> None:
        """The API server is away: every connection ends, and new ones are refused."""
        for item in self._sockets:
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()
        for thread in self._threads:
            thread.join(5)
        self._sockets.clear()

    def resume(self) -> None:
        """The API server is back."""
        self._listen(self.port)

    def _listen(self, port: int) -> int:
        server = socket.create_server(("127.0.0.1", port))
        self._sockets.append(server)
        self._start(self._accept, server)
        return int(server.getsockname()[1])

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                upstream = socket.create_connection(self._target)
                self._sockets += [client, upstream]
                number = len(self._threads)
                self._start(self._pass_on, number, client, upstream)
                self._start(self._pass_on, number, upstream, client)

    def _pass_on(self, number: int, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65_536):
                if number >= self._frozen:
                    sink.sendall(content)
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def relay(world: World, tmp_path: Path) -> Iterator[Relay]:
    found = Relay(world.cluster.kubeconfig, tmp_path)
    yield found
    found.refuse()


Start = Callable[..., Operator]


@pytest.fixture
def start(relay: Relay, tmp_path: Path) -> Iterator[Start]:
    """Starts an operator behind the relay; none is left after the test."""
    started: list[Operator] = []

    def start(**settings: str) -> Operator:
        started.append(Operator(relay.kubeconfig, tmp_path, NAMESPACE, **settings))
        return started[-1]

    yield start
    for operator in started:
        operator.kill()


def test_watches_that_fall_silent_are_opened_anew(world: World, relay: Relay, start: Start) -> None:
    """As behind a load balancer that forgets connections: no error, no end, no events."""
    operator = start(quiet_seconds="3")
    world.comes_up("silent")
    quiet(operator)
    relay.freeze()
    world.delete("serviceaccount", "silent-router")
    eventually(
        "restored", lambda: ("ServiceAccount", "silent-router") in world.children("silent"), timeout=60
    )
    assert operator.health() == 200
    assert operator.stop() == 0
    world.delete("rolloutpool", "silent")


def test_watches_that_stay_deaf_fail_the_liveness_probe(world: World, relay: Relay, start: Start) -> None:
    operator = start(quiet_seconds="600", deaf_seconds="4", heartbeat_seconds="0.5")
    eventually("it watches", lambda: operator.metric("watch_events_total", kind="Node") >= 1)
    assert operator.health() == 200
    relay.freeze()
    eventually("the probe fails", lambda: operator.health() == 503, timeout=60)


def test_an_api_server_that_is_away_kills_nobody(world: World, relay: Relay, start: Start) -> None:
    operator = start(deaf_seconds="3", heartbeat_seconds="0.5")
    world.comes_up("patient")
    relay.refuse()
    world.delete("serviceaccount", "patient-router")
    for _ in range(10):
        time.sleep(0.5)
        assert operator.health() == 200
    relay.resume()
    eventually(
        "restored", lambda: ("ServiceAccount", "patient-router") in world.children("patient"), timeout=60
    )
    assert operator.health() == 200
    assert operator.stop() == 0
    world.delete("rolloutpool", "patient")
