"""The state folder of a local pool: what is in it, and that one process at a time owns it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rolloutpool_operator.local.options import InvalidOptions
from rolloutpool_operator.local.store import replace_file

RUN_FILE = "run.json"
LOCK_FILE = "lock"
TOKEN_FILE = "weights-token"
"""The token of weight synchronisation, for the user alone to read."""


class FolderInUse(InvalidOptions):
    """Another process runs a pool in the folder; the message says how to end it."""


def default_folder(environ: Mapping[str, str]) -> Path:
    """Where a local pool keeps its state unless told otherwise: rolloutpool/local in XDG_STATE_HOME."""
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "/tmp") / ".local" / "state")
    return Path(base) / "rolloutpool" / "local"


def make_token(folder: Path) -> None:
    """Make a token of weight synchronisation, unless the folder has one of an earlier run."""
    with contextlib.suppress(FileExistsError):
        file = os.open(folder / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as opened:
            opened.write(secrets.token_urlsafe(32) + "\n")


class FolderLock:
    """Ownership of a state folder while `with` lasts, or the process lives."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; it is created on entry."""
        self.folder = folder

    def __enter__(self) -> Self:
        """Take the folder.

        Raises:
            FolderInUse: another process has it.
        """
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self._file = (self.folder / LOCK_FILE).open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise FolderInUse(
                f"a local pool already runs with the state folder {self.folder}: end it with "
                f"`rolloutpool local stop --state-dir {self.folder}`, or choose another --state-dir"
            ) from None
        replace_file(self.folder / RUN_FILE, json.dumps({"pid": os.getpid()}))
        return self

    def __exit__(self, *_: object) -> None:
        (self.folder / RUN_FILE).unlink(missing_ok=True)
        self._file.close()


def running_pid(folder: Path) -> int | None:
    """Process id of the pool that runs with this folder, None if none does."""
    try:
        with (folder / LOCK_FILE).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
    except FileNotFoundError:
        return None
    except BlockingIOError:
        pass
    try:
        run: dict[str, Any] = json.loads((folder / RUN_FILE).read_text())
    except FileNotFoundError:
        return None
    return int(run["pid"])
