"""What sessions hold: over time, beside what they share, and on the engine where they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.estimates import Source
from rolloutpool_router.core.ledger import LOOK_TICKS, MIN_PACE_TOKENS, PRIOR_PACE, REFRESH_SECONDS, Ledger
from rolloutpool_router.core.lifetable import WIDTHS, bucket_of
from rolloutpool_router.core.sessions import Session, SessionTable, Usage
from rolloutpool_router.core.shared import Mark
from rolloutpool_router.testing import pool_object
from rolloutpool_testkit.admission import BLOCK, ONE

SYSTEM = (1, 6.0)


@dataclass
class Books:
    """A table and its ledger, and sessions that go through their turns."""

    admission: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = SessionTable()
        self.ledger = Ledger(self.table)
        pool = pool_object(ONE, admission=self.admission)
        pool["spec"]["model"]["maxModelLen"] = 16_000
        self.ledger.apply(parse_pool(pool).spec)
        self.ledger.refresh(0)

    def enter(self, name: str, tokens: int, *pieces: Mark, now: float = 0.0, engine: str = "e0") -> Session:
        marked = sum(blocks for _, blocks in pieces)
        session = Session(name, "agentic", engine, now, float(tokens), pieces=pieces, marked_blocks=marked)
        self.table.admit(session)
        self.ledger.entered(session, now)
        self.table.begin_turn(name, now=now)
        return session

    def begin(self, session: Session, tokens: int, *, now: float) -> None:
        self.ledger.turn_begins(session, prompt_tokens=tokens, estimate=tokens, now=now)
        self.table.begin_turn(session.id, now=now)

    def end(self, session: Session, prompt: int, output: int, *, now: float) -> None:
        self.ledger.turn_ended(session, Usage(prompt, output), now)
        self.table.end_turn(session.id, now=now, ok=True, idle_seconds=1e9)
        self.ledger.recount(session, now)

    def leave(self, session: Session, *, now: float) -> None:
        """Finished by the client, between two turns or with its last."""
        self.table.finish(session.id)
        if session.in_flight:
            self.table.end_turn(session.id, now=now, ok=True, idle_seconds=0)
        self.ledger.left(session, now)
        self.ledger.ended(session, now)

    @property
    def held(self) -> float:
        return self.ledger.engine("e0").held


def test_the_footprint_is_the_average_over_the_residency() -> None:
    books = Books()
    session = books.enter("s", 160)
    # 10 s of 160 + 160 / 2 = 240 tokens (15 blocks), 20 s of 320 tokens (20), 10 s of 640 tokens (40)
    books.end(session, 160, 160, now=10)
    books.begin(session, 640, now=30)
    books.end(session, 640, 0, now=40)

    assert session.age(40) == 40
    assert session.block_seconds == pytest.approx(150 + 400 + 400)
    assert session.peak_blocks == 40


def test_blocks_follow_the_tokens() -> None:
    books = Books()
    session = books.enter("s", 160)
    assert books.table.tally("e0")["agentic"].blocks == 10
    books.end(session, 160, 32, now=1)
    assert books.table.tally("e0")["agentic"].blocks == 12
    assert books.held == 12
    books.leave(session, now=2)
    assert not books.table.tally("e0")
    assert books.held == 0


class TestRunningTurns:
    """What a turn holds is only known at its end; until then it is taken to have grown."""

    def test_it_grows_at_the_pace_of_its_engine(self) -> None:
        books = Books()
        session = books.enter("s", 160)
        books.ledger.look(session, 10)

        assert session.blocks == pytest.approx((160 + 10 * PRIOR_PACE) / BLOCK)

    def test_the_pace_follows_the_answers(self) -> None:
        books = Books()
        for number in range(200):
            session = books.enter(f"s{number}", 160, now=number)
            books.end(session, 160, 100, now=number + 1)
        assert books.ledger.engine("e0").pace == pytest.approx(100, rel=0.02)
        assert books.ledger.engine("e1").pace == PRIOR_PACE

    def test_short_answers_say_nothing_of_it(self) -> None:
        books = Books()
        session = books.enter("s", 160)
        books.end(session, 160, MIN_PACE_TOKENS - 1, now=1)
        assert books.ledger.engine("e0").pace == PRIOR_PACE

    def test_it_never_grows_beyond_what_the_model_takes(self) -> None:
        books = Books()
        session = books.enter("s", 160)
        books.ledger.look(session, 1e6)
        assert session.blocks == 1000

    def test_in_a_tool_gap_nothing_grows(self) -> None:
        books = Books()
        session = books.enter("s", 160)
        books.end(session, 160, 160, now=1)
        books.ledger.look(session, 1000)
        assert session.blocks == 20


class TestLooking:
    """Nobody is looked at all the time, and nobody is forgotten."""

    def test_each_resident_has_its_turn(self) -> None:
        books = Books()
        sessions = [books.enter(f"s{number}", 160) for number in range(31)]
        for now in range(1, LOOK_TICKS + 1):
            books.ledger.look_around(now)
            assert sum(session.seen_at == now for session in sessions) <= 31 // LOOK_TICKS + 1
        assert all(session.seen_at > 0 for session in sessions)

    def test_parking_counts_what_was_held_until_then(self) -> None:
        books = Books()
        session = books.enter("s", 160)
        books.end(session, 160, 160, now=10)
        assert books.ledger.park("agentic", idle_since=5, now=20) == 0
        assert books.ledger.park("agentic", idle_since=15, now=20) == 1

        assert session.block_seconds == pytest.approx(15 * 10 + 20 * 10)
        assert books.held == 0
        assert session.age(100) == 20


class TestSharedPrefixes:
    """Charged to the engine once; a session's own footprint leaves out what others brought."""

    def test_the_engine_holds_it_once(self) -> None:
        books = Books()
        for name in "abc":
            books.enter(name, 160, SYSTEM)
        assert books.held == 6 + 3 * 4

    @pytest.mark.parametrize("order", ["abc", "cba", "bac"])
    def test_whoever_leaves_first(self, order: str) -> None:
        books = Books()
        sessions = {name: books.enter(name, 160, SYSTEM) for name in "abc"}
        for left, name in enumerate(order, start=1):
            books.leave(sessions[name], now=0)
            assert books.held == pytest.approx(6 + (3 - left) * 4 if left < 3 else 0)

    def test_the_first_pays_for_it_and_the_others_do_not(self) -> None:
        books = Books()
        first, second = (books.enter(name, 160, SYSTEM) for name in "ab")
        for session in (first, second):
            books.end(session, 160, 0, now=10)

        assert (first.block_seconds, second.block_seconds) == (100, 40)

    def test_it_moves_with_its_sessions(self) -> None:
        books = Books()
        first, second = (books.enter(name, 160, SYSTEM) for name in "ab")
        books.ledger.moved(first, "e1", 0)
        books.table.move(first, "e1")

        assert books.held == 6 + 4
        assert books.ledger.engine("e1").held == 6 + 4
        books.leave(first, now=0)
        books.leave(second, now=0)
        assert (books.held, books.ledger.engine("e1").held) == (0, 0)


