"""The router's whole admission state: sessions, queues, mixture, engines, and the caps in force.

One object without I/O or clock: every method takes `now` in seconds and returns at once, so the router's gate
runs it on the wall clock and a simulator on a virtual one. What holds at any time: a resident session has
exactly one permit; nobody enters beyond the caps and the pot but by the rules of `admission`, except adopted
and moved sessions; parked sessions of a class enter before its new ones, and those in the order of arrival
but for samples of one prompt, which follow one another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rolloutpool_api.serving import MixtureSpec
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_api.workloads import OverloadAnswer, WorkloadSpec
from rolloutpool_router.core.admission import Entry, decide, headroom
from rolloutpool_router.core.classes import ClassState
from rolloutpool_router.core.entrants import Entrants
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.ledger import Ledger
from rolloutpool_router.core.mixture import ConsumedRing, MixtureDebt
from rolloutpool_router.core.occupancy import Occupancy
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.placement import EngineLoad, choose_engine
from rolloutpool_router.core.queues import ClassQueue, Ticket
from rolloutpool_router.core.requests import Arrival, Entered, Queued, Ticked
from rolloutpool_router.core.retention import Retention
from rolloutpool_router.core.sessions import MAX_SESSIONS, Session, SessionTable, Usage
from rolloutpool_router.core.shared import Mark, marks
from rolloutpool_router.core.view import Ignored, PoolView, accept

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

MOST_WRONG = 1000.0
"""How many times too long or short a prompt's estimate may be: images are many bytes and few tokens."""
ESTIMATE_WEIGHT = 0.1
"""Weight of the latest answer in the correction of a class's prompt estimates."""


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
        self.classes: dict[str, ClassState] = {}
        """By name, those of the spec."""
        self.stalled = ClassQueue()
        """Resident sessions with requests that wait because no engine is up."""
        self.consumed = ConsumedRing(window=1000)
        """Samples that ended after a success."""
        self.debt = MixtureDebt()

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
        self.ledger.keep_engines(view.engines)
        self.retention.keep(view.engines)
        self.debt.keep(view.workloads)
        self.consumed.resize(view.spec.mixture.window_samples)
        gone = [state for name, state in self.classes.items() if name not in view.workloads]
        self.classes = {name: self.classes.get(name) or ClassState() for name in view.workloads}
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
        return next((name for name, state in self.classes.items() if state.queue.get(session)), None)

    def arrive(self, arrival: Arrival, now: float) -> tuple[Entered | Queued | Refusal, list[Entered]]:
        """A request comes: what becomes of it, and the waiting sessions that enter now (it may be one).

        A session that is open or waits stays what it is, whatever class this request says.
        """
        self._now = now
        known = self.class_of(arrival.session)
        if known in self.classes:
            arrival = replace(arrival, class_name=known)
        workload = self.view.workloads.get(arrival.class_name) if self.view is not None else None
        if self.view is None or workload is None:
            return Refusal(Outcome.NOT_READY, "the router has not read its RolloutPool yet: try again"), []
        estimate = arrival.prompt_tokens * self.classes[arrival.class_name].estimate_factor
        tokens = round(min(estimate, self.view.longest_tokens))
        if (resident := self.table.get(arrival.session)) is not None:
            self.ledger.turn_begins(resident, prompt_tokens=tokens, estimate=arrival.prompt_tokens, now=now)
            self.table.begin_turn(resident.id, now=now)
            answer = self._home(resident, workload, now, avoid=()) or self._no_engine(workload)
            if isinstance(answer, Refusal):
                self.end_turn(resident.id, now=now, ok=False)
            return answer, []
        ticket = Ticket(
            arrival.session,
            arrival.class_name,
            now,
            prefix=arrival.prefix,
            single=arrival.single,
            prompt_tokens=tokens,
            prompt_estimate=arrival.prompt_tokens,
            group=arrival.group if self.view.rules.groups else None,
            pieces=self._pieces(arrival.prefix, tokens),
            parked=self.table.parked(arrival.session) is not None,
        )
        if self._may_be_forgotten(arrival, workload, now) and (
            adopted := self._adopt(ticket, arrival.home, now)
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
        entered = self._unstall(now)
        if not self._changed:
            return entered
        self._changed = False
        if self.view is None or not any(len(state.queue) for state in self.classes.values()):
            return entered
        self.ledger.refresh(now)
        loads = {load.name: load for load in self.occupancy.loads(now)}
        while (entry := self._next_entry(loads, now)) is not None:
            entered.append(entry)
            loads[entry.engine] = self.occupancy.load(self.fleet.engines[entry.engine])
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
        workload = self.view.workloads.get(current.class_name)
        if usage is not None:
            self._learn(current, usage)
        self.ledger.turn_ended(current, usage, now)
        idle = workload.idle_seconds() if workload is not None else 0.0
        ended = self.table.end_turn(session, now=now, ok=ok, idle_seconds=idle)
        self._count_ended([ended] if ended is not None else [], now)

    def finish(self, session: str, now: float) -> bool:
        """The client is done with a session: it ends with its last request; False if it is not open."""
        parked = self.table.parked(session)
        if self.table.get(session) is None and parked is None:
            return False
        if parked is not None and any(state.queue.get(session) for state in self.classes.values()):
            parked.ending = True
            return True
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
            self.ledger.look(current, now)
            self.ledger.left(current)
        self.table.finish(session)
        self._changed = True
        return current.engine

    def tick(self, now: float) -> Ticked:
        """Once a second or so: sessions expire and are parked, estimates follow, engines come back."""
        self._now = now
        if self.view is None:
            return Ticked([], [])
        self._count_ended(self.table.expire(now=now, idle_seconds=self.view.idle_seconds), now)
        self.ledger.refresh(now)
        self.ledger.look_around(now)
        self._park(now)
        full = {name for name in self.fleet.engines if self.occupancy.is_full(name)}
        self.retention.step(now, self.view.spec.admission.pressure, full)
        refused = self._refuse_late(now)
        self._changed = self._engines_may_be_back = True
        return Ticked(self.admit_waiting(now), refused)

    def debts(self) -> dict[str, float]:
        """Samples that each class is behind its share; 0 for one that neither has nor wants sessions."""
        return dict.fromkeys(self.classes, 0.0) | self.debt.behind(self._present())

    def _pieces(self, prefix: Sequence[bytes], prompt_tokens: int) -> tuple[Mark, ...]:
        """The marks of a prompt; none where blocks count by their peak, shared or not."""
        if self.view is None or not self.view.rules.method.time_averaged:
            return ()
        return marks(prefix, prompt_tokens=prompt_tokens, block_size=self.view.spec.engine.block_size)

    def _waits(self, session: Session) -> bool:
        state = self.classes.get(session.class_name)
        return state is not None and state.queue.get(session.id) is not None

    def _enqueue(
        self, ticket: Ticket, workload: WorkloadSpec, now: float
    ) -> tuple[Entered | Queued | Refusal, list[Entered]]:
        state, parked = self.classes[ticket.class_name], self.table.parked(ticket.session)
        if state.queue.requests >= workload.overload.max_waiting:
            if parked is not None and not self._waits(parked):
                self.table.rest(parked, now=now)
            return self._overloaded(workload, Outcome.QUEUE_FULL, "as many requests wait as may"), []
        if not len(state.queue):
            state.turn_since = now
            self._changed = True
        if parked is not None:
            self.table.busy(parked)
            self._changed = True
        state.queue.push(ticket)
        entered = self.admit_waiting(now)
        mine = next((entry for entry in entered if entry.session == ticket.session), None)
        queued = Queued(ticket.session, ticket.class_name)
        if mine is None and workload.overload.answer is OverloadAnswer.REJECT and parked is None:
            self.cancel(queued, now)
            return self._overloaded(workload, Outcome.CLASS_FULL, "no engine has room"), entered
        return mine or queued, entered

    def _may_be_forgotten(self, arrival: Arrival, workload: WorkloadSpec, now: float) -> bool:
        """Whether the session may have been admitted by a router before this one.

        Only while such a session could still be open: later on a prompt with an earlier answer in it is that
        of a new session, which waits like any other.
        """
        young = now - self._started < workload.idle_seconds()
        known = self.table.parked(arrival.session) is not None
        return (young or arrival.stray) and arrival.has_history and not arrival.single and not known

    def _adopt(self, ticket: Ticket, home: str | None, now: float) -> Entered | None:
        engine = self._place_now(ticket.class_name, ticket.prefix, now, avoid=())
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
            engine = self._place_now(resident.class_name, (), now, avoid={*avoid, resident.engine})
            if engine is None:
                return None if avoid else self._stall(resident, workload, now)
            self._move(resident, engine, now)
        return Entered(resident.id, resident.class_name, resident.engine)

    def _move(self, resident: Session, engine: str, now: float) -> None:
        self.ledger.moved(resident, engine, now)
        self.table.move(resident, engine)

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
        if not self._engines_may_be_back:
            return []
        self._engines_may_be_back = False
        entered = []
        any_up = bool(len(self.stalled) and self.fleet.homes(now))
        for ticket in list(self.stalled):
            resident = self.table.get(ticket.session)
            if resident is not None and not self.fleet.reachable(resident.engine, now):
                engine = self._place_now(ticket.class_name, (), now, avoid=()) if any_up else None
                if engine is None:
                    continue
                self._move(resident, engine, now)
            self.stalled.pop(ticket.session)
            if resident is not None:
                waited = now - ticket.arrived_at
                entered.append(Entered(resident.id, resident.class_name, resident.engine, waited))
        return entered

    def _next_entry(self, loads: Mapping[str, EngineLoad], now: float) -> Entered | None:
        heads = {name: head for name, state in self.classes.items() if (head := state.queue.head())}
        if len(self.table) >= MAX_SESSIONS:
            heads = {name: head for name, head in heads.items() if head.parked}
        if not heads or self.view is None:
            return None
        entrants = Entrants(self, now)
        entry = decide(
            [entrants.candidate(head) for head in heads.values()],
            list(loads.values()),
            rules=self.view.rules.admission,
            rng=self._rng,
        )
        return self._let_in(heads[entry.class_name], entry, now) if entry is not None else None

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
        session = self.table.parked(ticket.session)
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
                marked_blocks=sum(piece.blocks for piece in ticket.pieces),
            )
            self.debt.entered(
                ticket.class_name, self._present(ticket.class_name), window=self.consumed.window
            )
        else:
            session.admitted_at = now - session.age(now)
            session.engine = engine
        session.tokens = max(session.tokens, float(ticket.prompt_tokens))
        session.prompt_estimate = ticket.prompt_estimate
        self.table.admit(session)
        self.ledger.entered(session, now)
        for _ in range(ticket.requests):
            self.table.begin_turn(ticket.session, now=now)
        self.fleet.prefixes.record(ticket.prefix, engine)

    def _present(self, *also: str) -> dict[str, float]:
        """Shares of the classes that run or want requests, or did a moment ago, and of those named."""
        for name, state in self.classes.items():
            sessions = self.table.by_class[name] + self.table.parked_by_class[name]
            state.see(self._now, running=self.table.running_by_class[name], sessions=sessions)
        shares = self.view.shares if self.view is not None else {}
        return {n: share for n, share in shares.items() if n in also or self.classes[n].is_present(self._now)}

    def _place_now(
        self, class_name: str, prefix: Sequence[bytes], now: float, *, avoid: Collection[str]
    ) -> str | None:
        """The engine for a session that does not wait: with room for its class where there is one."""
        up = [load for load in self.occupancy.loads(now) if load.name not in avoid]
        blind = self.view is not None and self.view.class_blind
        room = [load for load in up if headroom(load, class_name, class_blind=blind) > 0]
        if not up:
            return None
        return choose_engine(room or up, self.fleet.prefixes.overlaps(prefix), self._rng).name

    def _park(self, now: float) -> None:
        """Park sessions that idle for longer than their blocks are worth, where others wait for room."""
        limit = self.view.park_seconds if self.view is not None else None
        if limit is None or not any(len(state.queue) for state in self.classes.values()):
            return
        for name, state in self.classes.items():
            state.counters.parked += self.ledger.park(name, idle_since=now - limit, now=now)

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
            ratio = min(max(usage.prompt_tokens / session.prompt_estimate, 1 / MOST_WRONG), MOST_WRONG)
            state.estimate_factor += ESTIMATE_WEIGHT * (ratio - state.estimate_factor)
        if usage.cached_tokens is not None and session.cached_before:
            # What is not asked for is no loss.
            expected = min(session.cached_before, usage.prompt_tokens)
            self.retention.count(session.engine, expected=expected, found=usage.cached_tokens)

    def _count_ended(self, ended: Sequence[Session], now: float) -> None:
        for session in ended:
            self._changed = True
            if not session.parked:
                self.ledger.look(session, now)
                self.ledger.left(session)
            state = self.classes.get(session.class_name)
            if not session.succeeded:
                shares = self._present(session.class_name)
                self.debt.failed(session.class_name, shares, window=self.consumed.window)
            if state is None or not session.succeeded:
                continue
            state.counters.finished += 1
            self.ledger.ended(session, now)
            self.consumed.add(session.class_name)
            mixture = self.view.spec.mixture if self.view is not None else MixtureSpec()
            self.debt.consumed(
                session.class_name,
                self._present(session.class_name),
                window=mixture.window_samples,
                tolerated=mixture.tolerance_percentage_points / 100 * mixture.window_samples,
            )

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
