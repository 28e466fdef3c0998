"""Policies and switches: each has an effect that can be seen, and with all off MISA-T is the paper's."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutpool_api.serving import AdmissionPolicy
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.admission import EntryReason
from rolloutpool_router.core.control import EngineCapacity, compute_admission, merge_snapshots
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.policy import rules_of
from rolloutpool_router.core.requests import Entered, Queued
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.core.snapshot import take_snapshot
from rolloutpool_router.testing import pool_object
from rolloutpool_testkit.admission import (
    CAPS,
    CLASSES,
    ONE,
    Sample,
    Turn,
    World,
    apply,
    arrive,
    controller_of,
    enter,
    fill,
    names,
)

PAPER: dict[str, Any] = {
    "timeAveragedFootprint": False,
    "censoring": False,
    "chanceConstraint": False,
    "feasibleFloors": False,
    "lending": False,
    "mixtureDebt": False,
    "parking": False,
    "groups": False,
}
"""Every extension off."""


def spec_of(enforcement: Any = "Hard", **admission: Any) -> RolloutPoolSpec:
    pool = pool_object(ONE, admission=admission)
    pool["spec"]["mixture"] = {"enforcement": enforcement}
    return parse_pool(pool).spec


class TestRules:
    """What a policy with its switches means."""

    def test_without_its_extensions_misa_t_is_the_papers(self) -> None:
        """It differs from MISA in the caps alone, whatever the spec says of debts and enforcement."""
        plain = rules_of(spec_of(**PAPER), AdmissionPolicy.MISA_T)

        assert plain == rules_of(spec_of(), AdmissionPolicy.MISA)
        assert not any((plain.pot, plain.groups, plain.parking, plain.feasible_floors))
        assert not any((plain.method.censoring, plain.method.time_averaged))
        assert (plain.admission.lending, plain.admission.by_debt, plain.admission.most_ahead) == (
            False,
            False,
            None,
        )

    @pytest.mark.parametrize("policy", [p for p in AdmissionPolicy if p is not AdmissionPolicy.MISA_T])
    def test_the_other_policies_ignore_the_switches(self, policy: AdmissionPolicy) -> None:
        assert rules_of(spec_of(), policy) == rules_of(spec_of(**PAPER), policy)

    @pytest.mark.parametrize("switch", PAPER)
    def test_every_switch_changes_the_rules(self, switch: str) -> None:
        assert rules_of(spec_of(), AdmissionPolicy.MISA_T) != rules_of(
            spec_of(**{switch: False}), AdmissionPolicy.MISA_T
        )

    @pytest.mark.parametrize(
        ("changes", "most_ahead"),
        [
            pytest.param({}, True, id="hard"),
            pytest.param({"enforcement": "Soft"}, False, id="soft"),
            pytest.param({"mixtureDebt": False}, False, id="no-debts"),
        ],
    )
    def test_enforcement(self, changes: dict[str, Any], most_ahead: bool) -> None:
        rules = rules_of(spec_of(**changes), AdmissionPolicy.MISA_T).admission
        assert (rules.most_ahead is not None) == most_ahead

    @pytest.mark.parametrize(
        ("admission", "protected"),
        [
            pytest.param({}, 1000, id="the-forecast-keeps-the-margin"),
            pytest.param({"chanceConstraint": False}, 950, id="a-fixed-reserve"),
        ],
    )
    def test_what_may_be_filled(self, admission: dict[str, Any], protected: int) -> None:
        rules = rules_of(spec_of(**admission), AdmissionPolicy.MISA_T)
        assert rules.protected_blocks(1000) == protected
        assert rules.protected_blocks(1000, 0.5) == protected // 2


class TestPoliciesOfThePaper:
    @pytest.mark.parametrize(
        ("policy", "caps", "entered"),
        [
            pytest.param("None", 1_000_000, 300, id="none-lets-everybody-in"),
            pytest.param("Static", 3, 3, id="static-never-lends"),
            pytest.param("MISA", 3, 3, id="misa-neither"),
        ],
    )
    def test_one_class_that_comes_alone(self, policy: str, caps: int, entered: int) -> None:
        controller = controller_of(
            engines=ONE, caps=dict.fromkeys(CLASSES, caps), policy=policy, admission={"policy": policy}
        )
        assert fill(controller, most=300, prompt_tokens=1600) == entered

    def test_static_caps_leave_each_class_its_own(self) -> None:
        controller = controller_of(engines=ONE, policy="Static", admission={"policy": "Static"})
        assert [fill(controller, name) for name in CLASSES] == [2, 2, 2]

    def test_the_class_blind_cap_counts_all_classes(self) -> None:
        controller = controller_of(engines=ONE, policy="Session", admission={"policy": "Session"})
        assert [fill(controller, name) for name in CLASSES] == [2, 0, 0]

    def test_the_class_blind_cap_goes_by_arrival(self) -> None:
        controller = controller_of(engines=ONE, policy="Session", admission={"policy": "Session"})
        fill(controller)
        for at, (session, name) in enumerate([("b", "rlhf"), ("a", "rlvr"), ("c", "agentic")]):
            arrive(controller, session, name, now=float(at))
        order = []
        for number in range(2):
            controller.end_turn(f"rlvr-{number}", now=9, ok=True)
            order += names(controller.admit_waiting(9))
        assert order == ["b", "a"]

    def test_a_cap_of_the_status_goes_with_the_policy_that_it_came_from(self) -> None:
        """The spec says another policy already, and the operator has not answered yet."""
        controller = controller_of(engines=ONE, policy="Session", admission={"policy": "MISA-T"})
        assert [fill(controller, name) for name in CLASSES] == [2, 0, 0]


def switched(**admission: Any) -> AdmissionController:
    """One engine of 1,000 blocks, on which classes have caps of 2 and one extension may be off."""
    return controller_of(engines=ONE, admission=admission)


class TestLending:
    @pytest.mark.parametrize(("lending", "beyond"), [(True, True), (False, False)])
    def test_beyond_the_cap_while_no_other_class_waits(self, lending: bool, beyond: bool) -> None:
        assert (fill(switched(lending=lending), prompt_tokens=160) > 2) == beyond

    def test_it_is_given_back_as_sessions_end(self) -> None:
        controller = switched(mixtureDebt=False)
        lent = fill(controller, prompt_tokens=1600)
        assert lent > 2
        arrive(controller, "other", "rlhf", now=1.0, prompt_tokens=14_000)
        arrive(controller, "more", "rlvr", now=2.0, prompt_tokens=1600)
        entered: list[str] = []
        for number in range(lent):
            controller.end_turn(f"rlvr-{number}", now=3.0 + number, ok=True)
            entered += names(controller.admit_waiting(3.0 + number))
        assert entered[0] == "other", "nobody of rlvr entered beyond its cap meanwhile"

    @pytest.mark.parametrize(
        ("admission", "capacity"),
        [
            pytest.param({"chanceConstraint": False}, 1000, id="without-a-pot"),
            pytest.param({}, 0, id="size-of-the-engine-unknown"),
        ],
    )
    def test_what_is_lent_is_never_more_than_there_is(self, admission: dict[str, Any], capacity: int) -> None:
        pool = pool_object(ONE, caps=CAPS if capacity else None, blocks=capacity, admission=admission)
        assert fill(controller_of(pool), prompt_tokens=1600) <= 20


class TestChanceConstraint:
    def test_on_sessions_enter_while_the_pot_has_room(self) -> None:
        controller = controller_of(engines=ONE, caps=dict.fromkeys(CLASSES, 100))
        assert 4 <= fill(controller, prompt_tokens=1600) <= 9

    def test_off_caps_alone_decide(self) -> None:
        controller = controller_of(
            engines=ONE,
            caps=dict.fromkeys(CLASSES, 30),
            admission={"chanceConstraint": False, "lending": False},
        )
        assert fill(controller, prompt_tokens=1600) == 30

    def test_off_a_class_without_a_cap_waits_for_its_turn(self) -> None:
        """What residents hold is reckoned by their footprints then."""
        controller = controller_of(
            engines=ONE,
            caps={"rlvr": 1000, "rlhf": 0, "agentic": 0},
            admission={"chanceConstraint": False, "lending": False},
        )
        controller.tick(0)
        footprint = controller.ledger.classes["rlvr"].cost.footprint_blocks
        full = fill(controller, most=int(1000 / footprint))
        assert isinstance(arrive(controller, "turn", "rlhf"), Queued)
        entered = []
        for number in range(full):
            controller.end_turn(f"rlvr-{number}", now=1, ok=True)
            entered += names(controller.admit_waiting(1))
        assert entered == ["turn"]

    def test_certainty_costs_room(self) -> None:
        usual, bold, careful = (
            fill(
                controller_of(
                    engines=ONE,
                    caps=dict.fromkeys(CLASSES, 5000),
                    blocks=10_000,
                    admission={"safety": safety},
                ),
                prompt_tokens=160,
            )
            for safety in (0.95, 0.5, 0.999)
        )
        assert bold > usual > careful


def test_debts_or_first_come_first_served() -> None:
    order = {}
    for debts in (True, False):
        controller = controller_of(
            engines=ONE, caps=dict.fromkeys(CLASSES, 9), blocks=1, admission={"mixtureDebt": debts}
        )
        enter(controller, "first", "rlvr")
        for at, (session, name) in enumerate([("b", "rlvr"), ("c", "rlhf"), ("d", "agentic")]):
            arrive(controller, session, name, now=float(at))
        controller.end_turn("first", now=5, ok=True)
        order[debts] = names(controller.admit_waiting(5))

    assert order == {True: ["c"], False: ["b"]}


def test_hard_holds_a_class_that_is_ahead_and_soft_does_not() -> None:
    found = {}
    for enforcement in ("Hard", "Soft"):
        pool = pool_object(ONE, caps=dict.fromkeys(CLASSES, 500), blocks=10**6)
        pool["spec"]["mixture"] = {"enforcement": enforcement}
        controller = controller_of(pool)
        enter(controller, "present", "agentic")
        found[enforcement] = fill(controller, most=200, prompt_tokens=16)

    assert found["Soft"] == 200
    assert 5 < found["Hard"] < 100


def test_a_session_that_never_ends_holds_the_other_classes_up_for_a_while_only() -> None:
    pool = pool_object(ONE, caps=dict.fromkeys(CLASSES, 500), blocks=10**6)
    pool["spec"]["mixture"] = {"enforcement": "Hard"}
    controller = controller_of(pool)
    enter(controller, "endless", "agentic")
    held = fill(controller, most=200, prompt_tokens=16)
    for now in range(140):
        controller.tick(float(now))

    assert held < 100
    assert fill(controller, most=200, now=140.0, prompt_tokens=16) == 200


def test_samples_of_a_prompt_enter_together_on_one_engine() -> None:
    """Two prompts' samples wait, interleaved; room comes for four at a time."""
    found = {}
    for groups in (True, False):
        controller = controller_of(
            caps=dict.fromkeys(CLASSES, 4), admission={"groups": groups, "lending": False}
        )
        fill(controller)
        for number in range(8):
            arrive(controller, f"s{number}", now=1.0, group=b"even" if number % 2 == 0 else b"odd")
        for number in range(8):
            controller.end_turn(f"rlvr-{number}", now=2, ok=True)
        found[groups] = controller.admit_waiting(2)

    assert names(found[True]) == ["s0", "s2", "s4", "s6", "s1", "s3", "s5", "s7"]
    assert len({entry.engine for entry in found[True][:4]}) == 1
    assert len({entry.engine for entry in found[True][4:]}) == 1
    assert [entry.reason for entry in found[True][1:4]] == [EntryReason.GROUP] * 3
    assert names(found[False]) == [f"s{number}" for number in range(8)]


