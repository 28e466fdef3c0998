"""A process with its log in a file, that is waited for and ended with all its children."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vllm_serving.errors import ServingError

POLL_SECONDS = 0.1
STOP_SECONDS = 20.0
SHOWN_CHARACTERS = 20_000


class Process:
    """A process in a group of its own."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("w") as output:
            self._popen = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._popen.poll() is None

    def wait_for(self, ready: Callable[[], object], *, seconds: float) -> None:
        """Wait until it is ready.

        Raises:
            ServingError: it ended, or was not ready in time; with the end of its log.
        """
        until = time.monotonic() + seconds
        while not ready():
            if not self.alive or time.monotonic() > until:
                fate = f"did not start in {seconds:.0f} s" if self.alive else "ended"
                self.kill()
                raise ServingError(f"{self.log.stem} {fate}:\n{self.log.read_text()[-SHOWN_CHARACTERS:]}")
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """End it and its children at once; nothing they hold is told to anybody."""
        self._signal(signal.SIGKILL)
        self._popen.wait()

    def stop(self) -> None:
        """Ask it to end, and kill what is left."""
        if self.alive:
            self._popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(STOP_SECONDS)
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)
