"""What a request costs our router, by how many sessions are open: it should not matter."""

from __future__ import annotations

import itertools

from router_bench import pool, wrk
from router_bench.clients import running, sessions
from router_bench.contestants import OURS, started
from router_bench.engines import fixed_engines
from router_bench.figures import Report, Table, at_most, number
from router_bench.parts.bench import WARM_SECONDS, Bench, Load, measure

OPEN = (100, 10_000, 100_000)
KINDS = {"open": "turns of open sessions", "single": "new sessions"}
MOST = 1.2
"""Aim: processor time per request with most sessions over that with fewest."""


def run(bench: Bench) -> Report:
    """Open more and more sessions in one router, and load it with turns of theirs and with others."""
    found: dict[tuple[str, int], Load] = {}
    with (
        fixed_engines(bench.folder, bench.cpus.load) as engines,
        started(
            OURS,
            engines,
            folder=bench.folder,
            cpus=bench.cpus.router,
            build=bench.build,
            idle_seconds=pool.OPEN_SECONDS,
        ) as router,
    ):
        for fewer, count in itertools.pairwise((0, *OPEN)):
            with bench.steps.step(f"scaling: {count} open sessions"):
                # Sessions are numbered by what was opened before, so that those there are continue the list.
                settings = sessions.Settings(router.port, count, "open", pool.TURNS, first=fewer)
                running.result(sessions.arguments(settings), cpus=bench.cpus.load)
                for kind in KINDS:
                    load = wrk.Load(kind, sessions=count, name="open")
                    measure(bench, router, engines, load, seconds=WARM_SECONDS)
                    found[kind, count] = measure(bench, router, engines, load, seconds=bench.seconds)
    rows = [
        [KINDS[kind], number(count), number(load.rate), number(load.p99_ms), number(load.cpu_us)]
        for (kind, count), load in found.items()
    ]
    aims = [
        at_most(
            f"processor time per request, {KINDS[kind]}, {OPEN[-1]} open over {OPEN[0]}",
            found[kind, OPEN[-1]].cpu_us / found[kind, OPEN[0]].cpu_us,
            MOST,
            unit="x",
        )
        for kind in KINDS
    ]
    figures = [{"kind": kind, "open": count, **vars(load)} for (kind, count), load in found.items()]
    columns = ["requests", "open sessions", "requests/s", "p99 ms", "CPU us"]
    return Report(
        "scaling", [Table("Cost of a request by open sessions", columns, rows)], aims, {"runs": figures}
    )
