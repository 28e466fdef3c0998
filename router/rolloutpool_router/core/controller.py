"""The router's whole admission state: sessions, queues, mixture, engines, and the caps in force.

One object without I/O or clock: every method takes `now` in seconds and returns at once, so the router's gate
runs it on the wall clock and a simulator on a virtual one. What holds at any time: a resident session has
exactly one permit; nobody enters beyond the caps, except adopted and moved sessions; the oldest of a class
enters first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_api.workloads import OverloadAnswer, WorkloadSpec
from rolloutpool_router.core.admission import Candidate, decide, headroom
from rolloutpool_router.core.estimates import FinishedWindow
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.mixture import ConsumedRing, debts
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.placement import choose_engine
from rolloutpool_router.core.queues import ClassQueue, Ticket
from rolloutpool_router.core.sessions import MAX_SESSIONS, Session, SessionTable, Usage
from rolloutpool_router.core.view import Ignored, PoolView, accept

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random


@dataclass(frozen=True)
class Arrival:
    """A request whose session and class are known."""

    session: str
    class_name: str
    prefix: tuple[bytes, ...] = ()
    """Hashes of its prompt's chunks (`prefix.prefix_keys`)."""
    single: bool = False
    """The client named no session: this request is all of it."""
    has_history: bool = False
    """The prompt holds an earlier answer (`identity.has_history`)."""


@dataclass(frozen=True)
class Entered:
    """A request may go to its engine now; it must end with `end_turn`."""

    session: str
    class_name: str
    engine: str
    waited_seconds: float = 0.0
    adopted: bool = False
    """An unknown session with history, let in at once."""


@dataclass(frozen=True)
class Queued:
    """A request waits: its session will be among those of `admit_waiting`, or `cancel` withdraws it."""

    session: str
    class_name: str
    resident: bool = False
    """The session is resident and no engine is up: the request counts as in flight while it waits."""


@dataclass(slots=True)
class ClassCounters:
    """What happened to a class since the router started."""

    finished: int = 0
    """Sessions that ended after at least one complete answer."""
    adopted: int = 0
    rejected: int = 0
    """Requests answered with an overload status."""


class ClassState:
    """Queue, finished sessions and counters of one class."""

    def __init__(self) -> None:
        self.queue = ClassQueue()
        self.window = FinishedWindow()
        self.counters = ClassCounters()


