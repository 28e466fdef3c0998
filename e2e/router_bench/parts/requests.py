"""Requests per second at two sizes of prompt, without session ids and with sessions of several turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from router_bench import wrk
from router_bench.contestants import BARE, DIRECT, OURS, SGLANG, Started
from router_bench.engines import Engines, fixed_engines
from router_bench.figures import Aim, Report, Table, at_least, middle, number
from router_bench.parts.bench import WARM_SECONDS, Bench, Load, measure

SIZES = (200, 32_768)
MODES = {"single": "no session id", "sessions": "five turns each"}
AIM = 1.5
"""Our rate over sglang-router's."""

Key = tuple[str, str, int]
"""Router, mode and bytes of the prompt."""


def run(bench: Bench) -> Report:
    """Measure; keeps the rates in `bench.rates` for the part that needs half of them."""
    found: dict[Key, list[Load]] = defaultdict(list)
    with fixed_engines(bench.folder, bench.cpus.load) as engines, bench.contestants(engines) as routers:
        for number_ in range(bench.rounds):
            with bench.steps.step(f"requests: round {number_ + 1} of {bench.rounds}") as note:
                for mode, size in ((mode, size) for mode in MODES for size in SIZES):
                    for router in _taking_part(routers, mode):
                        note(f"{router.name}, {size} B, {MODES[mode]}")
                        load = wrk.Load(mode, size, name=f"{router.name[:4]}-{number_}-{size}")
                        found[router.name, mode, size].append(_one(bench, router, engines, load, number_))
    medians = {key: _median(loads) for key, loads in found.items()}
    bench.rates.update(
        {(name, size): load.rate for (name, mode, size), load in medians.items() if mode == "single"}
    )
    return Report("requests", [_table(medians, mode) for mode in MODES], _aims(medians), _figures(found))


def _taking_part(routers: Sequence[Started], mode: str) -> list[Started]:
    """Session ids make no difference to a bare proxy."""
    return [each for each in routers if mode == "single" or each.name not in (BARE, DIRECT)]


def _one(bench: Bench, router: Started, engines: Engines, load: wrk.Load, number_: int) -> Load:
    if number_ == 0:
        warm = wrk.Load(load.mode, load.prompt_bytes, load.sessions, name=f"{load.name}-warm")
        measure(bench, router, engines, warm, seconds=WARM_SECONDS)
    return measure(bench, router, engines, load, seconds=bench.seconds)


def _median(loads: Sequence[Load]) -> Load:
    fields = zip(
        *((each.rate, each.p50_ms, each.p99_ms, each.cpu_us, each.engine_cpu) for each in loads), strict=True
    )
    return Load(*(middle(values) for values in fields))


def _table(medians: dict[Key, Load], mode: str) -> Table:
    names = [name for name, each, size in medians if each == mode and size == SIZES[0]]
    columns = ["requests/s"]
    for size in SIZES:
        columns += [f"{_size(size)}", "ratio", "p99 ms", "CPU us", "engines"]
    rows = []
    for name in names:
        row = [name]
        for size in SIZES:
            load = medians[name, mode, size]
            base = medians.get((SGLANG, mode, size))
            ratio = load.rate / base.rate if base else float("nan")
            cpu = number(load.cpu_us) if name != DIRECT else "-"
            row += [number(load.rate), number(ratio), number(load.p99_ms), cpu, f"{load.engine_cpu:.0%}"]
        rows.append(row)
    title = (
        f"Requests/s, {MODES[mode]}, {wrk.CONNECTIONS} connections; ratio to {SGLANG};"
        " processor time of the router per request; of the engines"
    )
    return Table(title, columns, rows)


def _aims(medians: dict[Key, Load]) -> list[Aim]:
    aims = []
    for mode in MODES:
        for size in SIZES:
            ours, theirs = medians.get((OURS, mode, size)), medians.get((SGLANG, mode, size))
            if ours and theirs:
                what = f"requests/s over {SGLANG}'s, {_size(size)}, {MODES[mode]}"
                aims.append(at_least(what, ours.rate / theirs.rate, AIM, unit="x"))
    return aims


def _figures(found: dict[Key, list[Load]]) -> dict[str, object]:
    return {
        "rounds": [
            {
                "router": name,
                "mode": mode,
                "prompt_bytes": size,
                "requests_per_second": [round(load.rate) for load in loads],
                "p99_ms": [load.p99_ms for load in loads],
                "router_cpu_us_per_request": [round(load.cpu_us, 1) for load in loads],
                "engine_cpu": [round(load.engine_cpu, 2) for load in loads],
            }
            for (name, mode, size), loads in found.items()
        ]
    }


def _size(size: int) -> str:
    return f"{size // 1024} KB" if size >= 1024 else f"{size} B"