def test_an_engine_that_evicts_takes_less_unless_pressure_is_off() -> None:
    for enabled in (True, False):
        controller = switched(pressure={"enabled": enabled})
        enter(controller, "s", "agentic", prompt_tokens=9000)
        for now in (1.0, 2.0):
            controller.end_turn("s", now=now, ok=True, usage=Usage(9000, 100, cached_tokens=1000))
            arrive(controller, "s", "agentic", now=now, prompt_tokens=9000)
        controller.tick(20)
        assert controller.occupancy.protected_blocks("e0") == (900 if enabled else 1000)


@pytest.mark.parametrize(
    ("prompt", "found", "protected"),
    [
        pytest.param(7700, 6000, 1000, id="reasoning-is-dropped-from-the-history"),
        pytest.param(7700, 7700, 1000, id="all-is-found"),
        pytest.param(4000, 4000, 1000, id="the-client-cuts-the-history"),
        pytest.param(7700, 3000, 900, id="half-of-the-prompt-is-gone"),
    ],
)
def test_only_what_every_chat_template_keeps_is_expected_in_the_cache(
    prompt: int, found: int, protected: int
) -> None:
    """An answer of 3,000 tokens, most of them reasoning that the next prompt leaves out."""
    controller = switched()
    enter(controller, "s", "agentic", prompt_tokens=6000)
    controller.end_turn("s", now=1, ok=True, usage=Usage(6000, 3000, cached_tokens=0))
    arrive(controller, "s", "agentic", now=2.0, prompt_tokens=prompt)
    controller.end_turn("s", now=3, ok=True, usage=Usage(prompt, 300, cached_tokens=found))
    controller.tick(20)

    assert controller.occupancy.protected_blocks("e0") == protected


