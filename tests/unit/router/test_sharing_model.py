"""Model test: caps of several routers never sum above an engine's, whatever happens in whatever order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from rolloutpool_api.serving import AdmissionPolicy
from rolloutpool_api.snapshot import AdmissionSnapshot, SnapshotClass, SnapshotEngine, SnapshotEngineClass
from rolloutpool_api.status import (
    AdmissionStatus,
    ClassAdmission,
    Endpoints,
    EngineAdmission,
    EngineClass,
    EngineEndpoint,
    RolloutPoolStatus,
)
from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.grants import POT, History, own_part, seen, wrote
from rolloutpool_router.core.roster import Roster, alive, looked
from rolloutpool_router.core.sharing import share
from rolloutpool_testkit.manifests import pool_manifest

ENGINES = ("e0",)
CLASSES = ("rlvr",)
REPLICAS = 3
Amounts = Mapping[tuple[str, str], int]
"""By engine and class; protected blocks under POT."""
START: Amounts = {(engine, name): 9 for engine in ENGINES for name in (POT, *CLASSES)}
"""What engines have before the first status: each router takes one part in REPLICAS."""
OPERATORS = st.integers(0, 1)
AMOUNTS = st.sampled_from([9, 9, 4, 20])
POOL = parse_pool(
    pool_manifest(workloads=[{"name": name, "share": 1.0} for name in CLASSES], router={"replicas": REPLICAS})
)
ENDPOINTS = Endpoints(
    admin=[EngineEndpoint(name=name, role="aggregated", url="http://e") for name in ENGINES]
)


def alike(amount: int) -> Amounts:
    return dict.fromkeys(START, amount)


def computed(amounts: Amounts, revision: int) -> AdmissionStatus:
    """Caps of all routers together."""
    return AdmissionStatus(
        revision=revision,
        policy=AdmissionPolicy.MISA_T,
        computed_at="2026-01-01T00:00:00Z",
        engines=[
            EngineAdmission(
                name=engine,
                capacity_blocks=100,
                protected_blocks=amounts[engine, POT],
                classes=[EngineClass(name=name, cap=amounts[engine, name]) for name in CLASSES],
            )
            for engine in ENGINES
        ],
        classes=[
            ClassAdmission(
                name=name, cap=sum(amounts[engine, name] for engine in ENGINES), active=0, waiting=0
            )
            for name in CLASSES
        ],
    )


def enforced(admission: AdmissionStatus | None, router: str) -> Amounts:
    """What a router enforces once it applied a status; None: before the first."""
    if admission is None:
        return {key: amount // REPLICAS for key, amount in START.items()}
    status = RolloutPoolStatus(admission=admission, endpoints=ENDPOINTS)
    own = own_part(POOL.model_copy(update={"status": status}), router).status.admission
    assert own is not None
    return {
        (engine.name, name): amount
        for engine in own.engines
        for name, amount in [(POT, engine.protected_blocks), *((c.name, c.cap) for c in engine.classes)]
    }


@dataclass
class Router:
    """A router process: applies newer statuses only, and lets sessions in up to what it enforces."""

    name: str
    applied: int
    caps: Amounts
    ready: bool = True
    active: dict[tuple[str, str], int] = field(default_factory=dict)

    def apply(self, status: AdmissionStatus) -> None:
        self.applied, self.caps = status.revision, enforced(status, self.name)

    def snapshot(self, waiting: Mapping[str, int]) -> AdmissionSnapshot:
        return AdmissionSnapshot(
            router=self.name,
            taken_at=0,
            applied_revision=self.applied,
            engines=[
                SnapshotEngine(
                    name=engine,
                    classes=[
                        SnapshotEngineClass(name=name, active=self.active.get((engine, name), 0), blocks=0)
                        for name in CLASSES
                    ],
                )
                for engine in ENGINES
            ],
            classes=[
                SnapshotClass(name=name, active=0, waiting=count, oldest_wait_seconds=count)
                for name, count in waiting.items()
            ],
        )


@dataclass
class Operator:
    """An operator process: all that it remembers can be lost at any time."""

    roster: Roster | None = None
    history: History = ()
    read: AdmissionStatus | None = None
    """The stored status as it last read it."""


@dataclass
class World:
    """Routers, two operators that may both be at work, and the API server between them."""

    routers: dict[str, Router] = field(default_factory=dict)
    """The living."""
    operators: list[Operator] = field(default_factory=lambda: [Operator(), Operator()])
    written: list[AdmissionStatus] = field(default_factory=list)
    amounts: list[Amounts] = field(default_factory=lambda: [START])
    """By revision."""
    answers: dict[str, AdmissionSnapshot] = field(default_factory=dict)
    """What each router last said; an operator may hear it late or never."""
    started: int = 0

    @property
    def stored(self) -> AdmissionStatus | None:
        return self.written[-1] if self.written else None

    def start(self) -> str:
        self.started += 1
        name = f"r{self.started}"
        self.routers[name] = Router(name, len(self.written), enforced(self.stored, name))
        self.answers[name] = self.routers[name].snapshot({})
        return name

    def operate(self, operator: Operator, amounts: Amounts, heard: list[bool], *, told: bool) -> None:
        """Look at the routers and write; the API server refuses who has not read the newest status."""
        names = sorted(self.routers)
        answers = {name: self.answers[name] for name, ok in zip(names, heard, strict=False) if ok}
        facts = [(name, f"http://{name}", self.routers[name].ready) for name in names]
        operator.roster = looked(operator.roster, facts, answers, now=0.0)
        operator.history = seen(operator.history, operator.read)
        if not answers or operator.read != self.stored:
            return
        status = share(
            computed(amounts, len(self.written) + 1),
            routers=alive(operator.roster, now=0.0),
            replicas=REPLICAS,
            history=operator.history,
        )
        self.written.append(status)
        self.amounts.append(amounts)
        if told:
            operator.history, operator.read = wrote(operator.history, status), status

    def settle(self) -> None:
        """Nothing happens any more but what must."""
        operator = Operator()
        for router in self.routers.values():
            router.ready, router.active = True, {}
        for _ in range(4):
            for name, router in self.routers.items():
                if self.stored is not None:
                    router.apply(self.stored)
                self.answers[name] = router.snapshot({})
            operator.read = self.stored
            self.operate(operator, START, [True] * len(self.routers), told=True)


class Routers(RuleBasedStateMachine):
    """Everything that can happen, in any order."""

    routers = Bundle("routers")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(target=routers)
    def bootstrap(self) -> object:
        return multiple(*(self.world.start() for _ in range(REPLICAS)))

    @precondition(lambda self: self.world.written)
    @rule(target=routers)
    def join(self) -> str:
        return self.world.start()

    @rule(name=consumes(routers))
    def die(self, name: str) -> None:
        del self.world.routers[name]

    @rule(name=routers, ready=st.booleans())
    def turn_ready_or_not(self, name: str, ready: bool) -> None:
        self.world.routers[name].ready = ready

    @rule(name=routers, skipped=st.integers(0, 3))
    def apply(self, name: str, skipped: int) -> None:
        """A router hears of the next revision, or of a later one."""
        router = self.world.routers[name]
        if later := self.world.written[router.applied :]:
            router.apply(later[min(skipped, len(later) - 1)])

    @rule(name=routers, waiting=st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 9)))
    def answer(self, name: str, waiting: dict[str, int]) -> None:
        self.world.answers[name] = self.world.routers[name].snapshot(waiting)

    @rule(
        name=routers,
        engine=st.sampled_from(ENGINES),
        class_name=st.sampled_from(CLASSES),
        change=st.integers(-3, 3),
    )
    def sessions(self, name: str, engine: str, class_name: str, change: int) -> None:
        """Sessions end, or enter as far as the cap lets them."""
        router, key = self.world.routers[name], (engine, class_name)
        before = router.active.get(key, 0)
        room = max(0, router.caps.get(key, 0) - before)
        router.active[key] = max(0, before + min(change, room))

    @rule(which=OPERATORS)
    def restart(self, which: int) -> None:
        self.world.operators[which] = Operator()

    @rule(which=OPERATORS)
    def read(self, which: int) -> None:
        self.world.operators[which].read = self.world.stored

    @rule(which=OPERATORS, amount=AMOUNTS, deaf=st.integers(0, 3), told=st.booleans())
    def write(self, which: int, amount: int, deaf: int, told: bool) -> None:
        """An operator at work that does not hear some router; not `told`: the answer to its write is lost."""
        heard = [number % 4 != deaf for number in range(1, 33)]
        self.world.operate(self.world.operators[which], alike(amount), heard, told=told)

    @rule(amount=AMOUNTS, waiting=st.lists(st.integers(0, 9), min_size=3, max_size=3), current=st.booleans())
    def work(self, amount: int, waiting: list[int], current: bool) -> None:
        """What usually happens: everybody (is current and) answers, and the first operator writes."""
        for number, (name, router) in enumerate(self.world.routers.items()):
            if current and self.world.stored is not None:
                router.apply(self.world.stored)
            self.world.answers[name] = router.snapshot(dict.fromkeys(CLASSES, waiting[number % 3]))
        self.read(0)
        self.world.operate(self.world.operators[0], alike(amount), [True] * 32, told=True)

    @invariant()
    def caps_in_force_fit(self) -> None:
        """They sum to at most the largest amount since the oldest revision that is still in force."""
        living = self.world.routers.values()
        if not living:
            return
        since = min(router.applied for router in living)
        for key in START:
            in_force = {router.name: (router.applied, router.caps.get(key, 0)) for router in living}
            largest = max(amounts[key] for amounts in self.world.amounts[since:])
            assert sum(cap for _, cap in in_force.values()) <= largest, (key, in_force)

    def teardown(self) -> None:
        """Left alone, routers share all that there is."""
        self.world.settle()
        for key, amount in START.items() if self.world.routers else ():
            assert sum(router.caps[key] for router in self.world.routers.values()) == amount


Routers.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestRouters = Routers.TestCase
