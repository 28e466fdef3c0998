"""Our router measured against others: the same engines and the same load, in one run, as ratios.

Run it from the checkout as `PYTHONPATH=e2e python -m router_bench COMMAND`. The other routers come from PyPI
into ~/.cache/rolloutpool; wrk and nginx come from the system. Everything listens on 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cluster.progress import Steps
from router_bench import builds, contestants, environment, profiling, report, wrk
from router_bench.builds import Build
from router_bench.errors import BenchError
from router_bench.figures import Report
from router_bench.parts import latency, memory, requests, scaling, streams
from router_bench.parts.bench import Bench
from router_bench.processes import PINNED, SHARED, raise_file_limit

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)
console = Console(stderr=True)
output = Console(width=140)


class Part(StrEnum):
    """What can be measured."""

    REQUESTS = "requests"
    LATENCY = "latency"
    STREAMS = "streams"
    MEMORY = "memory"
    SCALING = "scaling"


PARTS = {
    Part.REQUESTS: requests.run,
    Part.LATENCY: latency.run,
    Part.STREAMS: streams.run,
    Part.MEMORY: memory.run,
    Part.SCALING: scaling.run,
}
Pin = Annotated[bool, typer.Option(help="Give the router one processor, and load and engines another.")]
Compiled = Annotated[bool, typer.Option("--compiled", help="Run our router compiled, as the image does.")]
Python = Annotated[
    Path | None,
    typer.Option(help="Run our router by this interpreter, with the packages of this environment."),
]
Seconds = Annotated[float, typer.Option(min=1, help="Length of one measurement.")]


@app.command()
def install() -> None:
    """Install the other routers from PyPI into the cache, unless they are there."""
    steps = Steps(console)
    for peer in environment.PEERS:
        steps.say(f"ready: {environment.install(peer, steps)}")


@app.command()
def compare(
    only: Annotated[list[Part] | None, typer.Option(help="Measure this part; may be repeated.")] = None,
    router: Annotated[
        list[str] | None,
        typer.Option(help=f"Compare this one ({', '.join(contestants.ALL)}); may be repeated."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each measurement is repeated.")] = 3,
    seconds: Seconds = 3.0,
    pin: Pin = False,
    compiled: Compiled = False,
    python: Python = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    strict: Annotated[bool, typer.Option(help="Exit with 1 where an aim was not reached.")] = False,
) -> None:
    """Measure all parts (about ten minutes), show tables and what was aimed at."""
    routers = router or list(contestants.ALL)
    if unknown := set(routers) - set(contestants.ALL):
        raise BenchError(
            f"there is no router {', '.join(sorted(unknown))}: choose of {', '.join(contestants.ALL)}"
        )
    environment.check_tools()
    steps = Steps(console)
    for peer in environment.PEERS:
        if peer in routers:
            environment.install(peer, steps)
    build = builds.build(python, compiled=compiled)
    reports: list[Report] = []
    with _bench(steps, routers, rounds=rounds, seconds=seconds, pin=pin, build=build) as bench:
        for part in only or list(Part):
            reports.append(PARTS[part](bench))
            report.show(reports[-1], output)
    if json_file is not None:
        report.write(json_file, reports, _context(bench, pin))
        steps.say(f"figures are in {json_file}")
    if strict and report.missed(reports):
        raise typer.Exit(1)


@app.command()
def profile(
    prompt_bytes: Annotated[int, typer.Option(help="Size of the prompts.")] = 200,
    mode: Annotated[str, typer.Option(help="single (no session ids) or sessions.")] = "single",
    seconds: Seconds = 10.0,
    pin: Pin = False,
    compiled: Compiled = False,
    python: Python = None,
) -> None:
    """Show where our router spends its time under load (py-spy, sampled)."""
    environment.check_tools()
    steps = Steps(console)
    environment.install(environment.PROFILER, steps)
    build = builds.build(python, compiled=compiled)
    with _bench(steps, [contestants.OURS], rounds=1, seconds=seconds, pin=pin, build=build) as bench:
        with steps.step(f"sampled {seconds:.0f} s under load"):
            tables = profiling.profile(bench, wrk.Load(mode, prompt_bytes))
        report.show(Report("profile", tables), output)


@contextlib.contextmanager
def _bench(
    steps: Steps, routers: list[str], *, rounds: int, seconds: float, pin: bool, build: Build
) -> Iterator[Bench]:
    raise_file_limit()
    output.print(f"{contestants.OURS}: {build.words}", soft_wrap=True, highlight=False)
    with tempfile.TemporaryDirectory(prefix="router-bench-") as folder:
        yield Bench(steps, Path(folder), PINNED if pin else SHARED, routers, rounds, seconds, build)


def _context(bench: Bench, pin: bool) -> dict[str, Any]:
    versions = {peer: environment.version_of(peer) for peer in environment.PEERS if peer in bench.routers}
    settings = {"rounds": bench.rounds, "seconds": bench.seconds, "pinned": pin, "build": bench.build.words}
    return {"machine": report.machine(), "versions": versions, "settings": settings}


def main() -> None:
    """Run the command; errors as one line."""
    try:
        app()
    except BenchError as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
