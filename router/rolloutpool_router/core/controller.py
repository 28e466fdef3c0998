"""The router's whole admission state: sessions, queues, mixture, engines, and the caps in force.

One object without I/O or clock: every method takes `now` in seconds and returns at once, so the router's gate
runs it on the wall clock and a simulator on a virtual one. What holds at any time: a resident session has
exactly one permit; nobody enters beyond the caps and the pot but by the rules of `admission`, except adopted
and moved sessions; parked sessions of a class enter before its new ones, and those in the order of arrival
but for samples of one prompt, which follow one another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_api.workloads import OverloadAnswer, WorkloadSpec
from rolloutpool_router.core.accounts import Accounts
from rolloutpool_router.core.admission import Entry
from rolloutpool_router.core.classes import ClassState
from rolloutpool_router.core.entrants import Entrants
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.ledger import Ledger
from rolloutpool_router.core.occupancy import Occupancy
from rolloutpool_router.core.outcomes import NOT_READY, Outcome, Refusal, overloaded
from rolloutpool_router.core.prefix import PrefixKey
from rolloutpool_router.core.queues import ClassQueue, Ticket
from rolloutpool_router.core.requests import Arrival, Entered, Queued, Ticked
from rolloutpool_router.core.retention import Retention
from rolloutpool_router.core.sessions import MAX_SESSIONS, Session, SessionTable, Usage
from rolloutpool_router.core.shared import Mark, blocks_of, marks
from rolloutpool_router.core.view import Ignored, PoolView, accept

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random


class AdmissionController:
    """Decides for each request when and where it enters."""

    def __init__(self, rng: Random, *, started: float = 0.0) -> None:
        """Know nothing yet: until the first `apply`, every request is refused as not ready.

        Args:
            rng: breaks ties.
            started: when this router started, in seconds of the clock that gives `now`.
        """
        self._rng = rng
        self._started = self._now = started
        self._changed = True
        self._engines_may_be_back = True
        self.view: PoolView | None = None
        self.fleet = Fleet()
        self.table = SessionTable()
        self.ledger = Ledger(self.table)
        self.retention = Retention()
        self.occupancy = Occupancy(self.fleet, self.table, self.ledger, self.retention)
        self.entrants = Entrants(self.fleet, self.table, self.ledger, self.occupancy)
        self.classes: dict[str, ClassState] = {}
        """By name, those of the spec."""
        self.stalled = ClassQueue()
        """Resident sessions with requests that wait because no engine is up."""
        self.accounts = Accounts(self.table)
        self.debt, self.consumed = self.accounts.debt, self.accounts.consumed

    def apply(self, pool: RolloutPool, capacities: Mapping[str, int]) -> Ignored | list[Ticket]:
        """Take over an object; the waiting sessions whose class is gone, or why it changed nothing.

        Args:
            pool: the object as read now.
            capacities: KV blocks by engine, as far as the engines said themselves.
        """
        view = accept(self.view, pool, capacities)
        if isinstance(view, Ignored):
            return view
        if self.view is None or self.view.generation != view.generation or self.view.uid != view.uid:
            self.ledger.apply(view.spec)
        self.view = view
        self.fleet.apply(view)
        self.occupancy.apply(view.rules)
        self.entrants.apply(view)
        self.ledger.keep_engines(view.engines)
        self.retention.keep(view.engines)
        gone = [state for name, state in self.classes.items() if name not in view.workloads]
        self.classes = {name: self.classes.get(name) or ClassState() for name in view.workloads}
        self.accounts.apply(view, self.classes)
        self._changed = self._engines_may_be_back = True
        dropped = [ticket for state in gone for ticket in state.queue]
        for ticket in dropped:
            if (parked := self.table.parked(ticket.session)) is not None:
                self.table.rest(parked, now=parked.seen_at)
        return dropped

    def class_of(self, session: str) -> str | None:
        """The class that an open or waiting session came with."""
        if (known := self.table.get(session) or self.table.parked(session)) is not None:
            return known.class_name
        return self._waits_as(session)

    def arrive(self, arrival: Arrival, now: float) -> tuple[Entered | Queued | Refusal, list[Entered]]:
        """A request comes: what becomes of it, and the waiting sessions that enter now (it may be one).

        A session that is open or waits stays what it is, whatever class this request says.
        """
        self._now = now
        view, resident = self.view, self.table.get(arrival.session)
        parked = self.table.parked(arrival.session) if resident is None else None
        known = resident or parked
        class_name = known.class_name if known is not None else self._waits_as(arrival.session)
        if class_name not in self.classes:
            class_name = arrival.class_name
        workload = view.workloads.get(class_name) if view is not None else None
        if view is None or workload is None:
            return NOT_READY, []
        estimate = arrival.prompt_tokens * self.classes[class_name].estimate_factor
        tokens = round(min(estimate, view.longest_tokens))
        if resident is not None:
            self.ledger.turn_begins(resident, prompt_tokens=tokens, estimate=arrival.prompt_tokens, now=now)
            self.table.begin_turn(resident.id, now=now)
            answer = self._home(resident, workload, now, avoid=()) or self._no_engine(workload)
            if isinstance(answer, Refusal):
                self.end_turn(resident.id, now=now, ok=False)
            return answer, []
        ticket = Ticket(
            arrival.session,
            class_name,
            now,
            prefix=arrival.prefix,
            single=arrival.single,
            prompt_tokens=tokens,
            prompt_estimate=arrival.prompt_tokens,
            group=arrival.group if view.rules.groups else None,
            pieces=self._pieces(arrival.prefix, tokens) if arrival.prefix else (),
            parked=parked is not None,
        )
        if (
            arrival.has_history
            and self._may_be_forgotten(arrival, workload, now)
            and (adopted := self._adopt(ticket, arrival.home, now))
        ):
            return adopted, []
        return self._enqueue(ticket, workload, now)

    def reroute(
        self, session: str, *, now: float, avoid: Collection[str]
    ) -> Entered | Queued | Refusal | None:
        """Another engine for a request in flight that its own did not take; None if none but `avoid` is up.

        Whatever the answer, the request stays counted as in flight until `end_turn`.

        Args:
            session: a resident session, its request still counted as in flight.
            now: seconds.
            avoid: engines that are up and refused this request.
        """
        resident = self.table.get(session)
        workload = self.view.workloads.get(resident.class_name) if self.view and resident else None
        if resident is None or workload is None:
            return None
        return self._home(resident, workload, now, avoid=avoid)

    def admit_waiting(self, now: float) -> list[Entered]:
        """Let in every waiting session that may enter now; all its waiting requests go with it."""
        self._now = now
        entered = self._unstall(now) if self._engines_may_be_back else []
        if not self._changed:
            return entered
        self._changed = False
        if self.view is None or not self._anybody_waits():
            return entered
        self.ledger.refresh(now)
        while heads := self.entrants.heads(self.classes.values()):
            self.occupancy.loads(now)
            found = self.entrants.next(heads, self.accounts.behind(now), now=now, rng=self._rng)
            if found is None:
                break
            entered.append(self._let_in(*found, now))
        return entered

    def cancel(self, queued: Queued, now: float) -> None:
        """One waiting request is withdrawn; that of a resident session must still end with `end_turn`."""
        if queued.resident:
            self.stalled.cancel(queued.session)
        elif (state := self.classes.get(queued.class_name)) is not None:
            state.queue.cancel(queued.session)
            self._changed = True
            if state.queue.get(queued.session) is None:
                self._waits_no_more(queued.session, now)

    def end_turn(self, session: str, *, now: float, ok: bool, usage: Usage | None = None) -> None:
        """A request that had entered ended; `ok`: its answer was 2xx and complete."""
        self._now = now
        current = self.table.get(session)
        if current is None or self.view is None:
            return
        if usage is not None:
            self._learn(current, usage)
        self.ledger.turn_ended(current, usage, now)
        idle = self.view.idle_seconds.get(current.class_name, 0.0)
        ended = self.table.end_turn(session, now=now, ok=ok, idle_seconds=idle)
        if ended is None:
            self.ledger.recount(current, now)
        else:
            self._count_ended([ended], now)

    def finish(self, session: str, now: float) -> bool:
        """The client is done with a session: it ends with its last request; False if it is not known."""
        parked = self.table.parked(session)
        waiting = next((ticket for s in self.classes.values() if (ticket := s.queue.get(session))), None)
        if waiting is not None:
            waiting.ending = True
            if parked is not None:
                parked.ending = True
            return True
        if self.table.get(session) is None and parked is None:
            return False
        ended = self.table.finish(session)
        self._count_ended([ended] if ended is not None else [], now)
        return True

    def release(self, session: str, now: float) -> str | None:
        """Give up an idle or parked session that another router has now, without counting it; its engine.

        None, and nothing happens, where it is unknown, in flight or waiting.
        """
        current = self.table.get(session) or self.table.parked(session)
        if current is None or current.in_flight or self._waits(current):
            return None
        if not current.parked:
            self.ledger.left(current, now)
        self.table.finish(session)
        self._changed = True
        return current.engine

    def tick(self, now: float, *, most: int | None = None) -> Ticked:
        """Once a second or so: sessions expire and are parked, estimates follow, engines come back.

        Args:
            now: seconds.
            most: sessions that are ended, parked and looked at in one go, at most; None: no bound. What is
                left is done with `go_on`.
        """
        self._now = now
        if self.view is None:
            return Ticked([], [])
        self._expire(now, most)
        self.ledger.refresh(now)
        self.ledger.look_around(now, most)
        self._park(now, most)
        if self.retention.is_due(now):
            full = {name for name in self.fleet.engines if self.occupancy.is_full(name)}
            self.retention.step(now, self.view.spec.admission.pressure, full)
        refused = self._refuse_late(now)
        self.occupancy.forget()
        self._changed = self._engines_may_be_back = True
        return Ticked(self.admit_waiting(now), refused)

    def go_on(self, now: float, *, most: int) -> bool:
        """Go on with what a tick left: end, park and look at so many sessions; whether there may be more.

        Those that may enter now are let in by `admit_waiting`.
        """
        self._now = now
        ended, parked = self._expire(now, most), self._park(now, most)
        return self.ledger.look_on(now, most) or ended >= most or parked >= most

    def debts(self) -> dict[str, float]:
        """Samples that each class is behind its share; 0 for one that neither has nor wants sessions."""
        return dict.fromkeys(self.classes, 0.0) | self.accounts.behind(self._now)

    def _pieces(self, prefix: Sequence[PrefixKey], prompt_tokens: int) -> tuple[Mark, ...]:
        """The marks of a prompt; none where blocks count by their peak, shared or not."""
        if self.view is None or not self.view.rules.method.time_averaged:
            return ()
        return marks(prefix, prompt_tokens=prompt_tokens, block_size=self.view.spec.engine.block_size)

    def _anybody_waits(self) -> bool:
        # A list, since a generator takes three times as long for a handful of classes.
        return any([state.queue.requests for state in self.classes.values()])  # noqa: C419

    def _waits_as(self, session: str) -> str | None:
        """The class in whose queue a session waits."""
        for name, state in self.classes.items():
            if state.queue.requests and state.queue.get(session) is not None:
                return name
        return None

    def _waits(self, session: Session) -> bool:
        state = self.classes.get(session.class_name)
        return state is not None and state.queue.get(session.id) is not None

    def _enqueue(
        self, ticket: Ticket, workload: WorkloadSpec, now: float
    ) -> tuple[Entered | Queued | Refusal, list[Entered]]:
        state = self.classes[ticket.class_name]
        parked = self.table.parked(ticket.session) if ticket.parked else None
        if state.queue.requests >= workload.overload.max_waiting:
            if parked is not None and not self._waits(parked):
                self.table.rest(parked, now=now)
            return self._overloaded(workload, Outcome.QUEUE_FULL, "as many requests wait as may"), []
        if not state.queue.requests:
            state.turn_since = now
            self._changed = True
        if parked is not None:
            self.table.busy(parked)
            self._changed = True
        state.queue.push(ticket)
        entered = self.admit_waiting(now)
        for entry in entered:
            if entry.session == ticket.session:
                return entry, entered
        queued = Queued(ticket.session, ticket.class_name)
        if workload.overload.answer is OverloadAnswer.REJECT and parked is None:
            self.cancel(queued, now)
            return self._overloaded(workload, Outcome.CLASS_FULL, "no engine has room"), entered
        return queued, entered

    def _may_be_forgotten(self, arrival: Arrival, workload: WorkloadSpec, now: float) -> bool:
        """Whether the session may have been admitted by a router before this one.

        Only while such a session could still be open: later on a prompt with an earlier answer in it is that
        of a new session, which waits like any other.
        """
        if arrival.single or self.table.parked(arrival.session) is not None:
            return False
        return arrival.stray or now - self._started < workload.idle_seconds()

    def _adopt(self, ticket: Ticket, home: str | None, now: float) -> Entered | None:
        engine = self._place(ticket.class_name, now, prefix=ticket.prefix)
        if home is not None and self.fleet.is_up(home, now):
            engine = home
        state = self.classes[ticket.class_name]
        if engine is None or len(self.table) >= MAX_SESSIONS or state.queue.get(ticket.session) is not None:
            return None
        self._make_resident(ticket, engine, now)
        state.counters.adopted += 1
        return Entered(ticket.session, ticket.class_name, engine, adopted=True)

    def _home(
        self, resident: Session, workload: WorkloadSpec, now: float, *, avoid: Collection[str]
    ) -> Entered | Queued | Refusal | None:
        """The engine of a resident session; another if that one is gone, out or in `avoid`."""
        if resident.engine in avoid or not self.fleet.reachable(resident.engine, now):
            engine = self._place(resident.class_name, now, avoid={*avoid, resident.engine})
            if engine is None:
                return None if avoid else self._stall(resident, workload, now)
            self._move(resident, engine, now)
        return Entered(resident.id, resident.class_name, resident.engine)

    def _place(
        self, name: str, now: float, *, prefix: Sequence[PrefixKey] = (), avoid: Collection[str] = ()
    ) -> str | None:
        return self.entrants.place_now(name, prefix, avoid=avoid, now=now, rng=self._rng)

    def _move(self, resident: Session, engine: str, now: float) -> None:
        self.ledger.moved(resident, engine, now)
        self.table.move(resident, engine)
        self.fleet.entering(engine, now)

    def _stall(self, resident: Session, workload: WorkloadSpec, now: float) -> Queued | Refusal:
        full = self.stalled.requests >= workload.overload.max_waiting
        if full or workload.overload.answer is OverloadAnswer.REJECT:
            return self._no_engine(workload)
        self.stalled.push(Ticket(resident.id, resident.class_name, now))
        return Queued(resident.id, resident.class_name, resident=True)

    def _unstall(self, now: float) -> list[Entered]:
        """Let those go on whose engine is back, or who find another; the others go on waiting.

        Only after an object or a tick, which notice that: not with each of thousands of clients that give up.
        """
        self._engines_may_be_back = False
        entered = []
        any_up = bool(len(self.stalled) and self.fleet.homes(now))
        for ticket in list(self.stalled):
            resident = self.table.get(ticket.session)
            if resident is not None and not self.fleet.reachable(resident.engine, now):
                engine = self._place(ticket.class_name, now) if any_up else None
                if engine is None:
                    continue
                self._move(resident, engine, now)
            self.stalled.pop(ticket.session)
            if resident is not None:
                self.fleet.entering(resident.engine, now)
                waited = now - ticket.arrived_at
                entered.append(Entered(resident.id, resident.class_name, resident.engine, waited))
        return entered

    def _let_in(self, ticket: Ticket, entry: Entry, now: float) -> Entered:
        state = self.classes[entry.class_name]
        state.queue.pop(ticket.session)
        state.turn_since = now
        if ticket.group is not None and not ticket.parked:
            # Once: samples of the prompt that come later must not overtake those that waited before them.
            state.sample_entered(ticket.group, entry.engine)
        self._make_resident(ticket, entry.engine, now)
        waited = now - ticket.arrived_at
        return Entered(ticket.session, entry.class_name, entry.engine, waited, reason=entry.reason)

    def _make_resident(self, ticket: Ticket, engine: str, now: float) -> None:
        session = self.table.parked(ticket.session) if ticket.parked else None
        if session is None:
            session = Session(
                ticket.session,
                ticket.class_name,
                engine,
                now,
                tokens=float(ticket.prompt_tokens),
                single=ticket.single,
                group=ticket.group,
                pieces=ticket.pieces,
                marked_blocks=blocks_of(ticket.pieces) if ticket.pieces else 0.0,
                ending=ticket.ending,
            )
            self.accounts.entered(ticket.class_name, self._now)
        else:
            session.admitted_at = now - session.age(now)
            session.engine = engine
        session.tokens = max(session.tokens, float(ticket.prompt_tokens))
        session.prompt_estimate = ticket.prompt_estimate
        self.table.admit(session, turns=ticket.requests, now=now)
        self.ledger.entered(session, now)
        self.fleet.entering(engine, now)
        if ticket.prefix:
            self.fleet.prefixes.record(ticket.prefix, engine)

    def _expire(self, now: float, most: int | None) -> int:
        """End sessions that were idle for too long; how many."""
        idle_seconds = self.view.idle_seconds if self.view is not None else {}
        ended = self.table.expire(now=now, idle_seconds=idle_seconds, most=most)
        self._count_ended(ended, now)
        return len(ended)

    def _park(self, now: float, most: int | None) -> int:
        """Park sessions that idle for longer than their blocks are worth, where others wait; how many."""
        limit = self.view.park_seconds if self.view is not None else None
        if limit is None or not self._anybody_waits():
            return 0
        parked = 0
        for name, state in self.classes.items():
            count = self.ledger.park(name, idle_since=now - limit, now=now, most=most)
            state.counters.parked += count
            parked += count
        self._changed = self._changed or parked > 0
        return parked

    def _refuse_late(self, now: float) -> list[tuple[Ticket, Refusal]]:
        refused = []
        for name, state in self.classes.items():
            workload = self.view.workloads[name] if self.view is not None else None
            if workload is None or workload.overload.max_wait_seconds is None:
                continue
            limit = workload.overload.max_wait_seconds
            for ticket in state.queue.late(now - limit):
                state.queue.pop(ticket.session)
                self._waits_no_more(ticket.session, now)
                refused.append((ticket, self._overloaded(workload, Outcome.WAITED_LONG, f"{limit} s passed")))
        return refused

    def _waits_no_more(self, session: str, now: float) -> None:
        """A parked session's next turn was withdrawn or refused."""
        parked = self.table.parked(session)
        if parked is not None and parked.ending:
            self.table.finish(session)
            self._count_ended([parked], now)
        elif parked is not None:
            self.table.rest(parked, now=now)

    def _learn(self, session: Session, usage: Usage) -> None:
        """What an answer's usage says of the prompt estimates and of the engine's cache."""
        state = self.classes.get(session.class_name)
        if state is not None and session.prompt_estimate and not usage.estimated:
            state.correct(estimate=session.prompt_estimate, prompt_tokens=usage.prompt_tokens)
        if usage.cached_tokens is not None and session.cached_before:
            # What is not asked for is no loss.
            expected = min(session.cached_before, usage.prompt_tokens)
            self.retention.count(session.engine, expected=expected, found=usage.cached_tokens)

    def _count_ended(self, ended: Sequence[Session], now: float) -> None:
        for session in ended:
            self._changed = True
            if not session.parked:
                self.ledger.left(session, now)
            state = self.classes.get(session.class_name)
            if not session.succeeded:
                self.accounts.failed(session.class_name, self._now)
            if state is None or not session.succeeded:
                continue
            state.counters.finished += 1
            self.ledger.ended(session, now)
            self.accounts.succeeded(session.class_name, self._now)

    def _no_engine(self, workload: WorkloadSpec) -> Refusal:
        return self._overloaded(workload, Outcome.NO_ENGINE, "no engine is up")

    def _overloaded(self, workload: WorkloadSpec, outcome: Outcome, why: str) -> Refusal:
        self.classes[workload.name].counters.rejected += 1
        return overloaded(workload, outcome, why)
