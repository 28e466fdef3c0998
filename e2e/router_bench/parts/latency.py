"""Added latency at half load: requests at a constant rate, through a router and straight to the engine."""

from __future__ import annotations

from typing import Any

from router_bench import pool, wrk
from router_bench.clients import open_loop, running
from router_bench.contestants import BARE, DIRECT, OURS, SGLANG, Started
from router_bench.engines import Engines, fixed_engines
from router_bench.figures import Aim, Report, Table, at_most, middle, number
from router_bench.parts.bench import WARM_SECONDS, Bench, measure
from router_bench.parts.requests import SIZES

OWN, COMMON = "half of its own", "half of the slowest's"
LOADS = {
    COMMON: "all at half of what the slowest router can",
    OWN: "each at half of what it can itself",
}


def run(bench: Bench) -> Report:
    """Measure each router at half of the slowest router's rate, and at half of its own."""
    found: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    with fixed_engines(bench.folder, bench.cpus.load) as engines, bench.contestants(engines) as routers:
        for size in SIZES:
            rates = _rates(bench, routers, engines, size)
            slowest = min(rate for name, rate in rates.items() if name not in (BARE, DIRECT))
            for number_ in range(bench.rounds):
                with bench.steps.step(f"latency: {size} B, round {number_ + 1} of {bench.rounds}") as note:
                    for router in routers:
                        for load, rate in ((COMMON, slowest / 2), (OWN, rates[router.name] / 2)):
                            if router.name == DIRECT and load == OWN:
                                continue
                            note(f"{router.name}, {rate:.0f} requests/s")
                            added = _added(bench, router, engines, size, rate)
                            found.setdefault((router.name, load, size), []).append(added)
    medians = {
        key: {name: middle([each[name] for each in rounds]) for name in rounds[0]}
        for key, rounds in found.items()
    }
    tables = [_table(medians, load) for load in LOADS]
    figures = [
        {"router": name, "load": load, "prompt_bytes": size, "rounds": rounds}
        for (name, load, size), rounds in found.items()
    ]
    return Report("latency", tables, _aims(medians), {"runs": figures})


def _rates(bench: Bench, routers: list[Started], engines: Engines, size: int) -> dict[str, float]:
    """What each router can; measured here where the part before did not."""
    rates = {}
    for router in routers:
        rate = bench.rates.get((router.name, size))
        if rate is None:
            with bench.steps.step(f"latency: measured what {router.name} can at {size} B"):
                measure(bench, router, engines, wrk.Load("single", size), seconds=WARM_SECONDS)
                rate = measure(bench, router, engines, wrk.Load("single", size), seconds=bench.seconds).rate
        rates[router.name] = rate
    return rates


def _added(bench: Bench, router: Started, engines: Engines, size: int, rate: float) -> dict[str, float]:
    """Latencies through the router, less those of the same requests straight to an engine just after."""
    through = _latencies(bench, router.port, size, rate)
    direct = _latencies(bench, engines.ports[0], size, rate) if router.name != DIRECT else through
    added = {f"added_{q}_ms": through[f"{q}_ms"] - direct[f"{q}_ms"] for q in ("p50", "p99")}
    return {"rate": rate, **through, **added}


def _latencies(bench: Bench, port: int, size: int, rate: float) -> dict[str, Any]:
    settings = open_loop.Settings(port, rate, bench.seconds, size, pool.SINGLE)
    return running.result(open_loop.arguments(settings), cpus=bench.cpus.load)


def _table(medians: dict[tuple[str, str, int], dict[str, float]], load: str) -> Table:
    columns = ["router"]
    for size in SIZES:
        columns += [f"{size} B: rate", "p50 ms", "p99 ms", "added p50", "added p99", "failed"]
    rows = []
    for name in dict.fromkeys(name for name, each, _ in medians if each == load):
        row = [name]
        for size in SIZES:
            found = medians[name, load, size]
            keys = ("rate", "p50_ms", "p99_ms", "added_p50_ms", "added_p99_ms", "failed")
            row += [number(found[key]) for key in keys]
        rows.append(row)
    return Table(
        f"Latency at a constant rate, {LOADS[load]}; added: less that straight to the engine", columns, rows
    )


def _aims(medians: dict[tuple[str, str, int], dict[str, float]]) -> list[Aim]:
    aims = []
    for load, words in LOADS.items():
        for size in SIZES:
            ours, theirs = medians.get((OURS, load, size)), medians.get((SGLANG, load, size))
            if ours and theirs:
                what = f"p99 added latency, {size} B, {words}"
                aims.append(at_most(what, ours["added_p99_ms"], theirs["added_p99_ms"], unit=" ms"))
    return aims