def test_what_a_cache_should_have_is_forgotten_with_the_move() -> None:
    """Otherwise the new engine would seem to have evicted what it never had."""
    books = Books()
    session = books.enter("s", 160)
    books.end(session, 160, 32, now=1)
    assert session.cached_before == 160
    books.ledger.moved(session, "e1", 2)
    assert session.cached_before == 0


def test_where_an_engine_does_not_count_tokens_nothing_is_expected_of_its_cache() -> None:
    books = Books()
    session = books.enter("s", 160)
    books.end(session, 160, 32, now=1)
    books.begin(session, 200, now=2)
    books.ledger.turn_ended(session, None, 3)
    assert session.cached_before == 0


def test_a_newcomer_is_forecast_with_its_prompt_beside_its_marks() -> None:
    books = Books()
    prompt, unknown = (books.ledger.newcomer("agentic", (SYSTEM,), tokens) for tokens in (320, 0))

    assert prompt.mean[0] == 20 - 6
    assert unknown.mean[0] == pytest.approx(books.ledger.classes["agentic"].life.blocks[0])


def test_a_session_that_comes_back_is_forecast_with_its_whole_history() -> None:
    books = Books()
    session = books.enter("s", 160, SYSTEM)
    books.end(session, 160, 160, now=10)
    books.ledger.left(session, 10)

    assert books.ledger.returning(session, 480).mean[0] == 30 - 6
    assert books.ledger.returning(session, 0).mean[0] == 20 - 6