class AdmissionController:
    """Decides for each request when and where it enters."""

    def __init__(self, rng: Random, *, started: float = 0.0) -> None:
        """Know nothing yet: until the first `apply`, every request is refused as not ready.

        Args:
            rng: breaks ties.
            started: when this router started, in seconds of the clock that gives `now`.
        """
        self._rng = rng
        self._started = started
        self.view: PoolView | None = None
        self.fleet = Fleet()
        self.table = SessionTable()
        self.classes: dict[str, ClassState] = {}
        """By name, those of the spec."""
        self.stalled = ClassQueue()
        """Resident sessions with requests that wait because no engine is up."""
        self.consumed = ConsumedRing(window=1000)

    def apply(self, pool: RolloutPool, capacities: Mapping[str, int]) -> Ignored | list[Ticket]:
        """Take over an object; the waiting sessions whose class is gone, or why it changed nothing.

        Args:
            pool: the object as read now.
            capacities: KV blocks by engine, as far as the engines said themselves.
        """
        view = accept(self.view, pool, capacities)
        if isinstance(view, Ignored):
            return view
        self.view = view
        self.fleet.apply(view)
        self.consumed.resize(view.spec.mixture.window_samples)
        gone = [state for name, state in self.classes.items() if name not in view.workloads]
        self.classes = {name: self.classes.get(name) or ClassState() for name in view.workloads}
        return [ticket for state in gone for ticket in state.queue]

    def class_of(self, session: str) -> str | None:
        """The class that a resident or waiting session came with."""
        if (resident := self.table.get(session)) is not None:
            return resident.class_name
        return next((name for name, state in self.classes.items() if state.queue.get(session)), None)

    def arrive(self, arrival: Arrival, now: float) -> tuple[Entered | Queued | Refusal, list[Entered]]:
        """A request comes: what becomes of it, and the waiting sessions that enter now (it may be one).

        A session that is resident or waits stays what it is, whatever class this request says.
        """
        known = self.class_of(arrival.session)
        if known in self.classes:
            arrival = replace(arrival, class_name=known)
        workload = self.view.workloads.get(arrival.class_name) if self.view is not None else None
        if workload is None:
            return Refusal(Outcome.NOT_READY, "the router has not read its RolloutPool yet: try again"), []
        if (resident := self.table.get(arrival.session)) is not None:
            self.table.begin_turn(resident.id, now=now)
            answer = self._home(resident, workload, now, avoid=()) or self._no_engine(workload)
            if isinstance(answer, Refusal):
                self.end_turn(resident.id, now=now, ok=False)
            return answer, []
        if self._may_be_forgotten(arrival, workload, now) and (adopted := self._adopt(arrival, now)):
            return adopted, []
        return self._enqueue(arrival, workload, now)

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
        entered = self._unstall(now)
        while (entry := self._next_entry(now)) is not None:
            entered.append(entry)
        return entered

    def cancel(self, queued: Queued) -> None:
        """One waiting request is withdrawn; that of a resident session must still end with `end_turn`."""
        if queued.resident:
            self.stalled.cancel(queued.session)
        elif (state := self.classes.get(queued.class_name)) is not None:
            state.queue.cancel(queued.session)

    def end_turn(self, session: str, *, now: float, ok: bool, usage: Usage | None = None) -> None:
        """A request that had entered ended; `ok`: its answer was 2xx and complete."""
        current = self.table.get(session)
        if current is None or self.view is None:
            return
        workload = self.view.workloads.get(current.class_name)
        ended = self.table.end_turn(
            session,
            now=now,
            ok=ok,
            usage=usage,
            block_size=self.view.spec.engine.block_size,
            idle_seconds=workload.idle_seconds() if workload is not None else 0.0,
        )
        self._count_ended([ended] if ended is not None else [], now)

    def finish(self, session: str, now: float) -> bool:
        """The client is done with a session; False if it is not resident."""
        if self.table.get(session) is None:
            return False
        ended = self.table.finish(session)
        self._count_ended([ended] if ended is not None else [], now)
        return True

    def expire(self, now: float) -> int:
        """End the sessions that were idle for too long; how many."""
        if self.view is None:
            return 0
        ended = self.table.expire(now=now, idle_seconds=self.view.idle_seconds)
        self._count_ended(ended, now)
        return len(ended)

    def debts(self) -> dict[str, float]:
        """Samples that each class is behind its share, of those consumed and those in progress."""
        counts = {name: self.consumed.counts[name] + self.table.by_class[name] for name in self.classes}
        return debts(self.view.shares if self.view is not None else {}, counts)

    def _enqueue(
        self, arrival: Arrival, workload: WorkloadSpec, now: float
    ) -> tuple[Entered | Queued | Refusal, list[Entered]]:
        state = self.classes[arrival.class_name]
        if state.queue.requests >= workload.overload.max_waiting:
            return self._overloaded(workload, Outcome.QUEUE_FULL, "as many requests wait as may"), []
        state.queue.push(
            Ticket(arrival.session, arrival.class_name, now, prefix=arrival.prefix, single=arrival.single)
        )
        entered = self.admit_waiting(now)
        mine = next((entry for entry in entered if entry.session == arrival.session), None)
        if mine is None and workload.overload.answer is OverloadAnswer.REJECT:
            state.queue.cancel(arrival.session)
            return self._overloaded(workload, Outcome.CLASS_FULL, "no engine has room"), entered
        return mine or Queued(arrival.session, arrival.class_name), entered

    def _may_be_forgotten(self, arrival: Arrival, workload: WorkloadSpec, now: float) -> bool:
        """Whether the session may have been admitted by a router before this one.

        Only while such a session could still be open: later on a prompt with an earlier answer in it is that
        of a new session, which waits like any other.
        """
        young = now - self._started < workload.idle_seconds()
        return young and arrival.has_history and not arrival.single

    def _adopt(self, arrival: Arrival, now: float) -> Entered | None:
        engine = self._place_now(arrival.class_name, arrival.prefix, now, avoid=())
        if engine is None or len(self.table) >= MAX_SESSIONS:
            return None
        ticket = Ticket(arrival.session, arrival.class_name, now, prefix=arrival.prefix)
        state = self.classes[arrival.class_name]
        waiting = state.queue.get(arrival.session)
        if waiting is not None:
            return None
        self._make_resident(ticket, engine, now)
        state.counters.adopted += 1
        return Entered(arrival.session, arrival.class_name, engine, adopted=True)

    def _home(
        self, resident: Session, workload: WorkloadSpec, now: float, *, avoid: Collection[str]
    ) -> Entered | Queued | Refusal | None:
        """The engine of a resident session; another if that one is gone, out or in `avoid`."""
        if resident.engine in avoid or not self.fleet.reachable(resident.engine, now):
            engine = self._place_now(resident.class_name, (), now, avoid={*avoid, resident.engine})
            if engine is None:
                return None if avoid else self._stall(resident, workload, now)
            self.table.move(resident.id, engine)
        return Entered(resident.id, resident.class_name, resident.engine)

    def _stall(self, resident: Session, workload: WorkloadSpec, now: float) -> Queued | Refusal:
        full = self.stalled.requests >= workload.overload.max_waiting
        if full or workload.overload.answer is OverloadAnswer.REJECT:
            return self._no_engine(workload)
        self.stalled.push(Ticket(resident.id, resident.class_name, now))
        return Queued(resident.id, resident.class_name, resident=True)

    def _unstall(self, now: float) -> list[Entered]:
        """Let those go on whose engine is back, or who find another; the others go on waiting."""
        entered = []
        for ticket in list(self.stalled):
            resident = self.table.get(ticket.session)
            if resident is not None and not self.fleet.reachable(resident.engine, now):
                engine = self._place_now(ticket.class_name, (), now, avoid=())
                if engine is None:
                    continue
                self.table.move(resident.id, engine)
            self.stalled.pop(ticket.session)
            if resident is not None:
                waited = now - ticket.arrived_at
                entered.append(Entered(resident.id, resident.class_name, resident.engine, waited))
        return entered

    def _next_entry(self, now: float) -> Entered | None:
        heads = {name: head for name, state in self.classes.items() if (head := state.queue.head())}
        if not heads or self.view is None or len(self.table) >= MAX_SESSIONS:
            return None
        behind = self.debts()
        candidates = [
            Candidate(
                class_name=name,
                debt=behind[name],
                footprint_blocks=self.view.costs[name].footprint_blocks,
                overlap=lambda head=head: self.fleet.prefixes.overlaps(head.prefix),  # type: ignore[misc]
            )
            for name, head in heads.items()
        ]
        entry = decide(
            candidates,
            self.fleet.loads(self.table, now),
            class_blind=self.view.class_blind,
            rng=self._rng,
        )
        if entry is None:
            return None
        ticket = self.classes[entry.class_name].queue.pop(heads[entry.class_name].session)
        self._make_resident(ticket, entry.engine, now)
        return Entered(ticket.session, entry.class_name, entry.engine, now - ticket.arrived_at)

    def _make_resident(self, ticket: Ticket, engine: str, now: float) -> None:
        expected = self.view.costs[ticket.class_name].footprint_blocks if self.view is not None else 1
        self.table.admit(
            ticket.session,
            ticket.class_name,
            engine,
            now=now,
            blocks=max(1, round(expected)),
            single=ticket.single,
        )
        for _ in range(ticket.requests):
            self.table.begin_turn(ticket.session, now=now)
        self.fleet.prefixes.record(ticket.prefix, engine)

    def _place_now(
        self, class_name: str, prefix: Sequence[bytes], now: float, *, avoid: Collection[str]
    ) -> str | None:
        """The engine for a session that does not wait: with room for its class where there is one."""
        up = [load for load in self.fleet.loads(self.table, now) if load.name not in avoid]
        blind = self.view is not None and self.view.class_blind
        room = [load for load in up if headroom(load, class_name, class_blind=blind) > 0]
        if not up:
            return None
        return choose_engine(room or up, self.fleet.prefixes.overlaps(prefix), self._rng).name

    def _count_ended(self, ended: Sequence[Session], now: float) -> None:
        for session in ended:
            state = self.classes.get(session.class_name)
            if state is None or not session.succeeded:
                continue
            state.counters.finished += 1
            state.window.add(now=now, cost=session.cost(now))
            self.consumed.add(session.class_name)

    def _no_engine(self, workload: WorkloadSpec) -> Refusal:
        return self._overloaded(workload, Outcome.NO_ENGINE, "no engine is up")

    def _overloaded(self, workload: WorkloadSpec, outcome: Outcome, why: str) -> Refusal:
        self.classes[workload.name].counters.rejected += 1
        overload = workload.overload
        return Refusal(
            outcome,
            f"class {workload.name!r}: {why}; try again in {overload.retry_after_seconds} s",
            status=overload.status,
            retry_after_seconds=overload.retry_after_seconds,
        )
