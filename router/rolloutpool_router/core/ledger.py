"""What sessions hold: looks at residents from time to time and keeps the pots, the life tables and the pace.

A session's blocks are known for certain only when one of its turns ends. Meanwhile a turn is taken to have
grown at the pace of its engine, so the pots stay true while long answers run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_router.core.demand import SessionCost
from rolloutpool_router.core.estimates import ClassEstimator, Expectation, Finished, Method, Source
from rolloutpool_router.core.forecast import NOTHING, Outlay, Outlook, Pot, horizons
from rolloutpool_router.core.lifetable import Life
from rolloutpool_router.core.policy import expectations, rules_of
from rolloutpool_router.core.sessions import Session, SessionTable, Usage
from rolloutpool_router.core.shared import Mark, SharedPrefixes, blocks_of

PRIOR_PACE = 33.0
"""Tokens that a running turn is taken to gain per second before any turn of its engine ended."""
PACE_WEIGHT = 0.05
"""Weight of the latest turn in an engine's pace."""
REFRESH_SECONDS = 5.0
"""How old estimates and outlooks may get, in seconds."""
LOOKS = 2000
"""Most residents looked at in one go; the others have their turn at the next."""
LOOK_SECONDS = 1.0
"""Least time between two looks around, in seconds."""
LOOK_TICKS = 3
"""Each resident is looked at once in so many looks around, or less often where there are too many."""
MIN_PACE_TOKENS = 16
"""Tokens of an answer from which its pace counts."""
MIN_PACE_SECONDS = 1e-3
"""Seconds of a turn from which its pace counts: shorter ones are the clock's doing."""


@dataclass(slots=True)
class EngineBooks:
    """One engine."""

    pot: Pot = field(default_factory=Pot)
    shared: SharedPrefixes = field(default_factory=SharedPrefixes)
    pace: float = PRIOR_PACE
    """Tokens that a running turn gains per second."""

    @property
    def held(self) -> float:
        """Blocks that its residents hold now."""
        return self.pot.held + self.shared.blocks

    @property
    def expected(self) -> float:
        """Most blocks that its residents are expected to hold."""
        return self.pot.expected() + self.shared.blocks


@dataclass(frozen=True, slots=True)
class ClassBooks:
    """One class, as estimated at the last refresh."""

    life: Life
    outlook: Outlook
    cost: SessionCost
    """Footprint (blocks) and residency (seconds) as the switches want them."""
    source: Source