class TestEstimates:
    def test_they_follow_what_was_seen(self) -> None:
        books = Books({"priorWeight": 1e-3})
        for number in range(20):
            session = books.enter(f"s{number}", 160)
            books.end(session, 160, 160, now=40)
            books.leave(session, now=40)
        books.ledger.refresh(40)
        books_of = books.ledger.classes["agentic"]

        assert books_of.cost.residency_seconds == pytest.approx(40, rel=0.02)
        assert books_of.cost.footprint_blocks == pytest.approx(15, rel=0.02)
        assert (books_of.source, books.ledger.finished("agentic")) == (Source.OBSERVED, 20)

    def test_a_parked_session_is_known_to_have_left_its_place(self) -> None:
        books = Books({"priorWeight": 1e-3})
        for number in range(20):
            session = books.enter(f"s{number}", 160)
            books.end(session, 160, 160, now=10)
        books.ledger.park("agentic", idle_since=10, now=20)
        books.ledger.refresh(20)

        assert books.ledger.classes["agentic"].life.surviving(15) == pytest.approx(1, abs=0.01)
        assert books.ledger.classes["agentic"].life.surviving(30) == pytest.approx(0, abs=0.01)

    def test_what_a_tool_adds_is_growth(self) -> None:
        """Turns of 10 s without an answer to speak of, and 100 blocks more at the beginning of the second."""
        books = Books({"priorWeight": 1e-3})
        for number in range(20):
            session = books.enter(f"s{number}", 160)
            books.end(session, 160, 0, now=10)
            books.begin(session, 1760, now=20)
            books.end(session, 1760, 0, now=30)
        books.ledger.refresh(30)
        life = books.ledger.classes["agentic"].life

        until = bucket_of(20) + 1
        gained = sum(growth * width for growth, width in zip(life.growth[:until], WIDTHS, strict=False))
        assert gained == pytest.approx(100, rel=0.1)

    def test_they_are_made_anew_now_and_then(self) -> None:
        books = Books()
        before = books.ledger.classes["agentic"]
        books.ledger.refresh(REFRESH_SECONDS - 0.1)
        assert books.ledger.classes["agentic"] is before
        books.ledger.refresh(REFRESH_SECONDS)
        assert books.ledger.classes["agentic"] is not before

    def test_a_class_that_stays_keeps_them(self) -> None:
        books = Books()
        session = books.enter("s", 160)
        books.leave(session, now=10)
        workloads = [{"name": "agentic", "share": 0.5}, {"name": "new", "share": 0.5}]
        books.ledger.apply(parse_pool(pool_object(ONE, workloads=workloads)).spec)

        assert (books.ledger.finished("agentic"), books.ledger.finished("new")) == (1, 0)


def test_engines_that_are_gone_are_forgotten_once_they_hold_nobody() -> None:
    books = Books()
    session = books.enter("s", 160)
    books.ledger.engine("idle")
    books.ledger.keep_engines({})
    assert list(books.ledger.engines) == ["e0"]
    books.leave(session, now=1)
    books.ledger.keep_engines({})
    assert not books.ledger.engines