def test_time_averaged_footprints_count_private_blocks_alone() -> None:
    """Off: each session counts with its peak, and a prompt that all share counts for each of them."""
    found = {}
    for averaged in (True, False):
        controller = controller_of(
            engines=ONE,
            caps=dict.fromkeys(CLASSES, 100),
            blocks=10_000,
            admission={"timeAveragedFootprint": averaged, "priorWeight": 1e-3},
        )
        prefix = tuple(range(24))
        for number in range(8):
            enter(controller, f"s{number}", "agentic", prefix=prefix, prompt_tokens=1600)
        held = controller.ledger.engine("e0").held
        for number in range(8):
            controller.end_turn(f"s{number}", now=10, ok=True, usage=Usage(1600, 160))
            controller.finish(f"s{number}", 10)
        controller.tick(20)
        found[averaged] = (held, controller.ledger.classes["agentic"].cost.footprint_blocks)

    assert found[False] == pytest.approx((800, 110), rel=0.02)
    held, footprint = found[True]
    assert held == pytest.approx(100 + 7 * 2, rel=0.05)
    assert footprint < 30


def test_without_censoring_running_sessions_are_not_seen() -> None:
    found = {}
    for censoring in (True, False):
        controller = controller_of(
            engines=ONE, caps=dict.fromkeys(CLASSES, 100), blocks=10**6, admission={"censoring": censoring}
        )
        for number in range(60):
            enter(controller, f"long{number}", "agentic")
        for second in range(10, 600, 10):
            controller.tick(float(second))
        found[censoring] = controller.ledger.classes["agentic"].cost.residency_seconds

    prior = controller.view.costs["agentic"].residency_seconds if controller.view else 0.0
    assert found[False] == pytest.approx(prior)
    assert found[True] > 2 * prior


