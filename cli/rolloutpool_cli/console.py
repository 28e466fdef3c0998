"""Where commands print, how they fail, and how they read a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_operator.local.manifest import InvalidManifest, parse_manifest

USAGE_ERROR = 2
"""Exit code of wrong arguments and manifests."""
FAILURE = 1
"""Exit code of everything else that went wrong."""


def output() -> Console:
    """For results: plain text, never wrapped, so that it can be piped."""
    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


def progress() -> Console:
    """For progress and errors."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def fail(message: str, *, code: int = FAILURE) -> NoReturn:
    """Print an error and end the command."""
    progress().print(f"Error: {message}")
    raise typer.Exit(code)


def load_pool(path: Path) -> RolloutPool:
    """Read a manifest; a wrong one ends the command with USAGE_ERROR and the lines to change."""
    try:
        return parse_manifest(path.read_text(errors="replace"))[1]
    except OSError as error:
        fail(f"cannot read the manifest: {error}", code=USAGE_ERROR)
    except InvalidManifest as error:
        fail(manifest_error(path, error), code=USAGE_ERROR)


def manifest_error(path: Path, error: InvalidManifest) -> str:
    """What is wrong with a manifest, for people."""
    lines = "\n".join(f"  {line}" for line in str(error).splitlines())
    return f"{path} is no valid RolloutPool:\n{lines}"
