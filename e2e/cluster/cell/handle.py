"""The caller's handle of a cell: starts process 1, asks it for things, ends it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cluster.cell.init import Settings
from cluster.errors import ClusterError

PACKAGE_PARENT = Path(__file__).resolve().parents[2]
CLOSE_SECONDS = 30.0


class Cell:
    """A running cell. It ends, and undoes itself, when this handle is closed or this process is gone."""

    def __init__(self, settings: Settings) -> None:
        """Start process 1 and wait until the cell is built.

        Raises:
            ClusterError: the cell could not be built; the message has what it said.
        """
        self.settings = settings
        self.folder = Path(settings.folder)
        self._lock = threading.Lock()
        self._number = 0
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in close()
        unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        argv = [sys.executable, "-m", "cluster.cell.init", json.dumps(asdict(settings))]
        self._process = subprocess.Popen(
            [*unshare, "--propagation", "private", *argv] if settings.namespaced else argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)},
            pass_fds=[settings.lock],
            start_new_session=True,  # the terminal's Ctrl-C is for the caller, which then closes the cell
        )
        self._answer(0)

    @property
    def namespaces(self) -> Path:
        """/proc folder of the cell's namespaces."""
        return Path(f"/proc/{self._process.pid}/ns")

    def _answer(self, number: int) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = {"number": -1}
        while answer["number"] != number:  # an interrupted caller may have left an older answer unread
            line = self._process.stdout.readline()
            if not line:
                self._process.wait()
                self._errors.seek(0)
                raise ClusterError(f"the cell ended: {self._errors.read().strip()[-2000:] or 'no message'}")
            answer = json.loads(line)
        if "error" in answer:
            raise ClusterError(answer["error"])
        return answer

    def _ask(self, op: str, **request: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        with self._lock:
            self._number += 1
            try:
                self._process.stdin.write(json.dumps({"number": self._number, "op": op, **request}) + "\n")
                self._process.stdin.flush()
            except OSError:
                pass  # process 1 is gone: the missing answer says so, with its last words
            return self._answer(self._number)

    def start(self, name: str, argv: Sequence[str], env: dict[str, str]) -> None:
        """Start a daemon; its output goes to logs/NAME.log."""
        log = self.folder / "logs" / f"{name}.log"
        self._ask("start", name=name, argv=list(argv), env=env, log=str(log))

    def stop(self, name: str, signum: int = signal.SIGTERM, timeout: float = 10.0) -> None:
        """Send a daemon `signum` and wait for its end (SIGKILL after `timeout` seconds)."""
        self._ask("stop", name=name, signum=int(signum), timeout=timeout)

    def ended(self) -> dict[str, int]:
        """Daemons that are not running any more, with their exit codes (-N: signal N)."""
        result: dict[str, int] = self._ask("ended")["ended"]
        return result

    def get(self, url: str, timeout: float = 1.0) -> int:
        """HTTP status of a GET from inside the cell; 0 without an answer."""
        return int(self._ask("get", url=url, timeout=timeout)["status"])

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` as a command that runs inside the cell's namespaces."""
        if not self.settings.namespaced:
            return list(argv)
        namespaces = self.namespaces
        enter = [
            f"--net={namespaces}/net",
            f"--mount={namespaces}/mnt",
            f"--pid={namespaces}/pid_for_children",
        ]
        return ["nsenter", *enter, f"--wd={Path.cwd()}", *argv]

    @contextlib.contextmanager
    def relay(self, host: str, port: int) -> Iterator[int]:
        """Lend HOST:PORT of the cell to the machine; yields the port on 127.0.0.1."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            local = int(listener.getsockname()[1])
            words = [str(listener.fileno()), str(self.namespaces / "net"), host, str(port)]
            process = subprocess.Popen(
                [sys.executable, "-m", "cluster.cell.relay", *words],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)},
            )
        try:
            yield local
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def close(self) -> None:
        """End the cell and wait until all that it made is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # unshare's --kill-child takes process 1, and with it all others, along
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()
