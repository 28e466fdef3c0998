"""`rolloutpool local`: a pool as processes of this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from rolloutpool_api.v1alpha1 import RolloutPool, parse_pool
from rolloutpool_cli.console import USAGE_ERROR, fail, manifest_error, output, progress
from rolloutpool_cli.render import Event, describe, ready, ready_message
from rolloutpool_operator.local.events import EventRecord
from rolloutpool_operator.local.folder import TOKEN_FILE, FolderLock, default_folder, running_pid
from rolloutpool_operator.local.manifest import InvalidManifest
from rolloutpool_operator.local.options import InvalidOptions, LocalOptions, parse_engines
from rolloutpool_operator.local.ports import router_port
from rolloutpool_operator.local.runtime import LocalPool
from rolloutpool_operator.local.store import read_body, read_events

STOP_SECONDS = 30.0
"""Longest time that `local stop` waits for the pool to end."""

app = typer.Typer(
    invoke_without_command=True,
    help="Run a pool on this machine, without Kubernetes: engines and router as processes.",
)
TOKEN_NOTE = "engine.rl.tokenSecretRef is for clusters and is not read here"

StateDir = Annotated[
    Path,
    typer.Option(
        "--state-dir",
        envvar="ROLLOUTPOOL_STATE_DIR",
        default_factory=lambda: default_folder(os.environ),
        help="Folder for the object, events and logs; one pool per folder.",
        show_default="~/.local/state/rolloutpool/local",
    ),
]


@app.callback()
def local(
    context: typer.Context,
    state_dir: StateDir,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Manifest of the pool; edits take effect.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            help="URL of an engine that already runs, instead of starting emulators. Repeat for more; "
            "prefill=URL and decode=URL for disaggregated ones.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the router on 127.0.0.1; 0: a free one.")
    ] = 8080,
    weights_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            help="Port for weight synchronisation on 127.0.0.1, where the pool has it; 0: a free one.",
        ),
    ] = 0,
) -> None:
    """Run a pool on this machine until Ctrl-C.

    Engines are emulators (`python -m rolloutpool_sim.emulator`) unless --engine names running ones. A process
    that dies is started again; the manifest may be edited while the pool runs.
    """
    if context.invoked_subcommand is not None:
        if _was_given(context, "state_dir"):
            fail(f"put --state-dir after `{context.invoked_subcommand}`", code=USAGE_ERROR)
        return
    if file is None:
        fail("give the pool's manifest: rolloutpool local -f pool.yaml", code=USAGE_ERROR)
    listener = ConsoleListener(progress(), token_file=state_dir.absolute() / TOKEN_FILE)
    try:
        with FolderLock(state_dir.absolute()) as lock:
            options = LocalOptions(
                manifest=file.absolute(),
                folder=lock.folder,
                router_port=router_port(port),
                weights_port=weights_port,
                python=sys.executable,
                engines=parse_engines(engine or []),
            )
            _log_to(options.folder / "logs" / "operator.log")
            pool = LocalPool(options, listener=listener)
            progress().print(f"State and logs: {options.folder}")
            asyncio.run(_run(pool, listener))
    except InvalidManifest as error:
        fail(manifest_error(file, error), code=USAGE_ERROR)
    except InvalidOptions as error:
        fail(str(error), code=USAGE_ERROR)
    except OSError as error:
        fail(f"cannot use manifest, state folder or port: {error}", code=USAGE_ERROR)
    finally:
        listener.close()


@app.command()
def status(state_dir: StateDir) -> None:
    """Print the pool as `kubectl describe rolloutpool` would."""
    folder = state_dir.absolute()
    try:
        body, events = read_body(folder), read_events(folder)
    except FileNotFoundError:
        fail(
            f"no pool has run with the state folder {folder}: start one with `rolloutpool local -f pool.yaml`"
        )
    if running_pid(folder) is None:
        progress().print("The pool does not run now; this is how it was when it ended.")
    text = describe(parse_pool(body), events=[_event(event) for event in events], now=datetime.now(UTC))
    output().print(text, end="")


@app.command()
def stop(state_dir: StateDir) -> None:
    """End the pool, as Ctrl-C in its terminal would."""
    folder = state_dir.absolute()
    pid = running_pid(folder)
    if pid is None:
        progress().print(f"No pool runs with the state folder {folder}.")
        return
    os.kill(pid, signal.SIGTERM)
    with progress().status(f"Stopping process {pid}"):
        deadline = time.monotonic() + STOP_SECONDS
        while running_pid(folder) == pid:
            if time.monotonic() > deadline:
                fail(f"process {pid} does not end: look at its terminal, or kill -9 {pid}")
            time.sleep(0.1)
    progress().print("Stopped.")


class ConsoleListener:
    """Prints events, and what the pool waits for while it is not Ready."""

    def __init__(self, console: Console, *, token_file: Path) -> None:
        """Print to `console`; `token_file` has the token of weight synchronisation."""
        self._console = console
        self._token_file = token_file
        self._pool: RolloutPool | None = None
        self._spinner: Status | None = None
        self._told = False

    def status_changed(self, body: Mapping[str, Any]) -> None:
        """Print the URL when the pool becomes Ready, and show what it waits for while it is not."""
        before, pool = self._pool, parse_pool(body)
        self._pool = pool
        was_ready = before is not None and ready(before)
        if ready(pool) and not was_ready:
            self.close()
            output().print(f"Ready. Base URL for trainers: {pool.status.endpoints.router}/v1")
            if pool.status.endpoints.weights:
                output().print(f"Weight synchronisation: {pool.status.endpoints.weights}")
                output().print(f"Its token: {self._token_file} ({TOKEN_NOTE})")
            if not self._told:
                self._console.print("Watch it with `rolloutpool local status`; Ctrl-C ends everything.")
            self._told = True
        elif not ready(pool):
            self._wait(ready_message(pool))

    def event(self, record: EventRecord) -> None:
        """Print it."""
        self._console.print(f"{record.type:<8} {record.reason}: {record.message}")

    def close(self) -> None:
        """Take the spinner away."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def _wait(self, text: str) -> None:
        if self._spinner is None:
            self._spinner = self._console.status(text)
            self._spinner.start()
        self._spinner.update(text)


async def _run(pool: LocalPool, listener: ConsoleListener) -> None:
    stopping = asyncio.Event()

    def stop_now() -> None:
        if not stopping.is_set():
            listener.close()
            progress().print("Stopping engines and router.")
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop_now)
    await pool.run(stopping)
    progress().print("Stopped.")


def _log_to(file: Path) -> None:
    logging.basicConfig(
        filename=file,
        filemode="w",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _was_given(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _event(record: EventRecord) -> Event:
    return Event(**record.to_wire())
