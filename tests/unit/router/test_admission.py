"""Who enters next: turns between classes, caps, and classes that no cap is left for."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from rolloutpool_router.core.admission import Candidate, Entry, EntryReason, decide, headroom
from rolloutpool_router.core.placement import EngineLoad


def candidate(name: str, debt: float = 0.0, footprint: float = 10) -> Candidate:
    return Candidate(name, debt, footprint, dict)


def engine(
    name: str, caps: Mapping[str, int], active: Mapping[str, int] | None = None, occupied: float = 0
) -> EngineLoad:
    return EngineLoad(name, 110, 100, caps, active or {}, occupied)


def next_entry(
    candidates: list[Candidate], engines: list[EngineLoad], *, class_blind: bool = False
) -> tuple[str, str, EntryReason] | None:
    entry = decide(candidates, engines, class_blind=class_blind, rng=Random(1))
    return (entry.class_name, entry.engine, entry.reason) if isinstance(entry, Entry) else None


@pytest.mark.parametrize(
    ("candidates", "engines", "expected"),
    [
        pytest.param([], [engine("e", {"a": 1})], None, id="nobody-waits"),
        pytest.param([candidate("a")], [], None, id="no-engine"),
        pytest.param([candidate("a")], [engine("e", {"a": 1})], ("a", "e"), id="room"),
        pytest.param([candidate("a")], [engine("e", {"a": 1}, {"a": 1})], None, id="full"),
        pytest.param(
            [candidate("a")], [engine("e", {"a": 1}, {"a": 3})], None, id="cap-fell-below-residents"
        ),
        pytest.param(
            [candidate("a")],
            [engine("e", {"a": 1}, {"a": 1}), engine("f", {"a": 1})],
            ("a", "f"),
            id="other-engine",
        ),
        pytest.param(
            [candidate("a", 1), candidate("b", 2)],
            [engine("e", {"a": 1, "b": 1})],
            ("b", "e"),
            id="behind-first",
        ),
        pytest.param(
            [candidate("a", 1), candidate("b", 2)],
            [engine("e", {"a": 1, "b": 1}, {"b": 1})],
            ("a", "e"),
            id="behind-but-full-lets-others-in",
        ),
        pytest.param(
            [candidate("new")], [engine("e", {"a": 1}, {"a": 1}, 95)], None, id="class-unknown-to-caps"
        ),
    ],
)
def test_who_enters(
    candidates: list[Candidate], engines: list[EngineLoad], expected: tuple[str, str] | None
) -> None:
    entry = next_entry(candidates, engines)

    assert (entry[:2] if entry else None) == expected


def test_one_cap_for_all_classes_together() -> None:
    full = engine("e", {"a": 2, "b": 2}, {"a": 1, "b": 1})

    assert headroom(full, "a", class_blind=False) == 1
    assert headroom(full, "a", class_blind=True) == 0
    assert next_entry([candidate("a")], [full], class_blind=True) is None


class TestAClassWithoutAnyCap:
    def test_it_enters_where_its_session_fits(self) -> None:
        entry = next_entry([candidate("b", 5)], [engine("e", {"a": 5, "b": 0}, {"a": 5}, occupied=50)])

        assert entry == ("b", "e", EntryReason.TURN)

    def test_it_enters_an_empty_engine_whatever_its_size(self) -> None:
        entry = next_entry([candidate("b", 5, footprint=5000)], [engine("e", {"a": 5, "b": 0})])

        assert entry == ("b", "e", EntryReason.TURN)

    def test_those_ahead_of_it_leave_the_emptiest_engine_alone(self) -> None:
        crowded = engine("e", {"a": 9, "b": 0}, {"a": 8}, occupied=95)
        emptier = engine("f", {"a": 9, "b": 0}, {"a": 7}, occupied=93)

        assert next_entry([candidate("b", 5), candidate("a", -5)], [crowded, emptier]) == (
            "a",
            "e",
            EntryReason.ROOM,
        )
        assert next_entry([candidate("b", 5), candidate("a", -5)], [emptier]) is None

    def test_it_runs_one_session_at_a_time_on_an_engine(self) -> None:
        only = engine("e", {"a": 9, "b": 0}, {"b": 1}, occupied=10)

        assert next_entry([candidate("b", 5)], [only]) is None
        assert next_entry([candidate("b", 5), candidate("a", -5)], [only]) == ("a", "e", EntryReason.ROOM)

    def test_those_further_behind_go_first(self) -> None:
        only = engine("e", {"a": 9, "b": 0}, {"a": 8}, occupied=95)

        assert next_entry([candidate("b", 5), candidate("a", 6)], [only]) == ("a", "e", EntryReason.ROOM)
