"""`rolloutpool load`: a trainer-like load on one router."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_cli.console import FAILURE, USAGE_ERROR, fail, load_pool, output, progress
from rolloutpool_cli.durations import parse_duration
from rolloutpool_cli.load.client import AttemptFailed, TrainerClient
from rolloutpool_cli.load.report import LoadReport, report_lines
from rolloutpool_cli.load.runner import LoadRun
from rolloutpool_cli.load.scenario import Scenario

REFRESH_SECONDS = 0.5
"""Between two updates of the table while running."""


def load(
    url: Annotated[str, typer.Option("--url", help="Base URL of the router, e.g. http://127.0.0.1:8080.")],
    file: Annotated[
        Path, typer.Option("--file", "-f", help="Manifest of the pool: classes, shares and priors.")
    ],
    duration: Annotated[str, typer.Option(help="How long samples are started, e.g. 60s or 5m.")] = "60s",
    drain: Annotated[str, typer.Option(help="How long samples under way may take to finish then.")] = "30s",
    window: Annotated[int, typer.Option(min=1, max=10_000, help="Samples under way at once.")] = 128,
    seed: Annotated[int, typer.Option(help="The same seed sends the same samples.")] = 0,
    sessions: Annotated[
        bool, typer.Option("--sessions/--no-sessions", help="Name sessions with X-Session-ID, or not at all.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Send a mixed rollout load as a trainer would, and report throughput, mixture, waits and losses.

    A window of samples is kept under way in the target mixture of the manifest: a finished sample makes
    room for the next. Sessions take turns with growing history and tool gaps; failed requests are sent again
    as trainers do.

    Exits with 1 if a session was lost.
    """
    pool = load_pool(file)
    try:
        seconds, drain_seconds = parse_duration(duration), parse_duration(drain)
    except ValueError as error:
        fail(str(error), code=USAGE_ERROR)
    report = asyncio.run(
        _run(
            pool,
            url,
            window=window,
            seconds=seconds,
            drain_seconds=drain_seconds,
            seed=seed,
            sessions=sessions,
        )
    )
    if as_json:
        output().print(json.dumps(report.to_wire(), indent=2))
    else:
        output().print("\n".join(report_lines(report)))
    if report.lost:
        raise typer.Exit(FAILURE)


async def _run(
    pool: RolloutPool,
    url: str,
    *,
    window: int,
    seconds: float,
    drain_seconds: float,
    seed: int,
    sessions: bool,
) -> LoadReport:
    """Run the load and show its table."""
    run_id = f"load-{seed}-{random.getrandbits(32):08x}"
    scenario = Scenario(
        pool.spec.workloads, max_model_len=pool.spec.model.max_model_len, run=run_id, rng=random.Random(seed)
    )
    async with TrainerClient(url, model=pool.spec.model.name) as client:
        try:
            served = await client.classes()
        except AttemptFailed:
            fail(f"nothing answers at {url}: start the pool, or correct --url")
        unknown = sorted({workload.name for workload in pool.spec.workloads} - set(served))
        if served and unknown:
            fail(
                f"the router at {url} serves {', '.join(served)} and knows no {', '.join(unknown)}: "
                "give the manifest of its pool with -f",
                code=USAGE_ERROR,
            )
        run = LoadRun(
            client=client,
            scenario=scenario,
            shares={workload.name: workload.share for workload in pool.spec.workloads},
            seed=seed,
            sessions=sessions,
            clock=time.monotonic,
        )
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        view = asyncio.create_task(_show(run, seconds))
        try:
            return await run.run(
                window=window, duration_seconds=seconds, drain_seconds=drain_seconds, stop=stop
            )
        finally:
            view.cancel()
            await asyncio.gather(view, return_exceptions=True)


async def _show(run: LoadRun, seconds: float) -> None:
    console = progress()
    if not console.is_terminal:
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            report = run.report()
            under_way = sum(run.outstanding.values())
            head = f"{report.elapsed_seconds:.0f} of {seconds:.0f} s, {under_way} samples under way\n"
            live.update(Text(head + "\n".join(report_lines(report)), no_wrap=True), refresh=True)
