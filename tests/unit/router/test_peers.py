"""Whose a session is as one router sees it, and which routers exist as an operator sees them."""

from __future__ import annotations

import pytest

from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.status import RouterShare
from rolloutpool_router.core.ownership import ranking, session_key
from rolloutpool_router.core.peers import MAX_REMEMBERED, REMEMBERED_SECONDS, Peers
from rolloutpool_router.core.roster import GONE_SECONDS, Roster, alive, looked

NAMES = ("a", "b", "c")
KEY = session_key("s")
FIRST, SECOND, THIRD = ranking(KEY, NAMES)


def shares(*names: str) -> list[RouterShare]:
    return [RouterShare(name=name, url=f"http://{name}") for name in names]


def peers(name: str, *listed: str) -> Peers:
    found = Peers(name)
    found.apply(shares(*listed), -100.0)
    return found


def ahead(found: Peers, now: float = 0.0, *, leaving: bool = False) -> list[str]:
    return [router.name for router in found.ahead(KEY, now, leaving=leaving)]


@pytest.mark.parametrize(
    ("me", "listed", "leaving", "expected"),
    [
        pytest.param(FIRST, NAMES, False, [], id="the owner serves"),
        pytest.param(SECOND, NAMES, False, [FIRST], id="the next asks the owner"),
        pytest.param(THIRD, NAMES, False, [FIRST, SECOND], id="the last asks all before"),
        pytest.param(FIRST, NAMES, True, [SECOND, THIRD], id="who leaves asks all others"),
        pytest.param("new", NAMES, False, [FIRST, SECOND, THIRD], id="who is not listed asks all"),
        pytest.param("a", (), False, [], id="no list"),
        pytest.param("a", ("a",), True, [], id="alone"),
    ],
)
def test_who_is_asked(me: str, listed: tuple[str, ...], leaving: bool, expected: list[str]) -> None:
    assert ahead(peers(me, *listed), leaving=leaving) == expected


def test_who_failed_is_passed_over_for_a_while() -> None:
    found = peers(THIRD, *NAMES)
    found.failed(FIRST, 0.0)
    assert ahead(found) == [SECOND]
    assert ahead(found, now=60.0) == [FIRST, SECOND]
    found.failed(FIRST, 60.0)
    found.answered(FIRST)
    assert ahead(found, now=60.0) == [FIRST, SECOND]


def test_routers_that_left_are_asked_for_sessions_for_a_while() -> None:
    found = peers("a", "a", "b", "c")
    found.apply(shares("a", "c"), 1.0)
    assert [router.name for router in found.with_sessions(2.0)] == ["c", "b"]
    found.failed("b", 2.0)
    assert [router.name for router in found.with_sessions(2.0)] == ["c"]
    assert [router.name for router in found.with_sessions(60.0)] == ["c", "b"]
    found.apply(shares("a", "c"), 1.0 + REMEMBERED_SECONDS)
    assert [router.name for router in found.with_sessions(1.0 + REMEMBERED_SECONDS)] == ["c"]


def test_few_routers_that_left_are_remembered() -> None:
    found = peers("a", "a")
    for number in range(99):
        found.apply(shares("a", f"r{number}"), float(number) / 100)
    assert len(found.with_sessions(1.0)) == 1 + MAX_REMEMBERED


@pytest.mark.parametrize(
    ("me", "before", "after", "now", "expected"),
    [
        pytest.param(FIRST, NAMES, NAMES, 1.0, False, id="its own, and nothing changed"),
        pytest.param(SECOND, NAMES, NAMES, 1.0, True, id="it belongs to another"),
        pytest.param(FIRST, ("b", "c", "d"), NAMES, 11.0, True, id="a router was lost lately"),
        pytest.param(FIRST, ("b", "c", "d"), NAMES, 99.0, False, id="a router was lost long ago"),
        pytest.param("a", (), (), 1.0, False, id="no list"),
        pytest.param("a", (), ("a",), 11.0, False, id="listed alone"),
        pytest.param(FIRST, (), NAMES, 11.0, True, id="new among others"),
    ],
)
def test_whether_another_router_may_have_had_a_session(
    me: str, before: tuple[str, ...], after: tuple[str, ...], now: float, expected: bool
) -> None:
    found = peers(me, *before)
    found.apply(shares(*after), 10.0 if before != after else 0.0)
    assert found.may_have_had(KEY, now, within=20.0) is expected


@pytest.mark.parametrize(
    ("me", "listed", "expected"),
    [
        pytest.param("a", ("a", "b"), True, id="listed"),
        pytest.param("a", (), True, id="nobody is"),
        pytest.param("a", ("b",), False, id="others are"),
    ],
)
def test_listed(me: str, listed: tuple[str, ...], expected: bool) -> None:
    assert peers(me, *listed).listed is expected


def snapshot(applied: int) -> AdmissionSnapshot:
    return AdmissionSnapshot(router="x", taken_at=0, applied_revision=applied)


def look(before: Roster | None, now: float, *answers: str, ready: str = "ab", there: str = "ab") -> Roster:
    routers = [(name, f"http://{name}", name in ready) for name in there]
    return looked(before, routers, {name: snapshot(int(now)) for name in answers}, now=now)


def test_a_report_is_kept_while_others_fail() -> None:
    first = look(None, 1.0, "a", "b")
    second = look(first, 2.0, "a")
    assert [router.snapshot and router.snapshot.applied_revision for router in second] == [2, 1]


def test_a_router_that_does_not_exist_is_dropped() -> None:
    assert [router.name for router in look(look(None, 1.0, "a", "b"), 2.0, there="b")] == ["b"]


@pytest.mark.parametrize(
    ("roster", "now", "names"),
    [
        pytest.param(look(None, 0.0, "a", "b"), 999.0, "ab", id="ready ones always"),
        pytest.param(
            look(None, 0.0, "a", "b", ready="a"), GONE_SECONDS - 1, "ab", id="not ready: for a while"
        ),
        pytest.param(
            look(None, 0.0, "a", "b", ready="a"), GONE_SECONDS, "a", id="not ready and silent: gone"
        ),
        pytest.param(
            look(look(None, 0.0, "a", there="a"), 1.0, ready="a"), 2.0, "a", id="new and not ready: starting"
        ),
        pytest.param(look(look(None, 0.0, "a", there="a"), 1.0), 2.0, "ab", id="new and ready, silent yet"),
        pytest.param(look(None, 0.0, "a", ready="a"), 1.0, "ab", id="silent since this operator started"),
    ],
)
def test_who_may_have_caps_in_force(roster: Roster, now: float, names: str) -> None:
    assert "".join(router.name for router in alive(roster, now=now)) == names
