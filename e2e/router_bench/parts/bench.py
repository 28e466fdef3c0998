"""What all parts work with: settings of a run, and routers in front of engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.progress import Steps
from router_bench import wrk
from router_bench.builds import Build
from router_bench.contestants import DIRECT, Started, started
from router_bench.engines import Engines
from router_bench.processes import Cpus

WARM_SECONDS = 1.0


@dataclass(frozen=True)
class Bench:
    """A run: the same for all of its parts."""

    steps: Steps
    folder: Path
    """For logs and configurations."""
    cpus: Cpus
    routers: Sequence[str]
    """Who takes part."""
    rounds: int
    seconds: float
    """Of one measurement."""
    build: Build
    """Of our router."""
    rates: dict[tuple[str, int], float] = field(default_factory=dict)
    """Requests per second by router and size of prompt, as far as they have been measured."""

    @contextlib.contextmanager
    def contestants(self, engines: Engines, *, direct: bool = True) -> Iterator[list[Started]]:
        """Run all routers at once within the block, and name the engines themselves as one of them."""
        with contextlib.ExitStack() as stack:
            each = []
            for name in self.routers:
                with self.steps.step(f"started {name}"):
                    router = started(
                        name, engines, folder=self.folder, cpus=self.cpus.router, build=self.build
                    )
                    each.append(stack.enter_context(router))
            if direct:
                each.append(Started(DIRECT, engines.ports[0], engines.process))
            yield each


@dataclass(frozen=True)
class Load:
    """A measurement with wrk, and the processor time that a request took in the router meanwhile."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    engine_cpu: float
    """Part of one processor that the engines used: 1 means that they were the limit."""


def measure(bench: Bench, router: Started, engines: Engines, load: wrk.Load, *, seconds: float) -> Load:
    """Load one router with wrk."""
    cpu, engine_cpu = router.process.cpu_seconds(), engines.process.cpu_seconds()
    found = wrk.run(router.port, load, seconds=seconds, cpus=bench.cpus.load)
    cpu = router.process.cpu_seconds() - cpu
    engine_cpu = engines.process.cpu_seconds() - engine_cpu
    return Load(
        found.rate, found.p50_ms, found.p99_ms, 1e6 * cpu / max(1, found.requests), engine_cpu / found.seconds
    )


def alternating(rounds: int, names: Sequence[str], one: Callable[[str, int], None]) -> None:
    """Call `one(name, round)` in the order A B C, A B C, ...: what changes with time changes for all."""
    for number in range(rounds):
        for name in names:
            one(name, number)
