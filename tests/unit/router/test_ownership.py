"""Rendezvous hashing: all agree, loads are even, and only what must move moves."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.ownership import ranking, session_key

NAMES = st.text("abcdefghijklmnop-0123456789", min_size=1, max_size=12)
ROUTERS = st.sets(NAMES, min_size=1, max_size=8)
SESSIONS = st.lists(st.text(max_size=20), max_size=30, unique=True)


def owners(sessions: list[str], routers: set[str]) -> dict[str, str]:
    return {session: ranking(session_key(session), routers)[0] for session in sessions}


@given(sessions=SESSIONS, routers=ROUTERS)
def test_only_the_sessions_of_a_lost_router_move(sessions: list[str], routers: set[str]) -> None:
    if len(routers) < 2:
        return
    gone = sorted(routers)[0]
    before, after = owners(sessions, routers), owners(sessions, routers - {gone})
    assert all(after[session] == before[session] for session in sessions if before[session] != gone)
    assert gone not in after.values()


@given(sessions=SESSIONS, routers=ROUTERS, new=NAMES)
def test_sessions_move_to_a_new_router_only(sessions: list[str], routers: set[str], new: str) -> None:
    before, after = (
        owners(sessions, routers - {new} or {"a"}),
        owners(sessions, {*(routers - {new} or {"a"}), new}),
    )
    assert all(after[session] in (before[session], new) for session in sessions)


@given(key=st.binary(max_size=20), routers=ROUTERS)
def test_the_order_of_the_names_does_not_matter(key: bytes, routers: set[str]) -> None:
    found = ranking(key, sorted(routers))
    assert found == ranking(key, sorted(routers, reverse=True))
    assert set(found) == routers


@given(key=st.binary(max_size=20), routers=ROUTERS)
def test_who_follows_the_owner_owns_when_it_is_gone(key: bytes, routers: set[str]) -> None:
    first, *others = ranking(key, routers)
    assert list(ranking(key, routers - {first})) == others


def test_sessions_are_spread_evenly() -> None:
    routers = [f"pool-router-7c9d6bf5c8-{number}" for number in range(5)]
    counts = Counter(ranking(session_key(f"session-{n}"), routers)[0] for n in range(10_000))
    assert all(abs(counts[name] - 2000) < 200 for name in routers)


@pytest.mark.parametrize(
    "session", ["", "ü", "\ud800", "a" * 256], ids=["empty", "text", "surrogate", "long"]
)
def test_any_session_has_a_key(session: str) -> None:
    assert len(ranking(session_key(session), ["a", "b"])) == 2
