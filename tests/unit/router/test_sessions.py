"""The session table: permits, idle times, parked sessions."""

from __future__ import annotations

import pytest

from rolloutpool_router.core import sessions
from rolloutpool_router.core.sessions import Session, SessionTable


def end(
    table: SessionTable, session: str, *, now: float, ok: bool = True, idle: float = 10
) -> Session | None:
    return table.end_turn(session, now=now, ok=ok, idle_seconds=idle)


def admit(table: SessionTable, name: str = "s", *, single: bool = False, now: float = 0.0) -> Session:
    session = table.admit(Session(name, "agentic", "e0", now, single=single))
    table.begin_turn(name, now=now)
    return session


def table_with(session: str = "s", *, single: bool = False) -> SessionTable:
    table = SessionTable()
    admit(table, session, single=single)
    return table


def parked(name: str = "s", *, since: float = 5.0) -> tuple[SessionTable, Session]:
    """A table with one parked session whose last answer ended then."""
    table = SessionTable()
    session = admit(table, name)
    end(table, name, now=since)
    table.hold(session, 5)
    table.park(session)
    return table, session


def is_empty(table: SessionTable) -> bool:
    return not (len(table) or table.by_class or table.parked_by_class or table.tally("e0"))


def test_a_session_holds_one_permit_through_its_turns() -> None:
    table = table_with()
    for turn in range(3):
        assert table.tally("e0")["agentic"].sessions == 1
        assert end(table, "s", now=turn) is None
        table.begin_turn("s", now=turn)
    assert len(table) == 1


@pytest.mark.parametrize(
    ("single", "idle", "ok"),
    [
        pytest.param(False, 0.0, True, id="no-idle-time"),
        pytest.param(True, 60.0, True, id="unnamed-session"),
        pytest.param(False, 60.0, False, id="first-answer-failed"),
    ],
)
def test_a_session_may_end_with_its_answer(single: bool, idle: float, ok: bool) -> None:
    table = table_with(single=single)

    ended = end(table, "s", now=1, ok=ok, idle=idle)

    assert ended is not None
    assert ended.succeeded is ok
    assert is_empty(table)


def test_a_later_answer_that_failed_ends_nothing() -> None:
    table = table_with()
    end(table, "s", now=1)
    table.begin_turn("s", now=2)

    assert end(table, "s", now=3, ok=False) is None


def test_an_idle_session_expires_and_a_busy_one_does_not() -> None:
    table = table_with("idle")
    admit(table, "busy")
    end(table, "idle", now=5)

    assert table.expire(now=14.9, idle_seconds={"agentic": 10}) == []
    assert [s.id for s in table.expire(now=15, idle_seconds={"agentic": 10})] == ["idle"]
    assert table.get("busy") is not None


def test_a_new_turn_starts_the_idle_time_anew() -> None:
    table = table_with()
    end(table, "s", now=5)
    table.begin_turn("s", now=12)
    end(table, "s", now=13)

    assert table.expire(now=22, idle_seconds={"agentic": 10}) == []
    assert len(table.expire(now=23, idle_seconds={"agentic": 10})) == 1


def test_idle_sessions_of_a_class_that_is_gone_expire_at_once() -> None:
    table = table_with()
    end(table, "s", now=5)

    assert len(table.expire(now=5, idle_seconds={})) == 1


def test_the_longest_idle_come_first_and_busy_ones_not_at_all() -> None:
    table = SessionTable()
    for name in "abcd":
        admit(table, name)
    for now, name in enumerate("cab"):
        end(table, name, now=now)
    table.begin_turn("a", now=3)

    assert [s.id for s in table.idle("agentic", before=2)] == ["c", "b"]
    assert [s.id for s in table.idle("agentic", before=1)] == ["c"]
    assert list(table.idle("rlvr", before=9)) == []


def test_a_finished_session_ends_with_its_last_request_in_flight() -> None:
    table = table_with()
    table.begin_turn("s", now=1)

    assert table.finish("s") is None
    assert end(table, "s", now=2) is None
    assert end(table, "s", now=3) is not None


def test_a_move_takes_the_permit_along() -> None:
    table = SessionTable()
    session = admit(table)
    table.hold(session, 7)

    table.move(session, "e1")

    assert not table.tally("e0")
    assert (table.tally("e1")["agentic"].sessions, table.tally("e1")["agentic"].blocks) == (1, 7)


def test_what_is_held_is_counted_where_the_session_is_and_its_peak_is_kept() -> None:
    table = SessionTable()
    session = admit(table)
    for blocks in (3, 7, 5):
        table.hold(session, blocks)

    assert table.tally("e0")["agentic"].blocks == 5
    assert session.peak_blocks == 7
    end(table, "s", now=1)
    table.expire(now=100, idle_seconds={})
    assert not table.tally("e0")


def test_a_session_is_admitted_once() -> None:
    table = table_with()
    with pytest.raises(ValueError, match="resident already"):
        admit(table)


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    table, session = parked()
    admit(table, "other")
    with pytest.raises(ValueError, match="2 sessions are open, the most"):
        admit(table, "third")

    table.admit(session)
    assert table.get("s") is session, "a parked one has its place already"


class TestParked:
    def test_it_gives_its_permit_and_its_blocks_back_and_stays_open(self) -> None:
        table, session = parked()

        assert not table.tally("e0")
        assert not table.by_class
        assert (len(table), table.parked_by_class) == (1, {"agentic": 1})
        assert table.get("s") is None
        assert table.parked("s") is session
        assert list(table) == list(table.idle("agentic", before=99)) == []

    def test_it_takes_them_again(self) -> None:
        table, session = parked()
        session.engine = "e1"

        table.admit(session)

        assert table.tally("e1")["agentic"].sessions == 1
        assert table.parked("s") is None
        assert not session.parked
        assert not table.parked_by_class

    def test_it_expires_like_any_other(self) -> None:
        table, session = parked(since=5)

        assert table.expire(now=14.9, idle_seconds={"agentic": 10}) == []
        assert table.expire(now=15, idle_seconds={"agentic": 10}) == [session]
        assert is_empty(table)

    def test_while_its_next_turn_waits_it_does_not(self) -> None:
        table, session = parked(since=5)
        table.busy(session)
        assert table.expire(now=1000, idle_seconds={"agentic": 10}) == []

        table.rest(session, now=1000)
        assert table.expire(now=1009, idle_seconds={"agentic": 10}) == []
        assert table.expire(now=1010, idle_seconds={"agentic": 10}) == [session]

    def test_it_can_be_finished(self) -> None:
        table, session = parked()

        assert table.finish("s") is session
        assert is_empty(table)

    def test_its_age_stands_still(self) -> None:
        _, session = parked()
        session.seen_at = 5.0

        assert session.age(1000.0) == 5.0
