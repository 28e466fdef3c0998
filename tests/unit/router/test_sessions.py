"""The session table: permits, idle times, footprints in time."""

from __future__ import annotations

import pytest

from rolloutpool_router.core.sessions import Session, SessionTable, Usage

BLOCK = 16


def end(
    table: SessionTable,
    session: str,
    *,
    now: float,
    ok: bool = True,
    usage: Usage | None = None,
    idle: float = 10,
) -> Session | None:
    return table.end_turn(session, now=now, ok=ok, usage=usage, block_size=BLOCK, idle_seconds=idle)


def table_with(session: str = "s", *, single: bool = False) -> SessionTable:
    table = SessionTable()
    table.admit(session, "agentic", "e0", now=0, blocks=5, single=single)
    table.begin_turn(session, now=0)
    return table


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
    assert len(table) == 0
    assert not table.tally("e0")
    assert not table.by_class


def test_an_idle_session_expires_and_a_busy_one_does_not() -> None:
    table = table_with("idle")
    table.admit("busy", "agentic", "e0", now=0, blocks=5)
    table.begin_turn("busy", now=0)
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


def test_a_finished_session_ends_with_its_last_request_in_flight() -> None:
    table = table_with()
    table.begin_turn("s", now=1)

    assert table.finish("s") is None
    assert end(table, "s", now=2) is None
    assert end(table, "s", now=3) is not None


def test_a_move_takes_the_permit_along() -> None:
    table = table_with()

    table.move("s", "e1")

    assert not table.tally("e0")
    assert table.tally("e1")["agentic"].sessions == 1


def test_the_footprint_is_the_average_over_the_residency() -> None:
    table = table_with()
    # 10 s of 160 + 160 / 2 = 240 tokens (15 blocks), 20 s of 320 tokens (20), 10 s of 640 tokens (40)
    end(table, "s", now=10, usage=Usage(160, 160))
    table.begin_turn("s", now=30)
    table.finish("s")
    ended = end(table, "s", now=40, usage=Usage(640, 0))

    assert ended is not None
    cost = ended.cost(40)
    assert cost.residency_seconds == 40
    assert cost.footprint_blocks == pytest.approx((150 + 400 + 400) / 40)


def test_blocks_follow_the_tokens() -> None:
    table = table_with()
    end(table, "s", now=1, usage=Usage(100, 1))

    assert table.tally("e0")["agentic"].blocks == 7
    table.expire(now=100, idle_seconds={})
    assert not table.tally("e0")


def test_a_session_is_admitted_once() -> None:
    table = table_with()
    with pytest.raises(ValueError, match="resident already"):
        table.admit("s", "agentic", "e0", now=1, blocks=1)
