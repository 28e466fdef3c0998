"""Who enters next: debt, caps, lending, turns, what is kept free, and what never waits for ever."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.admission import Candidate, Entry, EntryReason, Rules, decide, headroom
from rolloutpool_router.core.placement import EngineLoad

PLAIN = Rules()
LENDING = Rules(lending=True)
HARD = Rules(most_ahead=10)


@dataclass(frozen=True)
class Who:
    """The next of a class, by the definition of `admission.Reach`: engine by engine."""

    class_name: str
    debt: float = 0.0
    arrived_at: float = 0.0
    fitting: Collection[str] | None = None
    sparing: Collection[str] | None = None
    group_fits: Collection[str] | None = None
    together_on: str | None = None
    parked: bool = False
    overdue: bool = False
    capless: bool = False
    overlap: Mapping[str, int] | None = None

    def fits(self, engine: EngineLoad) -> bool:
        return self.fitting is None or engine.name in self.fitting

    def spare(self, engine: EngineLoad) -> bool:
        return self.sparing is None or engine.name in self.sparing


@dataclass
class PlainCandidate(Candidate):
    """By the definition of `admission.Candidate`, engine by engine."""

    who: Who
    engines: list[EngineLoad]
    class_blind: bool

    def __post_init__(self) -> None:
        who = self.who
        self.class_name, self.debt, self.arrived_at = who.class_name, who.debt, who.arrived_at
        self.together_on, self.parked = who.together_on, who.parked
        self.overdue, self.capless = who.overdue, who.capless

    def has_room(self, engine: EngineLoad) -> bool:
        return headroom(engine, self.class_name, class_blind=self.class_blind) > 0

    def open_to(self, *, beyond: bool) -> list[EngineLoad]:
        return [
            engine
            for engine in self.engines
            if self.who.fits(engine) and (self.has_room(engine) or (beyond and self.who.spare(engine)))
        ]

    def emptiest(self, *, beyond: bool) -> str | None:
        wanted = [engine for engine in self.engines if beyond or self.has_room(engine)]
        return min(wanted, key=lambda engine: engine.load).name if wanted else None

    def fit_together(self, engines: Sequence[EngineLoad]) -> list[EngineLoad]:
        return [engine for engine in engines if engine.name in (self.who.group_fits or ())]

    def overlap(self) -> Mapping[str, int]:
        return self.who.overlap or {}


def candidate(
    name: str,
    debt: float = 0.0,
    *,
    arrived: float = 0.0,
    fits: Collection[str] | None = None,
    spare: Collection[str] | None = None,
    group_fits: Collection[str] | None = None,
    together_on: str | None = None,
    parked: bool = False,
    overdue: bool = False,
    capless: bool = False,
    overlap: Mapping[str, int] | None = None,
) -> Who:
    """The next of a class; `fits`, `spare` and `group_fits` are engines, by default all, all and none."""
    return Who(name, debt, arrived, fits, spare, group_fits, together_on, parked, overdue, capless, overlap)


def decided(candidates: list[Who], engines: list[EngineLoad], rules: Rules, seed: int) -> Entry | None:
    return decide(
        [PlainCandidate(one, engines, rules.class_blind) for one in candidates],
        rules=rules,
        rng=Random(seed),
    )


def engine(
    name: str, caps: Mapping[str, int], active: Mapping[str, int] | None = None, occupied: float = 0
) -> EngineLoad:
    return EngineLoad(name, 110, 100, caps, active or {}, occupied)


def next_entry(
    candidates: list[Who], engines: list[EngineLoad], rules: Rules = PLAIN, seed: int = 1
) -> tuple[str, str, str] | None:
    entry = decided(candidates, engines, rules, seed)
    return (entry.class_name, entry.engine, entry.reason.value) if entry is not None else None


A, B = candidate("a"), candidate("b")
BEHIND, AHEAD = candidate("b", -1), candidate("a", -5)
NOWHERE: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("candidates", "engines", "expected"),
    [
        pytest.param([], [engine("e", {"a": 1})], None, id="nobody-waits"),
        pytest.param([A], [], None, id="no-engine"),
        pytest.param([A], [engine("e", {"a": 1})], ("a", "e", "room"), id="room"),
        pytest.param([A], [engine("e", {"a": 1}, {"a": 1})], None, id="at-its-cap"),
        pytest.param([A], [engine("e", {"a": 1}, {"a": 3})], None, id="cap-fell-below-residents"),
        pytest.param(
            [A],
            [engine("e", {"a": 1}, {"a": 1}), engine("f", {"a": 1})],
            ("a", "f", "room"),
            id="room-on-another-engine",
        ),
        pytest.param(
            [candidate("a", fits=NOWHERE)], [engine("e", {"a": 1})], None, id="does-not-fit-the-pot"
        ),
        pytest.param(
            [candidate("a", fits=["f"])],
            [engine("e", {"a": 1}), engine("f", {"a": 1}, occupied=90)],
            ("a", "f", "room"),
            id="where-it-fits-however-full",
        ),
        pytest.param(
            [AHEAD, BEHIND], [engine("e", {"a": 1, "b": 1})], ("b", "e", "room"), id="furthest-behind-first"
        ),
        pytest.param(
            [AHEAD, BEHIND],
            [engine("e", {"a": 1, "b": 1}, {"b": 1})],
            ("a", "e", "room"),
            id="behind-but-at-its-cap-lets-others-in",
        ),
        pytest.param(
            [candidate("new")],
            [engine("e", {"a": 1, "new": 0}, {"a": 1, "new": 1})],
            None,
            id="no-cap-and-one-there-already",
        ),
    ],
)
def test_who_enters(
    candidates: list[Who], engines: list[EngineLoad], expected: tuple[str, str, str] | None
) -> None:
    assert next_entry(candidates, engines) == expected


def test_without_debts_the_first_to_come_is_first() -> None:
    early, late = candidate("a", -50, arrived=1), candidate("b", -10, arrived=2)
    both = engine("e", {"a": 1, "b": 1})

    assert next_entry([late, early], [both], Rules(by_debt=False)) == ("a", "e", "room")
    assert next_entry([late, early], [both], Rules(by_debt=True)) == ("b", "e", "room")


def test_one_cap_for_all_classes_together() -> None:
    full = engine("e", {"a": 2, "b": 2}, {"a": 1, "b": 1})

    assert headroom(full, "a", class_blind=False) == 1
    assert headroom(full, "a", class_blind=True) == 0
    assert next_entry([A], [full], Rules(class_blind=True)) is None
    assert next_entry([A], [full]) == ("a", "e", "room")


class TestLending:
    FULL = engine("e", {"a": 1, "b": 1}, {"a": 1})

    @pytest.mark.parametrize(
        ("candidates", "rules", "expected"),
        [
            pytest.param([A], LENDING, ("a", "e", "lent"), id="nobody-else-waits"),
            pytest.param([A], Rules(), None, id="switched-off"),
            pytest.param([A, candidate("b", fits=NOWHERE)], LENDING, None, id="another-class-waits"),
            pytest.param([candidate("a", fits=NOWHERE)], LENDING, None, id="never-beyond-the-pot"),
            pytest.param([candidate("a", spare=NOWHERE)], LENDING, None, id="nor-where-nothing-is-left-over"),
        ],
    )
    def test_a_class_at_its_cap(
        self, candidates: list[Who], rules: Rules, expected: tuple[str, str, str] | None
    ) -> None:
        assert next_entry(candidates, [self.FULL], rules) == expected

    def test_a_class_with_room_borrows_nothing(self) -> None:
        assert next_entry([B], [self.FULL], LENDING) == ("b", "e", "room")


class TestDebt:
    """A class behind its share may take more than its cap, which is only what its demand earns."""

    FULL = engine("e", {"a": 1, "b": 1}, {"a": 1})

    @pytest.mark.parametrize(
        ("who", "rules", "expected"),
        [
            pytest.param(candidate("a", 0.5), PLAIN, ("a", "e", "debt"), id="behind"),
            pytest.param(candidate("a", 0.0), PLAIN, None, id="even"),
            pytest.param(candidate("a", 0.5), Rules(by_debt=False), None, id="switched-off"),
            pytest.param(candidate("a", 0.5, fits=NOWHERE), PLAIN, None, id="never-beyond-the-pot"),
            pytest.param(
                candidate("a", 0.5, spare=NOWHERE), PLAIN, None, id="nor-where-nothing-is-left-over"
            ),
        ],
    )
    def test_at_its_cap(self, who: Who, rules: Rules, expected: tuple[str, str, str] | None) -> None:
        assert next_entry([who, candidate("b", -9, fits=NOWHERE)], [self.FULL], rules) == expected

    def test_room_is_kept_for_it(self) -> None:
        full = engine("e", {"a": 1, "b": 9}, {"a": 1})

        assert next_entry([candidate("a", 0.5, fits=NOWHERE), candidate("b", -1)], [full]) is None


class TestEnforcement:
    """Hard holds a class that is ahead, even where nobody else can use the room; Soft does not."""

    ROOM = [engine("e", {"a": 5, "b": 5})]

    @pytest.mark.parametrize(
        ("who", "enters"),
        [
            pytest.param(candidate("a", -10), True, id="as-far-ahead-as-may-be"),
            pytest.param(candidate("a", -10.5), False, id="further-ahead"),
            pytest.param(candidate("a", -99, parked=True), True, id="parked-ones-were-counted-already"),
            pytest.param(candidate("a", -99, together_on="e"), True, id="the-rest-of-a-group"),
            pytest.param(candidate("a", -99, overdue=True), True, id="nobody-is-held-for-ever"),
        ],
    )
    def test_hard(self, who: Who, enters: bool) -> None:
        assert (next_entry([who], self.ROOM, HARD) is not None) == enters

    def test_soft(self) -> None:
        assert next_entry([candidate("a", -1e6)], self.ROOM, Rules(most_ahead=None)) == ("a", "e", "room")

    def test_the_others_go_on_while_one_is_held(self) -> None:
        assert next_entry([candidate("a", -20), candidate("b", -9)], self.ROOM, HARD) == ("b", "e", "room")


class TestKeptFree:
    """Where the class that goes first does not fit, what it waits for is not given to others."""

    def test_others_leave_the_emptiest_engine_alone(self) -> None:
        caps = {"a": 9, "b": 9}
        crowded, emptier = engine("e", caps, {"a": 8}, 95), engine("f", caps, {"a": 7}, 93)
        first = candidate("b", -1, fits=NOWHERE)

        assert next_entry([first, AHEAD], [crowded, emptier]) == ("a", "e", "room")
        assert next_entry([first, AHEAD], [emptier]) is None

    def test_a_class_that_waits_for_its_cap_keeps_nothing(self) -> None:
        only = engine("e", {"a": 9, "b": 1}, {"b": 1}, 10)

        assert next_entry([candidate("b", -1, fits=NOWHERE), AHEAD], [only]) == ("a", "e", "room")

    def test_it_keeps_an_engine_where_its_cap_has_room(self) -> None:
        empty_but_capped = engine("e", {"a": 9, "b": 0}, {}, 0)
        full = engine("f", {"a": 9, "b": 1}, {"a": 8}, 95)
        first = candidate("b", -1, fits=NOWHERE)

        assert next_entry([first, candidate("a", -5, fits=["f"])], [empty_but_capped, full]) is None
        assert next_entry([first, AHEAD], [empty_but_capped, full]) == ("a", "e", "room")

    def test_only_the_first_class_keeps_one(self) -> None:
        caps = {"a": 9, "b": 9, "c": 9}
        engines = [engine("e", caps, {"a": 1}, 95), engine("f", caps, {"a": 1}, 90)]
        waiting = [candidate("b", 9, fits=NOWHERE), candidate("c", 5, fits=NOWHERE), AHEAD]

        assert next_entry(waiting, engines) == ("a", "e", "room")


class TestTurns:
    """A class with no cap anywhere."""

    CAPS = {"a": 9, "b": 0}
    SHUT_OUT = candidate("b", -1, capless=True)

    def test_it_enters_where_its_session_fits(self) -> None:
        assert next_entry([self.SHUT_OUT], [engine("e", self.CAPS, {"a": 5}, 50)]) == ("b", "e", "turn")

    def test_where_it_does_not_fit_room_is_kept_for_it(self) -> None:
        crowded, emptier = engine("e", self.CAPS, {"a": 8}, 95), engine("f", self.CAPS, {"a": 7}, 93)
        shut_out = candidate("b", -1, fits=NOWHERE, capless=True)

        assert next_entry([shut_out, AHEAD], [crowded, emptier]) == ("a", "e", "room")
        assert next_entry([shut_out, AHEAD], [emptier]) is None

    def test_it_runs_one_session_at_a_time_on_an_engine(self) -> None:
        busy = engine("e", self.CAPS, {"b": 1}, occupied=10)

        assert next_entry([self.SHUT_OUT], [busy]) is None
        assert next_entry([self.SHUT_OUT], [busy, engine("f", self.CAPS)]) == ("b", "f", "turn")

    def test_a_cap_on_any_engine_is_no_need_for_turns(self) -> None:
        elsewhere = engine("f", {"a": 9, "b": 1}, {"b": 1})

        assert next_entry([BEHIND], [engine("e", self.CAPS), elsewhere]) is None

    def test_nor_is_a_cap_on_the_engine_that_is_kept_free_for_another(self) -> None:
        kept, other = engine("e", {"a": 9, "b": 1, "c": 9}), engine("f", self.CAPS, {"a": 5}, 50)
        first = candidate("c", -9, overdue=True, fits=NOWHERE)

        assert next_entry([first, BEHIND], [kept, other]) is None

    def test_those_further_behind_go_first(self) -> None:
        only = engine("e", self.CAPS, {"a": 8}, occupied=95)

        assert next_entry([candidate("b", -1), candidate("a", 0)], [only]) == ("a", "e", "room")


class TestOverdue:
    """A class that had no entry for too long."""

    LATE = candidate("b", -99, overdue=True)
    CAPS = {"a": 9, "b": 1}

    def test_it_goes_before_those_further_behind_and_beyond_its_cap(self) -> None:
        only = engine("e", self.CAPS, {"b": 1})

        assert next_entry([candidate("a", 99), self.LATE], [only]) == ("b", "e", "overdue")

    def test_it_does_not_go_beyond_the_pot_but_keeps_room_free(self) -> None:
        crowded, emptier = engine("e", self.CAPS, {"b": 1}, 95), engine("f", self.CAPS, {"b": 1}, 90)
        late = candidate("b", -99, overdue=True, fits=NOWHERE)

        assert next_entry([candidate("a", 99), late], [crowded, emptier]) == ("a", "e", "room")
        assert next_entry([candidate("a", 99), late], [emptier]) is None

    def test_of_several_the_one_further_behind_goes_first(self) -> None:
        also = candidate("c", 3, overdue=True)

        assert next_entry([self.LATE, also], [engine("e", {"b": 1, "c": 1})]) == ("c", "e", "room")


class TestGroups:
    """Samples of one prompt."""

    ROOM = [engine("e", {"a": 9, "b": 9}, occupied=5), engine("f", {"a": 9, "b": 9})]

    def test_the_first_goes_where_all_of_them_fit(self) -> None:
        first = candidate("a", group_fits=["e"], overlap={"f": 9})

        assert next_entry([first], self.ROOM) == ("a", "e", "room")

    def test_where_all_fit_nowhere_it_goes_like_a_single_one(self) -> None:
        assert next_entry([candidate("a", group_fits=NOWHERE, overlap={"f": 9})], self.ROOM) == (
            "a",
            "f",
            "room",
        )

    def test_the_others_follow_it_before_all_classes(self) -> None:
        follower = candidate("a", -5, together_on="e", overlap={"f": 9})

        assert next_entry([candidate("b", 99), follower], self.ROOM) == ("a", "e", "group")

    def test_but_not_before_a_class_that_is_overdue(self) -> None:
        follower = candidate("a", -5, together_on="e")

        entry = next_entry([candidate("b", -99, overdue=True), follower], self.ROOM)
        assert entry is not None
        assert entry[0] == "b"

    def test_they_go_elsewhere_once_there_is_no_more_room(self) -> None:
        assert next_entry([candidate("a", together_on="e", fits=["f"])], self.ROOM) == ("a", "f", "room")


def test_among_engines_with_room_the_longest_prefix_wins_and_ties_fall_at_random() -> None:
    engines = [engine(name, {"a": 9}) for name in "efg"]

    assert next_entry([candidate("a", overlap={"e": 1, "g": 2})], engines) == ("a", "g", "room")
    found = {next_entry([A], engines, seed=seed) for seed in range(30)}
    assert found == {("a", name, "room") for name in "efg"}


NAMES = ("a", "b", "c")
loads = st.lists(
    st.builds(
        EngineLoad,
        name=st.just(""),
        capacity_blocks=st.just(110),
        protected_blocks=st.just(100),
        caps=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3)),
        active=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4)),
        occupied_blocks=st.integers(0, 100).map(float),
    ),
    max_size=3,
).map(lambda many: [one._replace(name=f"e{at}") for at, one in enumerate(many)])
ENGINE_NAMES = ("e0", "e1", "e2")
candidate_lists = st.lists(
    st.builds(
        candidate,
        name=st.sampled_from(NAMES),
        debt=st.floats(-50, 50),
        arrived=st.floats(0, 100),
        fits=st.none() | st.sets(st.sampled_from(ENGINE_NAMES)),
        spare=st.none() | st.sets(st.sampled_from(ENGINE_NAMES)),
        group_fits=st.none() | st.sets(st.sampled_from(ENGINE_NAMES)),
        together_on=st.none() | st.sampled_from(ENGINE_NAMES),
        parked=st.booleans(),
        overdue=st.booleans(),
    ),
    max_size=3,
    unique_by=lambda one: one.class_name,
)
rule_sets = st.builds(
    Rules,
    class_blind=st.booleans(),
    lending=st.booleans(),
    by_debt=st.booleans(),
    most_ahead=st.none() | st.floats(0, 20),
)


def may_wait_for(who: Who, engines: list[EngineLoad], rules: Rules) -> list[EngineLoad]:
    """Engines that would take a session of this class if they were empty."""
    if who.overdue or not any(load.caps.get(who.class_name) for load in engines):
        return engines
    return [e for e in engines if headroom(e, who.class_name, class_blind=rules.class_blind) > 0]


@given(candidates=candidate_lists, engines=loads, rules=rule_sets, seed=st.integers(0, 3))
def test_nobody_enters_beyond_cap_or_pot_but_by_a_rule_that_is_named(
    candidates: list[Who], engines: list[EngineLoad], rules: Rules, seed: int
) -> None:
    entry = decided(candidates, engines, rules, seed)
    if entry is None:
        return
    who = next(c for c in candidates if c.class_name == entry.class_name)
    where = next(load for load in engines if load.name == entry.engine)
    assert who.fits(where)
    held = [
        c
        for c in candidates
        if rules.most_ahead is not None
        and -c.debt > rules.most_ahead
        and not (c.parked or c.overdue or c.together_on)
    ]
    assert who not in held
    if headroom(where, who.class_name, class_blind=rules.class_blind) > 0:
        assert entry.reason in (EntryReason.ROOM, EntryReason.GROUP)
        return
    assert who.spare(where)
    lent = rules.lending and len(candidates) - len(held) == 1
    turn = all(not load.caps.get(who.class_name) for load in engines)
    behind = rules.by_debt and who.debt > 0
    assert who.overdue or lent or behind or (turn and not where.active.get(who.class_name))
    assert entry.reason is not EntryReason.ROOM


@given(candidates=candidate_lists, engines=loads, rules=rule_sets, seed=st.integers(0, 3))
def test_who_overtakes_leaves_what_the_first_waits_for(
    candidates: list[Who], engines: list[EngineLoad], rules: Rules, seed: int
) -> None:
    entry = decided(candidates, engines, rules, seed)
    if entry is None:
        return
    overdue = [c for c in candidates if c.overdue]
    debts = {c.class_name: c.debt if rules.by_debt else -c.arrived_at for c in overdue}
    if not overdue or entry.class_name in debts:
        return
    first = max(overdue, key=lambda c: (c.together_on is not None, debts[c.class_name]))
    kept = min(may_wait_for(first, engines, rules), key=lambda load: load.load)
    assert entry.engine != kept.name
