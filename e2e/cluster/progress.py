"""Says which step runs, that a slow one still lives, and how long each took."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console

Report = Callable[[str], None]
Note = Callable[[str], None]
"""Tells a running step what it is at, for instance "312 of 1650 packages"."""

FIRST_SIGN_SECONDS, NEXT_SIGNS_SECONDS, LIVE_SECONDS = 2.0, 10.0, 0.5


class Steps:
    """Prints one line per step to a console or a function that takes a line.

    A step over two seconds shows that it lives: by a live line on a terminal, else by a line now and then.
    """

    def __init__(self, report: Report | Console | None) -> None:
        self._console = report if isinstance(report, Console) and report.is_terminal else None
        self.say: Report = _writer(report)

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[Note]:
        """Time the block; its line is printed when it ends, also when it fails. Steps do not nest."""
        started = time.monotonic()
        detail = [""]

        def note(text: str) -> None:
            detail[0] = f" - {text}"

        try:
            with self._signs(lambda: f"{what}{detail[0]} ({clock(time.monotonic() - started)})"):
                yield note
        except BaseException:
            self.say(f"{time.monotonic() - started:7.1f} s  FAILED: {what}{detail[0]}")
            raise
        self.say(f"{time.monotonic() - started:7.1f} s  {what}")

    @contextlib.contextmanager
    def _signs(self, text: Callable[[], str]) -> Iterator[None]:
        done = threading.Event()
        live = self._console.status(text()) if self._console else None

        def tick() -> None:
            wait = LIVE_SECONDS if live else FIRST_SIGN_SECONDS
            while not done.wait(wait):
                if live:
                    live.update(text())
                else:
                    self.say(f"     ...   {text()}")
                    wait = NEXT_SIGNS_SECONDS

        ticker = threading.Thread(target=tick, name="progress", daemon=True)
        ticker.start()
        try:
            with live or contextlib.nullcontext():
                yield
        finally:
            done.set()
            ticker.join()


def clock(seconds: float) -> str:
    """Seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _writer(report: Report | Console | None) -> Report:
    if report is None:
        return lambda line: None
    if isinstance(report, Console):
        console = report
        return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
    return report
