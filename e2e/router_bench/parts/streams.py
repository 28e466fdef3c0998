"""Open streams: events carried of those sent, how late, and whether any is lost."""

from __future__ import annotations

from typing import Any

from router_bench import pool
from router_bench.clients import running, streams
from router_bench.contestants import OURS, SGLANG, Started
from router_bench.engines import stream_engines
from router_bench.figures import Aim, Report, Table, at_least, at_most, number
from router_bench.parts.bench import Bench

STREAMS, PACE = 1500, 20.0
"""Streams that are open at once, and events per second of each."""
MANY, MANY_PACE, MANY_EVENTS = 5000, 2.0, 20
"""The same for the run in which none may be lost, and how many events each has."""
CARRIED = 0.99
"""Part of the events that counts as all: a window of seconds cuts off up to an interval at its ends."""
ENDLESS = 100_000


def run(bench: Bench) -> Report:
    """Measure both; each router has the machine to itself."""
    window = max(3.0, 2 * bench.seconds)
    paced = _measure(bench, PACE, streams.Settings(0, STREAMS, ENDLESS, pool.SINGLE, window_seconds=window))
    whole = _measure(
        bench, MANY_PACE, streams.Settings(0, MANY, MANY_EVENTS, pool.SINGLE, open_per_second=2000)
    )
    tables = [_paced_table(paced), _whole_table(whole)]
    return Report("streams", tables, _aims(paced, whole), {"paced": paced, "whole": whole})


def _measure(bench: Bench, pace: float, settings: streams.Settings) -> dict[str, dict[str, Any]]:
    found = {}
    with (
        stream_engines(bench.folder, bench.cpus.load, events_per_second=pace) as engines,
        bench.contestants(engines) as routers,
    ):
        for router in routers:
            with bench.steps.step(
                f"streams: {settings.streams} at {pace:.0f} events/s through {router.name}"
            ):
                found[router.name] = _one(bench, router, settings)
    return found


def _one(bench: Bench, router: Started, settings: streams.Settings) -> dict[str, Any]:
    values = {**vars(settings), "port": router.port}
    cpu, rss = router.process.cpu_seconds(), router.process.rss_bytes()
    most = rss
    last: dict[str, Any] = {}
    for line in running.told(streams.arguments(streams.Settings(**values)), cpus=bench.cpus.load):
        last = line
        most = max(most, router.process.rss_bytes())
    last["router_cpu_seconds"] = round(router.process.cpu_seconds() - cpu, 2)
    last["rss_growth_bytes"] = most - rss
    if last["seconds"]:
        last["events_per_second"] = last["events"] / last["seconds"]
    return last


def _paced_table(found: dict[str, dict[str, Any]]) -> Table:
    rows = [
        [
            name,
            number(each["events_per_second"]),
            f"{each['events_per_second'] / (STREAMS * PACE):.1%}",
            number(each["late_p50_ms"]),
            number(each["late_p99_ms"]),
            number(1e6 * each["router_cpu_seconds"] / max(1, each["all_events"])),
            str(each["opened"]),
            str(each["refused"] + each["broken"]),
        ]
        for name, each in found.items()
    ]
    columns = [
        "router",
        "events/s",
        "of those wanted",
        "late p50 ms",
        "late p99 ms",
        "CPU us",
        "opened",
        "failed",
    ]
    return Table(
        f"{STREAMS} open streams of {PACE:.0f} events/s each; processor time of the router per event",
        columns,
        rows,
    )


def _whole_table(found: dict[str, dict[str, Any]]) -> Table:
    rows = [
        [
            name,
            str(each["opened"]),
            str(each["ended"]),
            str(each["refused"] + each["broken"]),
            str(each["lost_events"]),
            str(each["disordered"]),
        ]
        for name, each in found.items()
    ]
    columns = ["router", "opened", "ended whole", "failed", "events lost", "events out of order"]
    return Table(f"{MANY} open streams of {MANY_EVENTS} events each", columns, rows)


def _aims(paced: dict[str, dict[str, Any]], whole: dict[str, dict[str, Any]]) -> list[Aim]:
    aims = []
    if OURS in paced:
        carried = paced[OURS]["events_per_second"] / (STREAMS * PACE)
        aims.append(at_least(f"events carried of {STREAMS} streams", carried, CARRIED))
        lost = whole[OURS]["lost_events"] + whole[OURS]["disordered"]
        aims.append(at_most(f"events lost of {MANY} streams", lost, 0))
        if SGLANG in paced:
            theirs = paced[SGLANG]["late_p99_ms"]
            aims.append(at_most("p99 lateness of events", paced[OURS]["late_p99_ms"], theirs, unit=" ms"))
    return aims
