"""What the admission core costs: microseconds per request and bytes per idle session, without any HTTP.

    PYTHONPATH=e2e python -m router_bench.core_cost            all figures, about a minute
    PYTHONPATH=e2e python -m router_bench.core_cost --quick    a fifth of the requests

Each case drives one `AdmissionController` in virtual time, 2,000 requests per virtual second, with the ticks
that a router makes once a second. A request is `arrive` of one, `end_turn` of one that is in flight, and the
`admit_waiting` that follows. Times are those of the processor: what other processes take does not count, but
they slow it down, so compare two versions of the code in one run after the other. `least` is the 5th
percentile of single requests; `mean` includes everything, ticks and refreshed estimates too.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from statistics import mean
from time import thread_time_ns
from typing import Annotated, Any

import typer

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.requests import Arrival, Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.testing import pool_object

CLASSES = ("rlvr", "rlhf", "agentic", "tools")
BLOCKS = 27_000
"""KV blocks of an engine: an 8B model on one 80 GB card."""
CAP = 40
"""Sessions of each class that an engine may hold while others wait."""
REQUESTS_PER_SECOND = 2_000
LOOK_EVERY = 20
"""Requests between two looks at sessions: 10 ms."""
MOST_AT_ONCE = 200
"""Sessions that one tick looks at; the others are looked at between requests, which `mean` includes."""


class World:
    """A controller, its clock, and the requests in flight."""

    def __init__(self, engines: int) -> None:
        self.controller = AdmissionController(Random(1), started=-1e9)
        self.now = 0.0
        self.running: deque[str] = deque()
        self._names = count()
        self._sizes = Random(2)
        self.controller.apply(parse_pool(pool(engines)), {})
        self.controller.tick(self.now)

    def single(self, class_name: str, prefix: tuple[int, ...] = ()) -> Arrival:
        """A request of a client that names no session."""
        name = f"single-{next(self._names)}"
        return Arrival(name, class_name, prefix=prefix, single=True, prompt_tokens=self.tokens())

    def usage(self) -> Usage:
        """Tokens of an answer."""
        return Usage(self.tokens(), self.tokens() // 2)

    def tokens(self) -> int:
        """500 to 1,500."""
        return 500 + int(1_000 * self._sizes.random())

    def arrive(self, arrival: Arrival) -> None:
        """A request comes."""
        answer, entered = self.controller.arrive(arrival, self.now)
        if isinstance(answer, Entered) and not entered:
            self.running.append(arrival.session)
        self.running.extend([entry.session for entry in entered])

    def end_oldest(self, usage: Usage) -> None:
        """The request that entered first is answered."""
        self.controller.end_turn(self.running.popleft(), now=self.now, ok=True, usage=usage)
        self.running.extend([entry.session for entry in self.controller.admit_waiting(self.now)])

    def tick(self) -> None:
        """Once a second, as the router does it."""
        ticked = self.controller.tick(self.now, most=MOST_AT_ONCE)
        self.running.extend([entry.session for entry in ticked.entered])


def pool(engines: int) -> dict[str, Any]:
    """A pool of so many engines and the four classes; sessions idle for a day."""
    workloads = [
        {"name": name, "share": 0.25, "sessionIdleSeconds": 86_400, "overload": {"maxWaiting": 100_000}}
        for name in CLASSES
    ]
    urls = {f"engine-{index}": f"http://engine-{index}" for index in range(engines)}
    return pool_object(urls, caps=dict.fromkeys(CLASSES, CAP), workloads=workloads, blocks=BLOCKS)


def full_queues(world: World) -> Iterator[Arrival]:
    """All engines are full and sessions of all classes wait: one ends, one comes, one enters."""
    for number in count():
        if all(len(state.queue) >= 100 for state in world.controller.classes.values()):
            break
        world.arrive(world.single(CLASSES[number % 4]))
    for number in count():
        yield world.single(CLASSES[number % 4])


def entering_at_once(world: World) -> Iterator[Arrival]:
    """Requests without a session enter at once, 32 in flight."""
    for number in range(32):
        world.arrive(world.single(CLASSES[number % 2]))
    for number in count():
        yield world.single(CLASSES[number % 2])


def long_prompts(world: World) -> Iterator[Arrival]:
    """The same with prompts of 32 KB: 128 chunks, of which the first 64 are those of others."""
    shared, fresh = tuple(range(64)), count(1_000)
    for _ in range(32):
        world.arrive(world.single(CLASSES[0], shared))
    for number in count():
        yield world.single(CLASSES[number % 2], (*shared, *(next(fresh) for _ in range(64))))


def turns_among(sessions: int) -> Callable[[World], Iterator[Arrival]]:
    """Turns of resident sessions, one after the other, among so many open ones."""

    def turns(world: World) -> Iterator[Arrival]:
        names = open_sessions(world, sessions)
        for number in count():
            name = names[number * 7919 % len(names)]
            yield Arrival(name, CLASSES[0], prompt_tokens=world.tokens(), has_history=True)

    return turns


def open_sessions(world: World, sessions: int, chunks: int = 0) -> list[str]:
    """Open idle sessions, each with one turn behind it and a first prompt of so many chunks of its own."""
    names, fresh = [], count()
    for number in range(sessions):
        name = f"session-{number:08}-{number:08}"
        prefix = tuple(next(fresh) for _ in range(chunks))
        arrival = Arrival(name, CLASSES[number % 4], prefix=prefix, has_history=True, stray=True)
        world.controller.arrive(arrival, world.now)
        world.controller.end_turn(name, now=world.now, ok=True, usage=Usage(1_000, 400))
        names.append(name)
    return names


@dataclass(frozen=True)
class Case:
    """One situation to measure."""

    name: str
    engines: int
    requests: int
    """Requests measured."""
    arrivals: Callable[[World], Iterator[Arrival]]
    """Prepares the situation, then gives one request after the other."""


CASES = (
    Case("full queues, 100 engines", 100, 20_000, full_queues),
    Case("full queues, 4 engines", 4, 20_000, full_queues),
    Case("single at once, 1 engine", 1, 20_000, entering_at_once),
    Case("single at once, 4 engines", 4, 20_000, entering_at_once),
    Case("single at once, 100 engines", 100, 20_000, entering_at_once),
    Case("single at once, 4 engines, 32 KB", 4, 10_000, long_prompts),
    Case("turn among 1,000 sessions", 4, 20_000, turns_among(1_000)),
    Case("turn among 100,000 sessions", 4, 20_000, turns_among(100_000)),
)


@dataclass(frozen=True)
class Measured:
    """Processor time of a case, in nanoseconds."""

    requests: list[int]
    """Of each request."""
    ticks: list[int]
    """Of each tick."""


def measure(case: Case, requests: int) -> Measured:
    """Run a case."""
    world = World(case.engines)
    arrivals = case.arrivals(world)
    measured = Measured([], [])
    for number in range(requests + 1):
        arrival, usage = next(arrivals), world.usage()
        if number == 0:
            gc.collect()
            gc.freeze()
        began = thread_time_ns()
        world.arrive(arrival)
        world.end_oldest(usage)
        if number > 0:
            measured.requests.append(thread_time_ns() - began)
        world.now += 1 / REQUESTS_PER_SECOND
        if number % REQUESTS_PER_SECOND == REQUESTS_PER_SECOND - 1:
            began = thread_time_ns()
            world.tick()
            measured.ticks.append(thread_time_ns() - began)
        elif number % LOOK_EVERY == 0:
            began = thread_time_ns()
            world.controller.go_on(world.now, most=MOST_AT_ONCE)
            measured.ticks.append(thread_time_ns() - began)
    return measured


def line(name: str, measured: Measured) -> str:
    """A case's figures in microseconds, ticks in milliseconds."""
    spent = sorted(measured.requests)
    parts = [spent[len(spent) * percent // 100] / 1e3 for percent in (5, 50, 99)]
    whole = mean([sum(spent) + sum(measured.ticks)]) / len(spent) / 1e3
    tick = max(measured.ticks, default=0) / 1e6
    return f"{name:<34}" + "".join(f"{part:>9.1f}" for part in (*parts, whole)) + f"{tick:>10.2f}"


def bytes_per_session(sessions: int, chunks: int) -> float:
    """Bytes that an idle open session takes, whose first prompt had so many chunks of its own."""
    world = World(4)
    gc.collect()
    tracemalloc.start()
    open_sessions(world, sessions, chunks)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return taken / sessions


def main(
    quick: Annotated[bool, typer.Option(help="A fifth of the requests.")] = False,
    only: Annotated[str, typer.Option(help="Only cases whose name has this in it.")] = "",
) -> None:
    """Measure what the admission core costs per request and per idle session."""
    heads = "".join(f"{head:>9}" for head in ("least", "median", "p99", "mean"))
    sys.stdout.write(f"{'microseconds per request':<34}{heads}{'tick, ms':>10}\n")
    for case in CASES:
        if only in case.name:
            sys.stdout.write(line(case.name, measure(case, case.requests // (5 if quick else 1))) + "\n")
            sys.stdout.flush()
    if not only:
        short, long = (bytes_per_session(2_000 if quick else 20_000, chunks) for chunks in (0, 128))
        sys.stdout.write(f"bytes per idle open session: {short:,.0f}; with a 32 KB prompt {long:,.0f}\n")


if __name__ == "__main__":
    typer.run(main)