def status_of(controller: AdmissionController, pool: dict[str, Any], **capacity: int) -> dict[str, Any]:
    """Caps as the operator would compute them now."""
    snapshot = take_snapshot(controller, router="r", now=0.0, taken_at=0.0, ignored_statuses=0)
    spec = parse_pool(pool).spec
    engines = [EngineCapacity(name=n, capacity_blocks=b, ready=True) for n, b in capacity.items()]
    found = compute_admission(
        spec, merged=merge_snapshots(CLASSES, [snapshot]), engines=engines, revision=2, now=0.0
    )
    return {item.name: item.cap for item in found.classes}


def test_floors_that_do_not_fit_are_given_in_turns_or_to_all() -> None:
    found = {}
    for feasible in (True, False):
        pool = pool_object(ONE, caps=CAPS, admission={"feasibleFloors": feasible})
        found[feasible] = status_of(controller_of(pool), pool, e0=100)

    assert set(found[False].values()) == {1}
    assert 0 in found[True].values()
    assert sum(found[True].values()) >= 1


def test_a_class_that_waits_too_long_goes_first() -> None:
    waits = {}
    for seconds in (30, 100):
        admission = {"starvationSeconds": seconds, "mixtureDebt": False, "lending": False}
        world = World(controller_of(engines=ONE, caps=dict.fromkeys(CLASSES, 1), admission=admission))
        for name in ("holds-the-cap", "waits"):
            world.submit(Sample(name, "rlhf", (Turn(1000),)))
        world.run(200)
        _, (when, entry) = world.entered
        assert entry.reason is EntryReason.OVERDUE
        waits[seconds] = when

    assert waits == {30: 30, 100: 100}


def test_a_heavier_prior_and_a_longer_window_make_estimates_slower() -> None:
    found = {}
    settings = {"usual": {}, "heavy": {"priorWeight": 500}, "short": {"windowSeconds": 10}}
    for name, admission in settings.items():
        controller = switched(**admission)
        for start, seconds in ((0, 4), (200, 40)):
            for number in range(3):
                enter(controller, f"{start}-{number}", "agentic", now=float(start))
                controller.end_turn(f"{start}-{number}", now=start + seconds, ok=True)
                controller.finish(f"{start}-{number}", start + seconds)
            controller.tick(start + seconds)
        found[name] = controller.ledger.classes["agentic"].cost.residency_seconds

    prior = controller.view.costs["agentic"].residency_seconds if controller.view else 0.0
    assert abs(found["heavy"] - prior) < abs(found["usual"] - prior)
    assert found["short"] > found["usual"]


def test_another_policy_takes_over_with_the_status_that_carries_it() -> None:
    controller = switched(lending=False)
    assert fill(controller) == 2
    apply(controller, pool_object(ONE, caps=dict.fromkeys(CLASSES, 10**6), policy="None", revision=2))
    assert isinstance(arrive(controller, "more"), Entered)
