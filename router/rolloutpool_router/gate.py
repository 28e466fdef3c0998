"""Where requests wait: the asyncio side of `core.controller`.

Decisions are made synchronously, without an await in between; waiting requests are woken after. Each request
that entered leaves exactly once, whatever becomes of it: answer, error, disconnect, or cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Outcome, Refusal
from rolloutpool_router.core.requests import Arrival, Entered, Queued
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.core.view import Ignored

MOST_AT_ONCE = 200
"""Sessions that one tick looks at before others get the event loop, 6 ms at most."""
Clock = Callable[[], float]
"""Monotonic seconds."""


@dataclass(eq=False)
class _Waiter:
    """One request that waits; `answer` is set before its future, so that a cancelled task can tell."""

    queued: Queued
    future: asyncio.Future[Entered | Refusal] = field(default_factory=asyncio.Future)
    answer: Entered | Refusal | None = None


class Gate:
    """Lets requests in when the controller says so."""

    def __init__(self, controller: AdmissionController, clock: Clock) -> None:
        """Guard the controller; nobody else may change it."""
        self.controller = controller
        self._clock = clock
        self._shut: Refusal | None = None
        """What requests are answered that would have to wait, once the router shuts down."""
        self._waiters: dict[str, list[_Waiter]] = {}

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(len(waiters) for waiters in self._waiters.values())

    async def enter(self, arrival: Arrival) -> Entered | Refusal:
        """Wait until the request may go to an engine. After Entered, call `leave` exactly once."""
        answer = self.arrive(arrival)
        return await self.wait(answer) if isinstance(answer, Queued) else answer

    def arrive(self, arrival: Arrival) -> Entered | Refusal | Queued:
        """The same without waiting: after Queued, `wait` at once."""
        answer, entered = self.controller.arrive(arrival, self._clock())
        self._wake(entered)
        if self._shut is not None and isinstance(answer, Queued):
            return self._turned_away(answer)
        return answer

    async def reroute(self, session: str, *, avoid: Collection[str]) -> Entered | Refusal | None:
        """Another engine for a request that entered and that its engine did not take.

        Waits while no engine is up; None if only those of `avoid` are. `leave` is due all the same.
        """
        answer = self.controller.reroute(session, now=self._clock(), avoid=avoid)
        if self._shut is not None and isinstance(answer, Queued):
            self.controller.cancel(answer, self._clock())
            return self._shut
        return await self._until_answered(_Waiter(answer)) if isinstance(answer, Queued) else answer

    def leave(self, session: str, *, ok: bool, usage: Usage | None) -> None:
        """A request that entered ended; `ok`: its answer was 2xx and complete."""
        now = self._clock()
        self.controller.end_turn(session, now=now, ok=ok, usage=usage)
        self._wake(self.controller.admit_waiting(now))

    def finish(self, session: str) -> bool:
        """The client is done with a session; False if it was not resident."""
        known = self.controller.finish(session, self._clock())
        self._admit()
        return known

    def release(self, session: str) -> str | None:
        """Another router has the session now: the engine that holds its KV; None if it is not idle here."""
        engine = self.controller.release(session, self._clock())
        self._admit()
        return engine

    def apply(self, pool: RolloutPool, capacities: Mapping[str, int]) -> Ignored | None:
        """Take over an object; why, if it changed nothing."""
        dropped = self.controller.apply(pool, capacities)
        if isinstance(dropped, Ignored):
            return dropped
        for ticket in dropped:
            names = ", ".join(self.controller.classes)
            self._answer(
                ticket.session,
                Refusal(
                    Outcome.CLASS_UNKNOWN,
                    f"class {ticket.class_name!r} was taken out of the pool while the request waited; "
                    f"set X-Rollout-Class to one of: {names}",
                ),
            )
        self._admit()
        return None

    def tick(self) -> None:
        """Once in a while: sessions expire, engines come back."""
        ticked = self.controller.tick(self._clock(), most=MOST_AT_ONCE)
        for ticket, refusal in ticked.refused:
            self._answer(ticket.session, refusal)
        self._wake(ticked.entered)

    def go_on(self) -> bool:
        """Go on with what a tick left over; whether there may be more."""
        more = self.controller.go_on(self._clock(), most=MOST_AT_ONCE)
        self._admit()
        return more

    def engine_failed(self, engine: str) -> None:
        """A connection to an engine failed."""
        self.controller.fleet.failed(engine, self._clock())

    def shut(self, refusal: Refusal) -> None:
        """Answer every request that waits, or would have to wait from now on, with this."""
        self._shut = refusal
        for session, waiters in list(self._waiters.items()):
            for waiter in waiters:
                self.controller.cancel(waiter.queued, self._clock())
            self._answer(session, refusal)

    def _turned_away(self, queued: Queued) -> Refusal:
        assert self._shut is not None
        self.controller.cancel(queued, self._clock())
        if queued.resident:
            self.leave(queued.session, ok=False, usage=None)
        return self._shut

    async def wait(self, queued: Queued) -> Entered | Refusal:
        """Wait until a request that arrived may go to an engine."""
        waiter = _Waiter(queued)
        try:
            answer = await self._until_answered(waiter)
        except asyncio.CancelledError:
            if queued.resident or isinstance(waiter.answer, Entered):
                self.leave(queued.session, ok=False, usage=None)
            raise
        if queued.resident and isinstance(answer, Refusal):
            self.leave(queued.session, ok=False, usage=None)
        return answer

    async def _until_answered(self, waiter: _Waiter) -> Entered | Refusal:
        session = waiter.queued.session
        self._waiters.setdefault(session, []).append(waiter)
        try:
            return await waiter.future
        finally:
            if waiter.answer is None:
                self._waiters[session].remove(waiter)
                if not self._waiters[session]:
                    del self._waiters[session]
                self.controller.cancel(waiter.queued, self._clock())

    def _admit(self) -> None:
        self._wake(self.controller.admit_waiting(self._clock()))

    def _wake(self, entered: Iterable[Entered]) -> None:
        for entry in entered:
            self._answer(entry.session, entry)

    def _answer(self, session: str, answer: Entered | Refusal) -> None:
        for waiter in self._waiters.pop(session, ()):
            waiter.answer = answer
            if not waiter.future.done():
                waiter.future.set_result(answer)
