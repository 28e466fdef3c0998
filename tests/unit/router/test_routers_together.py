"""Several real controllers and the operator's decisions in virtual time: caps hold, and all is served."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import pytest

from rolloutpool_api.status import RolloutPoolStatus
from rolloutpool_api.v1alpha1 import RolloutPool, parse_pool
from rolloutpool_router.core.control import (
    EngineCapacity,
    compute_admission,
    matters,
    merge_snapshots,
    next_revision,
)
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.grants import History, own_part, seen, sharers, wrote
from rolloutpool_router.core.ownership import ranking, session_key
from rolloutpool_router.core.requests import Arrival, Entered
from rolloutpool_router.core.roster import Roster, alive, looked
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.core.sharing import share, shares_matter
from rolloutpool_router.core.snapshot import take_snapshot
from rolloutpool_router.testing import pool_object

ENGINES = ("e0", "e1")
PERIOD = 2.0
"""Between two looks of the operator, in seconds."""
SECONDS = 3.0
"""How long a session is resident."""
DELAYS = (0.05, 1.0, 5.0)
"""How long a router may take to hear of a status, in seconds."""


@dataclass
class World:
    """Routers, an operator and sessions that hold their place for a while; times in seconds."""

    body: dict[str, Any]
    blocks: int
    """Of an engine."""
    rng: Random
    routers: dict[str, AdmissionController] = field(default_factory=dict)
    roster: Roster | None = None
    history: History = ()
    stored: RolloutPoolStatus | None = None
    now: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)
    """When a session that waits came, by session."""
    places: dict[str, str] = field(default_factory=dict)
    """Router of every session that is not finished."""
    longest_wait: float = 0.0
    finished: Counter[str] = field(default_factory=Counter)
    caps: dict[tuple[str, str], int] = field(default_factory=dict)
    """Largest cap of all routers together that was ever written, by engine and class."""
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Any = field(default_factory=lambda: count())

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self, sessions: int, check: Callable[[], None]) -> None:
        """Until so many sessions have finished, or long after they should have."""
        while self._events and self.now < 1000.0 and sum(self.finished.values()) < sessions:
            self.now, _, what = heapq.heappop(self._events)
            what()
            check()

    def pool(self) -> RolloutPool:
        pool = parse_pool(self.body)
        return pool if self.stored is None else pool.model_copy(update={"status": self.stored})

    def start(self, name: str) -> None:
        controller = AdmissionController(Random(1), started=self.now)
        self.routers[name] = controller
        self.apply(name, self.pool())

        def tick() -> None:
            if self.routers.get(name) is controller:
                self.entered(name, controller.tick(self.now).entered)
                self.at(self.now + 1.0, tick)

        tick()

    def apply(self, name: str, pool: RolloutPool) -> None:
        if (controller := self.routers.get(name)) is not None:
            sizes = {engine: self.blocks // sharers(pool) for engine in ENGINES}
            controller.apply(own_part(pool, name), sizes)
            self.entered(name, controller.admit_waiting(self.now))

    def operate(self) -> None:
        """What the operator's admission loop does."""
        pool = self.pool()
        answers = {
            name: take_snapshot(controller, router=name, now=self.now, taken_at=self.now, ignored_statuses=0)
            for name, controller in self.routers.items()
        }
        facts = [(name, f"http://{name}", True) for name in self.routers]
        self.roster = looked(self.roster, facts, answers, now=self.now)
        stored = pool.status.admission
        self.history = seen(self.history, stored)
        snapshots = [router.snapshot for router in self.roster if router.snapshot]
        fresh = compute_admission(
            pool.spec,
            merged=merge_snapshots([item.name for item in pool.spec.workloads], snapshots),
            engines=[EngineCapacity(name=name, capacity_blocks=self.blocks, ready=True) for name in ENGINES],
            revision=next_revision(stored, snapshots, 0),
            now=self.now,
        )
        routers = alive(self.roster, now=self.now)
        fresh = share(fresh, routers=routers, replicas=pool.spec.router.replicas, history=self.history)
        if matters(fresh, stored, now=self.now) or shares_matter(fresh, stored):
            self.stored = pool.status.model_copy(update={"admission": fresh})
            self.history = wrote(self.history, fresh)
            for engine in fresh.engines:
                for item in engine.classes:
                    key = engine.name, item.name
                    self.caps[key] = max(self.caps.get(key, 0), item.cap)
            told = self.pool()
            for name in self.routers:
                delay = self.rng.choice(DELAYS)
                self.at(self.now + delay, lambda name=name: self.apply(name, told))  # type: ignore[misc]
        self.at(self.now + PERIOD, self.operate)

    def arrive(self, session: str) -> None:
        """A session of one turn comes to its router."""
        name = ranking(session_key(session), self.routers)[0]
        self.waits.setdefault(session, self.now)
        self.places[session] = name
        arrival = Arrival(session, session.split("-")[0], single=True, prompt_tokens=100)
        answer, entered = self.routers[name].arrive(arrival, self.now)
        if isinstance(answer, Entered) and answer not in entered:
            entered = [answer, *entered]
        self.entered(name, entered)

    def entered(self, name: str, entries: list[Entered]) -> None:
        controller = self.routers[name]
        for entry in entries:
            self.longest_wait = max(self.longest_wait, self.now - self.waits.pop(entry.session))
            self.at(self.now + SECONDS, lambda entry=entry: self.end(controller, name, entry))  # type: ignore[misc]

    def end(self, controller: AdmissionController, name: str, entry: Entered) -> None:
        """A session is answered, unless its router is gone."""
        if self.routers.get(name) is controller:
            controller.end_turn(entry.session, now=self.now, ok=True, usage=Usage(100, 60))
            del self.places[entry.session]
            self.finished[entry.class_name] += 1
            self.entered(name, controller.admit_waiting(self.now))

    def die(self, name: str) -> None:
        """A router is gone; the clients of its sessions come again."""
        del self.routers[name]
        for session, place in list(self.places.items()):
            if place == name:
                self.arrive(session)

    def check_caps(self) -> None:
        """No engine has more sessions of a class than its cap, all routers together."""
        for key, sessions in self.residents().items():
            start = len(self.routers) if self.now < START_SECONDS else 0
            assert sessions <= max(self.caps[key], start), (self.now, key)

    def residents(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for controller in self.routers.values():
            for engine in ENGINES:
                for class_name, tally in controller.table.tally(engine).items():
                    found[engine, class_name] += tally.sessions
        return found


START_SECONDS = 15.0
"""Until the first statuses have reached all routers, each may hold one session of a class on an engine."""


def world(policy: str, *, blocks: int, replicas: int = 3, **admission: Any) -> World:
    workloads = [
        {"name": "small", "share": 0.6, "priors": _priors(60, 100)},
        {"name": "large", "share": 0.4, "priors": _priors(800, 800)},
    ]
    body = pool_object(
        dict.fromkeys(ENGINES, "http://e"), workloads=workloads, admission={"policy": policy} | admission
    )
    body["spec"]["router"] = {"replicas": replicas}
    return World(body, blocks, Random(3))


def _priors(prompt: int, output: int) -> Mapping[str, Any]:
    return {
        "promptTokens": {"p50": prompt, "p95": prompt},
        "outputTokens": {"p50": output, "p95": output},
    }


def flooded(policy: str, *, blocks: int, **admission: Any) -> World:
    """A world of three routers to which more sessions come than fit."""
    found = world(policy, blocks=blocks, **admission)
    for name in ("r0", "r1", "r2"):
        found.start(name)
    found.operate()
    for number in range(200):
        session = f"{'large' if number % 5 == 0 else 'small'}-{number}"
        found.at(number * 0.4, lambda session=session: found.arrive(session))  # type: ignore[misc]
    return found


@pytest.mark.parametrize(
    ("policy", "blocks"),
    [
        pytest.param("Static", 600, id="many sessions an engine"),
        pytest.param("Static", 130, id="one session of a class an engine, and three routers"),
        pytest.param("MISA", 300, id="caps that follow demand"),
    ],
)
def test_residents_of_all_routers_stay_within_the_caps(policy: str, blocks: int) -> None:
    found = flooded(policy, blocks=blocks)

    found.run(200, found.check_caps)
    assert (sum(found.finished.values()), found.waits) == (200, {})


def test_routers_that_die_and_join_change_nothing_about_that() -> None:
    found = flooded("Static", blocks=600)
    found.at(20.0, lambda: found.die("r1"))
    found.at(35.0, lambda: found.start("r3"))
    found.at(50.0, lambda: found.die("r0"))
    found.at(65.0, lambda: found.start("r4"))

    found.run(200, found.check_caps)
    assert (sum(found.finished.values()), found.waits) == (200, {})


def test_the_pot_of_an_engine_is_shared() -> None:
    found = flooded("MISA-T", blocks=200)

    def check() -> None:
        for engine in ENGINES:
            held = sum(
                tally.blocks
                for controller in found.routers.values()
                for tally in controller.table.tally(engine).values()
            )
            assert held <= found.blocks, (found.now, engine)

    found.run(200, check)
    assert (sum(found.finished.values()), found.waits) == (200, {})
