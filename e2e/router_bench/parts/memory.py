"""Memory of our router: per open session, and over a soak of many that come and go."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from router_bench import pool
from router_bench.clients import running, sessions
from router_bench.contestants import OURS, Started, started
from router_bench.engines import Engines, fixed_engines
from router_bench.figures import Report, Table, at_most, growth, number
from router_bench.parts.bench import Bench

HELD, WARM = 20_000, 1_000
"""Sessions that are held open, and those before the first look at the memory."""
HELD_TURNS = 2
SOAKED, SOAK_TURNS = 200_000, 3
SOAK_SECONDS = 240.0
"""When the soak ends, finished or not."""
MOST_BYTES = 10_000
"""Aim: bytes per idle open session."""
MOST_GROWTH = 0.05
"""Aim: how much higher memory may be at the end of the soak than half-way."""
SOAK_BYTES = 2000
"""Size of the soak's prompts, each its own: enough to fill the prefix index in the first fifth."""


def run(bench: Bench) -> Report:
    """Measure both, each with a fresh router."""
    with fixed_engines(bench.folder, bench.cpus.load) as engines:
        held = _hold(bench, engines)
        soak = _soak(bench, engines)
    per_session = held["bytes_per_session"]
    grown = growth(soak["rss_bytes"])
    rows = [
        ["bytes per idle open session", number(per_session)],
        ["sessions of the soak", number(soak["sessions"])],
        [
            "its requests",
            f"{soak['requests']} ({number(soak['requests'] / soak['seconds'])}/s), {soak['failed']} failed",
        ],
        ["MB at a tenth, half and the end", _curve(soak["rss_bytes"])],
        ["growth", f"{grown:+.1%}"],
    ]
    aims = [
        at_most("bytes per idle open session", per_session, MOST_BYTES),
        at_most("growth of memory over the soak", grown, MOST_GROWTH),
        at_most("sessions missing from the soak", SOAKED - soak["sessions"], 0),
        at_most("failed requests of the soak", soak["failed"], 0),
    ]
    return Report(
        "memory", [Table("Memory of our router", ["what", "value"], rows)], aims, {"held": held, "soak": soak}
    )


def _hold(bench: Bench, engines: Engines) -> dict[str, Any]:
    with (
        _router(bench, engines, idle_seconds=pool.OPEN_SECONDS) as router,
        bench.steps.step(f"memory: held {HELD} sessions open"),
    ):
        _open(bench, router, WARM, "warm")
        before = router.process.rss_bytes()
        last = _open(bench, router, HELD, "held")
        grown = router.process.rss_bytes() - before
    return {**last, "rss_before_bytes": before, "bytes_per_session": grown / HELD}


def _open(bench: Bench, router: Started, count: int, name: str) -> dict[str, Any]:
    settings = sessions.Settings(router.port, count, name, pool.TURNS, turns=HELD_TURNS)
    return running.result(sessions.arguments(settings), cpus=bench.cpus.load)


def _soak(bench: Bench, engines: Engines) -> dict[str, Any]:
    curve: list[int] = []
    told: dict[str, Any] = {}
    with (
        _router(bench, engines, idle_seconds=pool.IDLE_SECONDS) as router,
        bench.steps.step(f"memory: soak of {SOAKED} sessions") as note,
    ):
        settings = sessions.Settings(
            router.port,
            SOAKED,
            "soak",
            pool.TURNS,
            turns=SOAK_TURNS,
            mixed=True,
            finish_every=2,
            prompt_bytes=SOAK_BYTES,
            most_seconds=SOAK_SECONDS,
        )
        for line in running.told(sessions.arguments(settings), cpus=bench.cpus.load):
            told = line
            curve.append(router.process.rss_bytes())
            note(f"{told['sessions']} sessions, {curve[-1] / 1e6:.0f} MB")
    return {**told, "seconds": len(curve) * sessions.REPORT_SECONDS, "rss_bytes": curve}


def _router(bench: Bench, engines: Engines, *, idle_seconds: int) -> AbstractContextManager[Started]:
    return started(
        OURS,
        engines,
        folder=bench.folder,
        cpus=bench.cpus.router,
        build=bench.build,
        idle_seconds=idle_seconds,
    )


def _curve(values: list[int]) -> str:
    places = (len(values) // 10, len(values) // 2, len(values) - 1)
    return ", ".join(f"{values[place] / 1e6:.0f}" for place in places)
