"""What is kept between decisions is what one would find by looking at everything anew, whatever happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.admission import headroom
from rolloutpool_router.core.classes import ClassState
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.entrants import Entrant
from rolloutpool_router.core.occupancy import Occupancy
from rolloutpool_router.core.placement import EngineLoad
from rolloutpool_router.core.queues import Ticket
from rolloutpool_router.core.requests import Arrival, Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.core.shared import marks
from rolloutpool_router.testing import pool_object
from rolloutpool_testkit.admission import CLASSES

ENGINES = {f"e{number}": f"http://e{number}" for number in range(5)}
BLOCKS = 400
SWITCHES = ("lending", "mixtureDebt", "parking", "chanceConstraint", "timeAveragedFootprint")
names = st.sampled_from(sorted(ENGINES))
classes = st.sampled_from(CLASSES)
picks = st.integers(0, 10_000)
prompts = st.sampled_from([0, 160, 160, 800, 1600, 3200, 6400, 64_000])
prefixes = st.sampled_from([(), (), tuple(range(3)), tuple(range(12)), (*range(6), 100, 101, 102)])


class ReachMachine(RuleBasedStateMachine):
    """Events of all kinds, and now and then a look at everything that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.controller = AdmissionController(Random(1), started=-1e9)
        self.now = 0.0
        self.names = 0
        self.revision = 0
        self.running: Counter[str] = Counter()
        self.entrants: dict[str, Entrant] = {}
        self.heads = {name: (Ticket("next", name, 0.0, prompt_tokens=160), False) for name in CLASSES}
        self.steps = 0

    @initialize(
        switches=st.sets(st.sampled_from(SWITCHES)),
        policy=st.sampled_from(["MISA-T", "MISA-T", "MISA", "Session", "Static", "None"]),
        offload=st.booleans(),
    )
    def begins(self, switches: set[str], policy: str, offload: bool) -> None:
        self.admission = {name: name not in switches for name in SWITCHES} | {"parkIdleSeconds": 5}
        self.policy, self.offload = policy, offload
        self.status_comes(dict.fromkeys(CLASSES, 3), {})
        one, blind = self.controller, policy == "Session"
        parts = one.fleet, one.table, one.ledger, one.occupancy
        self.entrants = {n: Entrant(n, *parts, class_blind=blind, capless=False) for n in CLASSES}

    @rule(
        caps=st.fixed_dictionaries({name: st.integers(0, 6) for name in CLASSES}),
        changes=st.dictionaries(
            names,
            st.sampled_from(
                [
                    {"protectedBlocks": 0},
                    {"protectedBlocks": 100},
                    {"capacityBlocks": 0},
                    {"pressure": 30, "protectedBlocks": 280},
                ]
            ),
            max_size=2,
        ),
    )
    def status_comes(self, caps: dict[str, int], changes: dict[str, dict[str, int]]) -> None:
        self.revision += 1
        pool: dict[str, Any] = pool_object(
            ENGINES,
            caps=caps,
            revision=self.revision,
            policy=self.policy,
            admission=self.admission,
            blocks=BLOCKS,
        )
        for engine in pool["status"]["admission"]["engines"]:
            engine |= changes.get(engine["name"], {})
            if self.offload:
                engine["offloadBlocks"] = 200
        self.controller.apply(parse_pool(pool), {})
        self.account(self.controller.admit_waiting(self.now))

    @rule(
        class_name=classes,
        tokens=prompts,
        prefix=prefixes,
        single=st.booleans(),
        group=st.sampled_from([None, None, b"g"]),
        number=st.integers(1, 4),
    )
    def requests_come(
        self,
        class_name: str,
        tokens: int,
        prefix: tuple[int, ...],
        single: bool,
        group: bytes | None,
        number: int,
    ) -> None:
        for _ in range(number):
            self.names += 1
            self.arrive(
                Arrival(
                    f"s{self.names}",
                    class_name,
                    prefix=prefix,
                    single=single,
                    prompt_tokens=tokens,
                    group=group,
                )
            )

    @rule(pick=picks, tokens=prompts)
    def a_session_goes_on(self, pick: int, tokens: int) -> None:
        known = [f"s{number}" for number in range(1, self.names + 1)]
        table = self.controller.table
        known = [name for name in known if table.get(name) or table.parked(name)]
        if session := one_of(pick, known):
            self.arrive(Arrival(session, "rlvr", prompt_tokens=tokens))

    @rule(pick=picks, ok=st.booleans(), tokens=prompts, seconds=st.sampled_from([0.0, 0.3, 5.0]))
    def a_turn_ends(self, pick: int, ok: bool, tokens: int, seconds: float) -> None:
        if session := one_of(pick, (+self.running).keys()):
            self.now += seconds
            self.running[session] -= 1
            usage = Usage(tokens, 64, cached_tokens=tokens // 2) if tokens else None
            self.controller.end_turn(session, now=self.now, ok=ok, usage=usage)
            self.account(self.controller.admit_waiting(self.now))

    @rule(pick=picks)
    def a_session_is_finished(self, pick: int) -> None:
        if session := one_of(pick, [session.id for session in self.controller.table]):
            self.controller.finish(session, self.now)
            self.account(self.controller.admit_waiting(self.now))

    @rule(seconds=st.sampled_from([0.3, 1.0, 6.0, 11.0]), most=st.sampled_from([None, 1, 3]))
    def time_passes(self, seconds: float, most: int | None) -> None:
        self.now += seconds
        self.account(self.controller.tick(self.now, most=most).entered)

    @rule(engine=names, fails=st.booleans())
    def a_connection_fails_or_not(self, engine: str, fails: bool) -> None:
        if fails:
            self.controller.fleet.failed(engine, self.now)
        else:
            self.controller.fleet.answered(engine)

    @rule()
    def rows_are_those_of_a_fresh_look(self) -> None:
        controller, fitting = self.controller, self.controller.occupancy.fitting
        rows = controller.occupancy.loads(self.now)
        fresh = Occupancy(controller.fleet, controller.table, controller.ledger, controller.retention)

        assert rows == [fresh.load(engine) for engine in controller.fleet.homes(self.now)]
        assert controller.occupancy.fill == [row.load for row in rows]
        assert controller.occupancy.rooms == [fitting.room(row) for row in rows]

    @rule(class_name=classes, tokens=prompts, prefix=prefixes, overdue=st.booleans())
    def another_session_is_next(
        self, class_name: str, tokens: int, prefix: tuple[int, ...], overdue: bool
    ) -> None:
        pieces = marks(prefix, prompt_tokens=tokens, block_size=16)
        ticket = Ticket("next", class_name, self.now, prompt_tokens=tokens, pieces=pieces)
        self.heads[class_name] = ticket, overdue

    @invariant()
    def openings_are_those_of_a_fresh_look(self) -> None:
        """One class at a time, so that some changes are seen together."""
        if not self.entrants:
            return
        self.steps += 1
        class_name = CLASSES[self.steps % len(CLASSES)]
        ticket, overdue = self.heads[class_name]
        controller, entrant = self.controller, self.entrants[class_name]
        controller.ledger.refresh(self.now)
        rows = controller.occupancy.loads(self.now)
        entrant.stand_for(ClassState(), ticket, debt=0.0, overdue=overdue)
        fitting = controller.occupancy.fitting
        outlay = controller.ledger.newcomer(class_name, ticket.pieces, ticket.prompt_tokens)
        ask = fitting.ask(outlay, ticket.pieces, overdue=overdue)

        def has_room(row: EngineLoad) -> bool:
            return headroom(row, class_name, class_blind=self.policy == "Session") > 0

        for beyond in (False, True):
            allowed = [r for r in rows if has_room(r) or (beyond and fitting.is_spare(class_name, r))]
            assert entrant.open_to(beyond=beyond) == [row for row in allowed if fitting.fits(ask, row)]
            wanted = [row for row in rows if beyond or has_room(row)]
            emptiest = min(wanted, key=lambda row: row.load).name if wanted else None
            assert entrant.emptiest(beyond=beyond) == emptiest

    def arrive(self, arrival: Arrival) -> None:
        answer, entered = self.controller.arrive(arrival, self.now)
        if isinstance(answer, Entered) and not any(entry is answer for entry in entered):
            self.running[arrival.session] += 1
        self.account(entered)

    def account(self, entered: list[Entered]) -> None:
        for entry in entered:
            session = self.controller.table.get(entry.session)
            assert session is not None
            self.running[entry.session] = session.in_flight


def one_of(pick: int, found: Iterable[str]) -> str | None:
    """One of some names, None where there is none."""
    known = sorted(found)
    return known[pick % len(known)] if known else None


TestReach = ReachMachine.TestCase
TestReach.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