class Ledger:
    """Everything that is held."""

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._estimators: dict[str, ClassEstimator] = {}
        self._expected: Mapping[str, Expectation] = {}
        self._block_size = 16
        self._method = Method(time_averaged=True, censoring=True, window_seconds=300)
        self._max_tokens = math.inf
        self._refreshed = -math.inf
        self._looked = -math.inf
        self._ticks = 0
        self._due: list[Session] = []
        """Residents whose turn it is to be looked at, the next one last."""
        self.engines: dict[str, EngineBooks] = {}
        """By name; only those with residents, or whose pace is known."""
        self.classes: dict[str, ClassBooks] = {}
        """By name; another dictionary after each refresh."""
        self.touched: set[str] = set()
        """Engines whose residents changed since whoever reads this has emptied it."""

    def apply(self, spec: RolloutPoolSpec) -> None:
        """Take over the classes of a spec; what was seen of those that stay is kept."""
        self._expected = expectations(spec)
        self._method = rules_of(spec, spec.admission.policy).method
        if spec.engine.block_size != self._block_size:
            # What was seen was counted in other blocks.
            self._estimators.clear()
            self._rescale(self._block_size / spec.engine.block_size)
        self._block_size = spec.engine.block_size
        self._max_tokens = spec.model.max_model_len or math.inf
        self._estimators = {name: self._estimators.get(name) or ClassEstimator() for name in self._expected}
        self._refreshed = -math.inf

    def keep_engines(self, names: Mapping[str, object]) -> None:
        """Forget the pace of engines that are gone and hold nobody."""
        for name in [name for name in self.engines if name not in names and not self._table.tally(name)]:
            del self.engines[name]

    def engine(self, name: str) -> EngineBooks:
        """The books of an engine."""
        books = self.engines.get(name)
        if books is None:
            books = self.engines[name] = EngineBooks()
        return books

    def in_turn(self, engine: str) -> float:
        """Part of the blocks of an engine's residents that turns hold, and not tool gaps, on average."""
        tallies = self._table.tally(engine)
        held = {name: tally.blocks for name, tally in tallies.items() if name in self.classes}
        total = sum(held.values())
        if total <= 0:
            return 1.0
        return sum(blocks * self.classes[name].life.in_turn for name, blocks in held.items()) / total

    def finished(self, class_name: str) -> int:
        """Sessions of a class that ended since it is known."""
        return self._estimators[class_name].table.finished

    def tell(self, class_name: str, estimator: ClassEstimator) -> None:
        """Know this of a class from now on, whatever was seen before."""
        self._estimators[class_name] = estimator
        self._refreshed = -math.inf

    def refresh(self, now: float) -> None:
        """Estimate the classes anew, if it is time."""
        if now - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = now
        lives = {
            name: estimator.life(self._expected[name], self._method, now)
            for name, estimator in self._estimators.items()
        }
        ahead = horizons(lives)
        self.classes = {
            name: ClassBooks(
                life=life,
                outlook=Outlook(life, ahead),
                cost=self._estimators[name].cost(life, self._expected[name], self._method, now),
                source=self._estimators[name].source(self._expected[name]),
            )
            for name, life in lives.items()
        }

    def newcomer(self, class_name: str, pieces: Sequence[Mark], prompt_tokens: int) -> Outlay:
        """Forecast of a session that has not entered, without its marks."""
        books = self.classes[class_name]
        blocks = books.life.blocks[0]
        if prompt_tokens:
            blocks = prompt_tokens / self._block_size
            if pieces:
                blocks = max(0.0, blocks - blocks_of(pieces))
        return books.outlook.of(age=0.0, blocks=blocks)

    def returning(self, session: Session, prompt_tokens: int) -> Outlay:
        """Forecast of a parked session that comes back."""
        tokens = max(session.tokens, prompt_tokens)
        return self._outlay(session, tokens / self._block_size, session.seen_at)

    def entered(self, session: Session, now: float) -> None:
        """A session became resident."""
        if session.pieces:
            shared = self.engine(session.engine).shared
            session.shared_blocks = session.marked_blocks - shared.missing(session.pieces)
            shared.add(session.pieces)
        session.seen_at = now
        if not session.tokens and (books := self.classes.get(session.class_name)) is not None:
            session.tokens = books.life.blocks[0] * self._block_size
        self._table.hold(session, session.tokens / self._block_size)
        self.recount(session, now)

    def turn_begins(self, session: Session, *, prompt_tokens: int, estimate: int, now: float) -> None:
        """A request of a resident session starts; call before the table counts it."""
        self._see(session, self._held(session, now), now)
        session.prompt_estimate = estimate
        if prompt_tokens > session.tokens:
            session.tokens = float(prompt_tokens)
        blocks = session.tokens / self._block_size
        if blocks != session.blocks:
            if (estimator := self._estimators.get(session.class_name)) is not None:
                estimator.table.gain(age=session.age(now), blocks=blocks - session.blocks)
            self._table.hold(session, blocks)
        self.recount(session, now)

    def turn_ended(self, session: Session, usage: Usage | None, now: float) -> None:
        """A request ended; call before the table counts it, and `recount` or `left` after."""
        if usage is not None:
            seconds = now - session.turn_started
            # `turn_started` is that of the last turn: of an earlier one it says nothing.
            sure = not session.overlapping and seconds >= MIN_PACE_SECONDS
            if sure and usage.completion_tokens >= MIN_PACE_TOKENS:
                books = self.engine(session.engine)
                books.pace += PACE_WEIGHT * (usage.completion_tokens / seconds - books.pace)
            session.tokens = float(usage.prompt_tokens + usage.completion_tokens)
        self._see(session, session.tokens / self._block_size, now)
        # Chat templates may drop the reasoning of earlier answers: only the prompt is sure to come again.
        known = usage is not None and not usage.estimated
        session.cached_before = float(usage.prompt_tokens) if usage is not None and known else 0.0

    def look(self, session: Session, now: float) -> None:
        """Count what a resident session held since the last look, and what it holds now."""
        self._see(session, self._held(session, now), now)
        self.recount(session, now)

    def look_around(self, now: float, most: int | None = None) -> bool:
        """Look at a part of the residents, another one each time, if it is time; as `look_on` says."""
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            ticks = max(LOOK_TICKS, -(-len(self._table) // LOOKS))
            self._ticks += 1
            self._due = list(islice(self._table, self._ticks % ticks, None, ticks))
            self._due.reverse()
        return self.look_on(now, most)

    def look_on(self, now: float, most: int | None = None) -> bool:
        """Look at so many of the residents whose turn it is; whether some are left."""
        due = self._due
        for _ in range(len(due) if most is None else min(most, len(due))):
            session = due.pop()
            if self._table.get(session.id) is session:
                self.look(session, now)
        return bool(due)

    def park(self, class_name: str, *, idle_since: float, now: float, most: int | None = None) -> int:
        """Park the residents of a class without a request since then, at most so many; how many."""
        idle = list(islice(self._table.idle(class_name, before=idle_since), most))
        for session in idle:
            self.left(session, now)
            if (estimator := self._estimators.get(class_name)) is not None:
                estimator.table.park(age=session.age(now))
            self._table.park(session)
        return len(idle)

    def left(self, session: Session, now: float) -> None:
        """A session is resident no more; `engine` still names where it was."""
        if now > session.seen_at:
            self._see(session, self._held(session, now), now)
        engine = self.engines[session.engine]
        self.touched.add(session.engine)
        engine.pot.replace(session.outlay, NOTHING)
        if session.pieces:
            engine.shared.remove(session.pieces)
        session.outlay = NOTHING
        session.cached_before = 0.0

    def ended(self, session: Session, now: float) -> None:
        """A session that succeeded is over: learn from it."""
        estimator = self._estimators.get(session.class_name)
        if estimator is None:
            return
        age = session.age(now)
        average = session.block_seconds / age if age > 0 else session.blocks - session.shared_blocks
        done = Finished(age, max(1.0, average), max(1.0, session.peak_blocks))
        estimator.end(done, now=now)

    def moved(self, session: Session, engine: str, now: float) -> None:
        """A resident session goes to another engine; call before the table moves it."""
        self.left(session, now)
        books = self.engine(engine)
        self.touched.add(engine)
        books.shared.add(session.pieces)
        session.outlay = self._outlay(session, session.blocks, now)
        books.pot.replace(NOTHING, session.outlay)

    def _rescale(self, factor: float) -> None:
        for session in self._table:
            session.peak_blocks *= factor
            session.block_seconds *= factor
            self._table.hold(session, session.blocks * factor)

    def _held(self, session: Session, now: float) -> float:
        tokens = session.tokens
        if session.in_flight:
            grown = self.engine(session.engine).pace * (now - session.turn_started)
            tokens = min(tokens + grown, max(tokens, self._max_tokens))
        return tokens / self._block_size

    def _see(self, session: Session, blocks: float, now: float) -> None:
        seconds = now - session.seen_at
        if seconds > 0:
            mean = max(1.0, (session.blocks + blocks) / 2 - session.shared_blocks)
            session.block_seconds += mean * seconds
            session.seen_at = now
            if (estimator := self._estimators.get(session.class_name)) is not None:
                age = session.age(now)
                estimator.table.see(
                    since=max(0.0, age - seconds),
                    age=age,
                    blocks=mean,
                    gained=blocks - session.blocks,
                    in_turn=session.in_flight > 0,
                )
        if blocks != session.blocks:
            self._table.hold(session, blocks)

    def recount(self, session: Session, now: float) -> None:
        """Count a resident session in its engine's pot by what it holds now."""
        self.touched.add(session.engine)
        outlay = self._outlay(session, session.blocks, now)
        books = self.engines.get(session.engine) or self.engine(session.engine)
        books.pot.replace(session.outlay, outlay)
        session.outlay = outlay

    def _outlay(self, session: Session, blocks: float, now: float) -> Outlay:
        books = self.classes.get(session.class_name)
        private = max(0.0, blocks - session.marked_blocks)
        if books is None:
            return Outlay((private,) * len(NOTHING.mean), NOTHING.variance)
        return books.outlook.of(age=session.age(now), blocks=private)
