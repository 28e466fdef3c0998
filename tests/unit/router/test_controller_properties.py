"""Whatever happens in whatever order: permits and pots are conserved, and everybody has their turn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.admission import EntryReason
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.prefix import PrefixKey
from rolloutpool_router.core.requests import Arrival, Entered, Queued
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.core.view import Ignored
from rolloutpool_router.testing import pool_object
from rolloutpool_testkit.admission import CLASSES, ENGINES

SWITCHES = ("lending", "mixtureDebt", "groups", "parking", "chanceConstraint", "timeAveragedFootprint")
WORKLOADS: list[dict[str, Any]] = [
    {"name": "rlvr", "share": 0.5},
    {"name": "rlhf", "share": 0.3, "overload": {"maxWaitSeconds": 8}, "sessionIdleSeconds": 50},
    {"name": "agentic", "share": 0.2, "priors": {"turns": 5, "toolGapSeconds": 1}},
]
caps_of_classes = st.fixed_dictionaries({name: st.integers(0, 4) for name in CLASSES})
engine_lists = st.lists(st.sampled_from(sorted(ENGINES)), unique=True, min_size=1)
picks = st.integers(0, 1000)
prefixes = st.sampled_from([(), (1,), (1, 2, 3), (1, 4)])
usages = st.none() | st.builds(
    Usage, prompt_tokens=st.integers(0, 5000), completion_tokens=st.integers(0, 500), cached_tokens=st.none()
)


class AdmissionMachine(RuleBasedStateMachine):
    """Drives a controller at random, next to a plain account of what should be the case."""

    def __init__(self) -> None:
        super().__init__()
        self.controller = AdmissionController(Random(1))
        self.now = 0.0
        self.revision = self.generation = 0
        self.names = 0
        self.admission: dict[str, Any] = {}
        self.waiting: dict[str, list[Queued]] = {}
        self.grouped: set[str] = set()
        self.parked: set[str] = set()
        """Those whose next turn waits."""
        self.entered: Counter[str] = Counter()

    @initialize(
        off=st.sets(st.sampled_from(SWITCHES), max_size=2),
        hard=st.booleans(),
        policy=st.sampled_from(["MISA-T"] * 6 + ["MISA", "Session", "Static"]),
    )
    def start(self, off: set[str], hard: bool, policy: str) -> None:
        self.policy = policy
        self.admission = {name: name not in off for name in SWITCHES}
        self.admission |= {"parkIdleSeconds": 3, "starvationSeconds": 20}
        self.mixture = {"enforcement": "Hard" if hard else "Soft"}
        self.apply(caps={"rlvr": 2, "rlhf": 1, "agentic": 1}, engines=["e0", "e1"], without=None)

    @rule(caps=caps_of_classes, engines=engine_lists, without=st.none() | st.sampled_from(CLASSES))
    def apply(self, caps: dict[str, int], engines: list[str], without: str | None) -> None:
        self.revision += 1
        self.generation += 1
        workloads = [one for one in WORKLOADS if one["name"] != without]
        whole = sum(one["share"] for one in workloads)
        pool = pool_object(
            {name: ENGINES[name] for name in engines},
            caps=caps,
            revision=self.revision,
            workloads=[one | {"share": one["share"] / whole} for one in workloads],
            admission=self.admission,
            policy=self.policy,
            blocks=600,
        )
        pool["spec"]["mixture"] = self.mixture
        pool["metadata"]["generation"] = self.generation
        dropped = self.controller.apply(parse_pool(pool), {})
        assert not isinstance(dropped, Ignored)
        for ticket in dropped:
            assert ticket.class_name == without
            self.answered(ticket.session)
        self.admit()

    @rule(
        class_name=st.sampled_from(CLASSES),
        kind=st.sampled_from(["named", "named", "named", "single", "with-history"]),
        seconds=st.floats(0, 5),
        tokens=st.sampled_from([0, 100, 3000]),
        prefix=prefixes,
        group=st.none() | st.sampled_from([b"g", b"h"]),
        sessions=st.integers(1, 5),
    )
    def new_sessions(
        self,
        class_name: str,
        kind: str,
        seconds: float,
        tokens: int,
        prefix: tuple[PrefixKey, ...],
        group: bytes | None,
        sessions: int,
    ) -> None:
        self.now += seconds
        new = [f"s{self.names + number:04}" for number in range(1, sessions + 1)]
        self.names += sessions
        if group is not None and self.admission["groups"]:
            self.grouped.update(new)
        like = Arrival(
            "",
            class_name,
            prefix,
            single=kind == "single",
            has_history=kind == "with-history",
            prompt_tokens=tokens,
            group=group,
        )
        for session in new:
            self.arrive(replace(like, session=session))

    @rule(pick=picks, history=st.booleans(), tokens=st.sampled_from([0, 100, 3000]))
    def another_request(self, pick: int, history: bool, tokens: int) -> None:
        self.go_on(self.one_of(pick, self.open_sessions()), history, tokens)

    @rule(pick=picks)
    def a_parked_session_goes_on(self, pick: int) -> None:
        table = self.controller.table
        self.go_on(self.one_of(pick, filter(table.parked, self.open_sessions())), True, 100)

    def open_sessions(self) -> list[str]:
        names = (f"s{number:04}" for number in range(1, self.names + 1))
        return [name for name in names if self.controller.class_of(name) is not None]

    def go_on(self, session: str | None, history: bool, tokens: int) -> None:
        if session is not None and (class_name := self.controller.class_of(session)) is not None:
            self.arrive(Arrival(session, class_name, has_history=history, prompt_tokens=tokens))

    @rule(pick=picks, ok=st.sampled_from([True, True, True, False]), usage=usages)
    def a_turn_ends(self, pick: int, ok: bool, usage: Usage | None) -> None:
        if (session := self.one_of(pick, (+self.entered).keys())) is not None:
            self.end_turn(session, ok=ok, usage=usage)

    def end_turn(self, session: str, *, ok: bool, usage: Usage | None) -> None:
        self.entered[session] -= 1
        self.controller.end_turn(session, now=self.now, ok=ok, usage=usage)
        self.admit()

    @rule(pick=picks)
    def a_tool_runs_for_long(self, pick: int) -> None:
        if (session := self.one_of(pick, (+self.entered).keys())) is not None:
            self.end_turn(session, ok=True, usage=Usage(100, 100, cached_tokens=64))
            self.time_passes(4.0)

    @rule(pick=picks)
    def a_request_is_withdrawn(self, pick: int) -> None:
        if (session := self.one_of(pick, self.waiting)) is not None:
            self.cancel(session)

    def cancel(self, session: str) -> None:
        queued = self.waiting[session].pop()
        if not self.waiting[session]:
            self.answered(session)
        self.controller.cancel(queued, self.now)
        if queued.resident:
            self.controller.end_turn(session, now=self.now, ok=False)
        self.admit()

    @rule(pick=picks)
    def a_session_is_finished(self, pick: int) -> None:
        if (session := self.one_of(pick, [session.id for session in self.controller.table])) is not None:
            self.finish(session)

    @rule(pick=picks)
    def a_waiting_session_is_finished(self, pick: int) -> None:
        if (session := self.one_of(pick, self.waiting)) is not None:
            self.finish(session)

    def finish(self, session: str) -> None:
        table = self.controller.table
        known = table.get(session) is not None or table.parked(session) is not None
        known = known or any(state.queue.get(session) for state in self.controller.classes.values())
        assert self.controller.finish(session, self.now) == known
        self.admit()

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 4.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        ticked = self.controller.tick(self.now)
        for ticket, refusal in ticked.refused:
            assert (ticket.class_name, refusal.outcome) == ("rlhf", Outcome.WAITED_LONG)
            assert self.now - ticket.arrived_at >= 8
            assert ticket.requests == len(self.waiting[ticket.session])
            self.answered(ticket.session)
        self.account(ticked.entered)

    @rule(engine=st.sampled_from(sorted(ENGINES)))
    def engine_fails(self, engine: str) -> None:
        self.controller.fleet.failed(engine, self.now)

    @rule(pick=picks)
    def reroute(self, pick: int) -> None:
        session = self.one_of(pick, (+self.entered).keys())
        if session is None:
            return
        answer = self.controller.reroute(session, now=self.now, avoid=())
        if isinstance(answer, Queued):
            self.entered[session] -= 1
            self.waiting.setdefault(session, []).append(answer)

    def teardown(self) -> None:
        if self.admission:
            self.nobody_waits_for_ever()
            self.permits_are_conserved()
            self.everything_ends()

    def nobody_waits_for_ever(self) -> None:
        """While answers end and sessions finish, all that wait enter, a few at a time."""
        for _ in range(30 + 10 * len(self.waiting)):
            if not self.waiting:
                break
            self.time_passes(1.0)
            for session in +self.entered:
                while self.entered[session]:
                    self.end_turn(session, ok=True, usage=None)
            for resident in list(self.controller.table):
                self.finish(resident.id)
        assert not self.waiting

    def everything_ends(self) -> None:
        for session in list(self.waiting):
            while session in self.waiting:
                self.cancel(session)
        for session in list(self.entered):
            while self.entered[session]:
                self.end_turn(session, ok=True, usage=None)
        self.time_passes(1000.0)
        table, ledger = self.controller.table, self.controller.ledger
        assert len(table) == 0
        assert not table.by_class
        assert not table.parked_by_class
        assert all(not table.tally(name) for name in ENGINES)
        assert {books.shared.blocks for books in ledger.engines.values()} <= {0.0}
        assert sum(books.held for books in ledger.engines.values()) == pytest.approx(0, abs=1e-6)
        assert sum(books.expected for books in ledger.engines.values()) == pytest.approx(0, abs=1e-6)

    @staticmethod
    def one_of(pick: int, names: Iterable[str]) -> str | None:
        """One of some sessions, None where there is none."""
        found = sorted(names)
        return found[pick % len(found)] if found else None

    def arrive(self, arrival: Arrival) -> None:
        table, session = self.controller.table, arrival.session
        resident, parked = table.get(session) is not None, table.parked(session) is not None
        answer, entered = self.controller.arrive(arrival, self.now)
        if isinstance(answer, Refusal):
            assert arrival.class_name not in self.controller.classes
        elif isinstance(answer, Queued):
            self.waiting.setdefault(session, []).append(answer)
        elif resident or answer.adopted:
            self.entered[session] += 1
        else:
            self.waiting.setdefault(session, []).append(Queued(session, arrival.class_name))
        if parked and session in self.waiting:
            self.parked.add(session)
        self.account(entered)

    def admit(self) -> None:
        self.account(self.controller.admit_waiting(self.now))

    def answered(self, session: str) -> None:
        self.waiting.pop(session, None)
        self.parked.discard(session)

    def account(self, entered: list[Entered]) -> None:
        """Every entry is one that waited, with all its requests, and the first of its class."""
        for entry in entered:
            requests = self.waiting[entry.session]
            if not requests[0].resident:
                self.check_order(entry)
                self.check_cap(entry)
            self.answered(entry.session)
            self.entered[entry.session] += len(requests)

    def check_order(self, entry: Entered) -> None:
        """Parked ones go first, then the others in their order, but for samples of one prompt."""
        of_class = [
            name
            for name, queued in self.waiting.items()
            if queued[0].class_name == entry.class_name and not queued[0].resident
        ]
        before = [name for name in of_class if name in self.parked]
        if entry.session in self.parked:
            return
        assert not before
        if entry.session not in self.grouped:
            assert min(name for name in of_class if name not in self.grouped) == entry.session

    def check_cap(self, entry: Entered) -> None:
        if entry.reason is not EntryReason.ROOM:
            assert entry.reason is not None
            return
        cap = self.controller.fleet.engines[entry.engine].caps[entry.class_name]
        after_it = [
            session
            for session in self.controller.table
            if (session.engine, session.class_name) == (entry.engine, entry.class_name)
            and session.id in self.waiting
            and session.id != entry.session
        ]
        active = self.controller.table.tally(entry.engine)[entry.class_name].sessions
        assert active - len(after_it) <= cap

    @invariant()
    def permits_are_conserved(self) -> None:
        table = self.controller.table
        sessions = Counter((s.engine, s.class_name) for s in table)
        blocks: defaultdict[tuple[str, str], float] = defaultdict(float)
        for session in table:
            blocks[session.engine, session.class_name] += session.blocks
        tallies = {(engine, name): tally for engine in ENGINES for name, tally in table.tally(engine).items()}
        assert {key: tally.sessions for key, tally in tallies.items()} == dict(sessions)
        assert {key: tally.blocks for key, tally in tallies.items()} == pytest.approx(dict(blocks), abs=1e-6)
        assert dict(table.by_class) == dict(Counter(s.class_name for s in table))
        assert len(table) == len(list(table)) + sum(table.parked_by_class.values())

    @invariant()
    def pots_hold_what_residents_hold(self) -> None:
        residents = list(self.controller.table)
        for name, books in self.controller.ledger.engines.items():
            here = [session for session in residents if session.engine == name]
            assert books.pot.held == pytest.approx(sum(s.outlay.mean[0] for s in here), abs=1e-6)
            keys = {key for session in here for key, _ in session.pieces}
            assert (books.shared.blocks > 0) == bool(keys)

    @invariant()
    def requests_are_where_they_should_be(self) -> None:
        controller, table = self.controller, self.controller.table
        stalled = Counter({s: sum(q.resident for q in queued) for s, queued in self.waiting.items()})
        for session in table:
            assert session.in_flight == self.entered[session.id] + stalled[session.id]
        queued = sum(not q.resident for many in self.waiting.values() for q in many)
        assert sum(state.queue.requests for state in controller.classes.values()) == queued
        assert controller.stalled.requests == sum(stalled.values())
        assert all(table.parked(session) is not None for session in self.parked)


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
