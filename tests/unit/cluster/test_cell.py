"""A cell without namespaces, with real processes: what is started ends with it, however its caller ends."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cluster.cell.handle import Cell
from cluster.cell.init import Settings
from cluster.errors import ClusterError
from cluster.ports import free_ports

E2E = Path(__file__).resolve().parents[3] / "e2e"
SLEEP = ["/bin/sleep", "1000"]
ECHO_ENVIRONMENT = ["/usr/bin/env"]


def wait_until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cell" / "logs").mkdir(parents=True)
    return tmp_path / "cell"


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Cell]:
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cell = Cell(Settings(folder=str(folder), lock=lock.fileno(), namespaced=False))
    with contextlib.closing(cell):
        yield cell


def locked(path: Path) -> bool:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def test_daemons_have_their_own_environment_and_log(folder: Path) -> None:
    with opened(folder) as cell:
        cell.start("env", ECHO_ENVIRONMENT, {"ONLY": "this"})
        wait_until(lambda: cell.ended() == {"env": 0})
        assert (folder / "logs" / "env.log").read_text() == "ONLY=this\n"


def test_a_missing_program_is_named(folder: Path) -> None:
    with opened(folder) as cell, pytest.raises(ClusterError, match="/nowhere/nothing"):
        cell.start("nothing", ["/nowhere/nothing"], {})


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_stop_tells_by_which_signal_it_ended(folder: Path, signum: signal.Signals) -> None:
    with opened(folder) as cell:
        cell.start("sleep", SLEEP, {})
        cell.stop("sleep", signum)
        assert cell.ended() == {"sleep": -signum}


def test_stop_kills_what_does_not_listen(folder: Path) -> None:
    with opened(folder) as cell:
        cell.start("deaf", [sys.executable, "-c", DEAF], {})
        wait_until(lambda: "deaf" in (folder / "logs" / "deaf.log").read_text())
        cell.stop("deaf", timeout=0.05)
        assert cell.ended() == {"deaf": -signal.SIGKILL}


DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(1000)"


def test_a_daemon_can_start_again(folder: Path) -> None:
    with opened(folder) as cell:
        for _ in range(2):
            cell.start("sleep", SLEEP, {})
            assert cell.ended() == {}
            cell.stop("sleep")


def test_errors_come_back(folder: Path) -> None:
    with opened(folder) as cell:
        with pytest.raises(ClusterError, match="KeyError: 'unknown'"):
            cell.stop("unknown")
        assert cell.ended() == {}, "and the cell goes on"


def test_get_asks_from_inside(folder: Path) -> None:
    class Teapot(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(418)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Teapot) as server, opened(folder) as cell:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert cell.get(f"http://127.0.0.1:{server.server_port}/") == 418
        thread.join()
        assert cell.get(f"http://127.0.0.1:{free_ports(1)[0]}/") == 0


def test_close_ends_all_and_removes_the_folder(folder: Path) -> None:
    with opened(folder) as cell:
        cell.start("sleep", SLEEP, {"MARK": str(folder)})
        assert locked(folder.parent / "lock")
    assert not folder.exists()
    assert not locked(folder.parent / "lock")
    assert processes_with(str(folder)) == []


def processes_with(mark: str) -> list[str]:
    """Command lines of the processes whose environment has `mark`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
    return found


CALLER = """
import json, signal, sys
from cluster.cell.handle import Cell
from cluster.cell.init import Settings
lock = open(sys.argv[1] + "/../lock", "w")
cell = Cell(Settings(folder=sys.argv[1], lock=lock.fileno(), namespaced=False))
cell.start("sleep", ["/bin/sleep", "1000"], {"MARK": sys.argv[1]})
print("started", cell._process.pid, flush=True)
signal.pause()
"""


@contextlib.contextmanager
def caller(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds a cell with a daemon; yields it and the pid of the cell's process 1."""
    argv = [sys.executable, "-c", CALLER, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(E2E)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        word, pid = process.stdout.readline().split()
        assert word == "started"
        try:
            yield process, int(pid)
        finally:
            process.kill()


def test_nothing_outlives_a_killed_caller(folder: Path) -> None:
    with caller(folder) as (process, _):
        assert processes_with(f"MARK={folder}") == ["/bin/sleep\x001000\x00"]
        process.kill()
        process.wait()
    wait_until(lambda: not folder.exists())
    assert processes_with(f"MARK={folder}") == []


def test_no_daemon_outlives_a_killed_process_1(folder: Path) -> None:
    with caller(folder) as (_, pid):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: processes_with(f"MARK={folder}") == [])


@pytest.mark.parametrize(
    ("namespaced", "message"),
    [
        pytest.param(False, "Bad file descriptor", id="a lock that is none"),
        pytest.param(True, "must be process 1", id="outside of a namespace, where it would kill all"),
    ],
)
def test_a_cell_that_cannot_be_built_says_why(folder: Path, namespaced: bool, message: str) -> None:
    settings = Settings(folder=str(folder), lock=99999, namespaced=namespaced)
    done = subprocess.run(
        [sys.executable, "-m", "cluster.cell.init", json.dumps(vars(settings))],
        env={**os.environ, "PYTHONPATH": str(E2E)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr
