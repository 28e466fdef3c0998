"""The cache folder: what is made once is made aside and renamed, by one process at a time."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


def cache_root() -> Path:
    """`${XDG_CACHE_HOME:-~/.cache}/rolloutpool/cluster`, made if need be."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(base) / "rolloutpool" / "cluster"
    root.mkdir(parents=True, exist_ok=True)
    return root


def digest(parts: Iterable[str | bytes]) -> str:
    """Twelve hex digits that stand for `parts` in their order."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(f"{len(data)}:".encode() + data)
    return total.hexdigest()[:12]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` (a file, made if need be); waits for another process that holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return the folder `target`; where it is missing, `build` first fills a new folder that becomes it.

    A build that fails or is interrupted leaves nothing; of two processes one builds and the other waits.
    """
    if target.exists():
        return target
    with locked(target.with_name(target.name + ".lock")):
        if target.exists():
            return target
        aside = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=target.parent))
        try:
            build(aside)
            aside.chmod(0o755)
            aside.rename(target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return target
