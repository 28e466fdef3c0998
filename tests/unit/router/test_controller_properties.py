"""Whatever happens in whatever order: permits are conserved, caps hold, the oldest goes first."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.controller import AdmissionController, Arrival, Entered, Queued
from rolloutpool_router.core.outcomes import Refusal
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.core.view import Ignored
from rolloutpool_router.testing import pool_object

ENGINES = {"e0": "http://e0", "e1": "http://e1"}
CLASSES = ("rlvr", "rlhf", "agentic")
caps_of_classes = st.fixed_dictionaries({name: st.integers(0, 4) for name in CLASSES})


class AdmissionMachine(RuleBasedStateMachine):
    """Drives a controller at random, next to a plain account of what should be the case."""

    sessions: Bundle[str] = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.controller = AdmissionController(Random(1))
        self.now = 0.0
        self.revision = 0
        self.names = 0
        self.waiting: dict[str, list[Queued]] = {}
        self.entered: Counter[str] = Counter()
        self.apply(caps={"rlvr": 2, "rlhf": 1, "agentic": 1}, engines=["e0", "e1"])

    @rule(caps=caps_of_classes, engines=st.lists(st.sampled_from(sorted(ENGINES)), unique=True, min_size=1))
    def apply(self, caps: dict[str, int], engines: list[str]) -> None:
        self.revision += 1
        pool = pool_object({name: ENGINES[name] for name in engines}, caps=caps, revision=self.revision)
        assert not isinstance(self.controller.apply(parse_pool(pool), {}), Ignored)
        self.admit()

    @rule(
        target=sessions,
        class_name=st.sampled_from(CLASSES),
        single=st.booleans(),
        history=st.booleans(),
        seconds=st.floats(0, 5),
    )
    def new_session(self, class_name: str, single: bool, history: bool, seconds: float) -> str:
        self.now += seconds
        self.names += 1
        session = f"s{self.names:04}"
        self.arrive(session, class_name, single=single, history=history)
        return session

    @rule(session=sessions, history=st.booleans())
    def another_request(self, session: str, history: bool) -> None:
        class_name = self.controller.class_of(session)
        if class_name is not None:
            self.arrive(session, class_name, single=False, history=history)

    @rule(session=sessions, ok=st.booleans(), tokens=st.one_of(st.none(), st.integers(0, 500)))
    def end_turn(self, session: str, ok: bool, tokens: int | None) -> None:
        if self.entered[session] == 0:
            return
        self.entered[session] -= 1
        usage = None if tokens is None else Usage(tokens, tokens)
        self.controller.end_turn(session, now=self.now, ok=ok, usage=usage)
        self.admit()

    @rule(session=sessions)
    def cancel(self, session: str) -> None:
        if session not in self.waiting:
            return
        queued = self.waiting[session].pop()
        if not self.waiting[session]:
            del self.waiting[session]
        self.controller.cancel(queued)
        if queued.resident:
            self.controller.end_turn(session, now=self.now, ok=False)
        self.admit()

    @rule(session=sessions)
    def finish(self, session: str) -> None:
        known = self.controller.table.get(session) is not None
        assert self.controller.finish(session, self.now) == known
        self.admit()

    @rule(seconds=st.sampled_from([0.1, 1.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.controller.expire(self.now)
        self.admit()

    @rule(engine=st.sampled_from(sorted(ENGINES)))
    def engine_fails(self, engine: str) -> None:
        self.controller.fleet.failed(engine, self.now)

    @rule(session=sessions)
    def reroute(self, session: str) -> None:
        if self.entered[session] == 0:
            return
        answer = self.controller.reroute(session, now=self.now, avoid=())
        if isinstance(answer, Queued):
            self.entered[session] -= 1
            self.waiting.setdefault(session, []).append(answer)

    @rule()
    def everything_ends(self) -> None:
        for session in list(self.waiting):
            while session in self.waiting:
                self.cancel(session)
        for session in list(self.entered):
            while self.entered[session]:
                self.end_turn(session, ok=True, tokens=None)
        self.time_passes(1000.0)
        assert len(self.controller.table) == 0
        assert not self.controller.table.by_class
        assert all(not self.controller.table.tally(name) for name in ENGINES)

    def arrive(self, session: str, class_name: str, *, single: bool, history: bool) -> None:
        arrival = Arrival(session, class_name, single=single, has_history=history)
        before = self.controller.table.get(session)
        answer, entered = self.controller.arrive(arrival, self.now)
        assert not isinstance(answer, Refusal)
        if isinstance(answer, Queued):
            self.waiting.setdefault(session, []).append(answer)
        elif before is not None or answer.adopted:
            self.entered[session] += 1
        else:
            self.waiting.setdefault(session, []).append(Queued(session, class_name))
        self.account(entered)

    def admit(self) -> None:
        self.account(self.controller.admit_waiting(self.now))

    def account(self, entered: list[Entered]) -> None:
        """Every entry is one that waited; those of new sessions are the oldest of their class."""
        for entry in entered:
            requests = self.waiting.pop(entry.session)
            if not requests[0].resident:
                older = [
                    other
                    for other, queued in self.waiting.items()
                    if queued[0].class_name == entry.class_name
                    and not queued[0].resident
                    and other < entry.session
                ]
                assert not older
                self.check_cap(entry)
            self.entered[entry.session] += len(requests)

    def check_cap(self, entry: Entered) -> None:
        engines = self.controller.fleet.engines
        cap = engines[entry.engine].caps[entry.class_name]
        active = self.controller.table.tally(entry.engine)[entry.class_name].sessions
        up = [e.caps[entry.class_name] for e in self.controller.fleet.homes(self.now)]
        assert active <= cap or (not any(up) and active == 1)

    @invariant()
    def permits_are_conserved(self) -> None:
        table = self.controller.table
        sessions = Counter((s.engine, s.class_name) for s in table)
        blocks: Counter[tuple[str, str]] = Counter()
        for session in table:
            blocks[(session.engine, session.class_name)] += session.blocks
        tallies = {(engine, name): tally for engine in ENGINES for name, tally in table.tally(engine).items()}
        assert {key: tally.sessions for key, tally in tallies.items()} == dict(sessions)
        assert {key: tally.blocks for key, tally in tallies.items()} == dict(blocks)
        assert dict(table.by_class) == dict(Counter(s.class_name for s in table))

    @invariant()
    def requests_are_where_they_should_be(self) -> None:
        table, controller = self.controller.table, self.controller
        stalled = Counter({s: sum(q.resident for q in queued) for s, queued in self.waiting.items()})
        for session in table:
            assert session.in_flight == self.entered[session.id] + stalled[session.id]
        queued = sum(not q.resident for many in self.waiting.values() for q in many)
        assert sum(state.queue.requests for state in controller.classes.values()) == queued
        assert controller.stalled.requests == sum(stalled.values())


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
