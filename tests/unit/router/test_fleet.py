"""How engines stand: ejected by failed work, back by a success, drained, barred, and never all out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from rolloutpool_router.core import health
from rolloutpool_router.core.endpoints import Pod
from rolloutpool_router.core.fleet import Fleet
from rolloutpool_router.core.health import EJECT_FAILURES, FIRST_EJECTION_SECONDS, MAX_EJECTION_SECONDS
from rolloutpool_router.core.pd import Local, Remote
from rolloutpool_router.core.stalls import Attempt, StallBounds
from rolloutpool_router.core.standing import Bar, Standing
from rolloutpool_testkit.fleets import apply, endpoint, fail, fleet_of, generate, reachable, standing, up

UP = Pod(serving=True, terminating=False)
GOING = Pod(serving=True, terminating=True)
STARTING = Pod(serving=False, terminating=False)


class TestEjection:
    def test_failures_in_a_row_take_an_engine_out(self) -> None:
        fleet = fleet_of()
        fail(fleet, times=EJECT_FAILURES - 1)
        assert reachable(fleet) == {"e0", "e1"}
        fail(fleet, times=1)
        assert reachable(fleet) == up(fleet) == {"e1"}
        assert [engine.name for engine in fleet.homes(0.0)] == ["e1"]
        assert standing(fleet) is Standing.EJECTED
        assert "5 generations failed in a row" in fleet.state("e0", 0.0).reason

    def test_a_success_between_makes_the_count_start_anew(self) -> None:
        fleet = fleet_of()
        for _ in range(5):
            fail(fleet, times=EJECT_FAILURES - 1)
            generate(fleet, "e0", 0, ok=True)
        assert reachable(fleet) == {"e0", "e1"}

    def test_what_says_nothing_of_the_engine_does_not_count(self) -> None:
        fleet = fleet_of()
        for _ in range(50):
            generate(fleet, "e0", 0, ok=None)
        fail(fleet, times=EJECT_FAILURES - 1)
        generate(fleet, "e0", 0, ok=None)
        fail(fleet, times=1)
        assert reachable(fleet) == {"e1"}

    def test_answered_probes_and_heads_do_not_bring_it_back(self) -> None:
        fleet = fleet_of()
        fail(fleet)
        for _ in range(10):
            fleet.probed("e0", serves=True)
            fleet.answered("e0")
        assert reachable(fleet) == {"e1"}

    def test_a_success_in_flight_brings_it_back_at_once(self) -> None:
        fleet = fleet_of()
        in_flight = fleet.generation_begins("e0", 0)
        assert in_flight is not None
        fail(fleet)
        fleet.generation_ended(in_flight, 1, ok=True)
        assert up(fleet, 1) == {"e0", "e1"}

    def test_single_trials_bring_it_back(self) -> None:
        fleet = fleet_of()
        fail(fleet)
        due = FIRST_EJECTION_SECONDS
        assert fleet.generation_begins("e0", due - 0.01) is None
        assert reachable(fleet, due) == {"e0", "e1"}
        trial = fleet.generation_begins("e0", due)
        assert trial is not None
        assert trial.trial
        assert up(fleet, due) == reachable(fleet, due) == {"e1"}
        assert fleet.generation_begins("e0", due) is None
        assert "trials under way: 1; the next trial in 4.0 s" in fleet.state("e0", due).reason
        fleet.generation_ended(trial, 1000, ok=True)
        assert up(fleet, 1000) == {"e0", "e1"}
        assert standing(fleet, now=1000) is Standing.UP

    def test_a_trial_that_is_a_long_rollout_does_not_keep_it_out(self) -> None:
        fleet = fleet_of()
        fail(fleet)
        begun, trials = [], []
        for second in range(3600):
            if (trial := fleet.generation_begins("e0", second)) is not None:
                begun.append(second)
                trials.append(trial)
        assert begun == [2, 6, 14, 30]
        assert len(begun) == health.MOST_TRIALS
        assert fleet.state("e0", 3600).reason.endswith("trials under way: 4")
        fleet.generation_ended(trials.pop(0), 3600, ok=None)
        assert fleet.reachable("e0", 3600), "one that says nothing makes room for the next"
        fleet.generation_ended(trials.pop(), 3600, ok=True)
        assert up(fleet, 3600) == {"e0", "e1"}

    def test_trials_that_fail_together_are_followed_by_single_ones(self) -> None:
        fleet = fleet_of()
        fail(fleet)
        trials = [fleet.generation_begins("e0", second) for second in (2, 6, 14)]
        for trial in trials:
            assert trial is not None
            fleet.generation_ended(trial, 20, ok=False)
        assert fleet.generation_begins("e0", 20 + 15.9) is None
        assert fleet.generation_begins("e0", 20 + 16) is not None
        assert fleet.generation_begins("e0", 20 + 16) is None

    def test_each_trial_that_fails_doubles_the_wait(self) -> None:
        fleet = fleet_of()
        fail(fleet)
        now, waits = 0.0, []
        for _ in range(8):
            start = now
            while not fleet.reachable("e0", now):
                now += 0.5
            waits.append(now - start)
            assert generate(fleet, "e0", now, ok=False)
        assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
        assert waits[-1] == MAX_EJECTION_SECONDS
        assert fleet.ejections["e0"] == 1

    def test_a_trial_that_says_nothing_is_followed_by_the_next(self) -> None:
        fleet = fleet_of()
        fail(fleet)
        assert generate(fleet, "e0", 2, ok=None)
        assert generate(fleet, "e0", 2, ok=True)
        assert up(fleet, 2) == {"e0", "e1"}

    def test_what_was_in_flight_and_fails_later_is_no_trial(self) -> None:
        fleet = fleet_of()
        older = [fleet.generation_begins("e0", 0) for _ in range(20)]
        fail(fleet)
        for attempt in older:
            assert attempt is not None
            fleet.generation_ended(attempt, 1.9, ok=False)
        assert fleet.reachable("e0", FIRST_EJECTION_SECONDS)

    def test_one_that_fails_again_soon_is_out_for_longer(self) -> None:
        fleet = fleet_of()
        fail(fleet)
        assert generate(fleet, "e0", 2, ok=True)
        fail(fleet, now=3)
        assert not fleet.reachable("e0", 3 + 3.9)
        assert generate(fleet, "e0", 7, ok=True)
        later = 7 + health.PARDON_SECONDS
        fail(fleet, now=later)
        assert fleet.reachable("e0", later + FIRST_EJECTION_SECONDS)

    def test_a_session_that_was_let_in_for_the_trial_has_it_for_a_while(self) -> None:
        fleet = fleet_of()
        fleet.entering("e0", 0)
        fail(fleet)
        fleet.entering("e0", 2)
        assert reachable(fleet, 2) == {"e1"}
        assert reachable(fleet, 2 + health.RESERVED_SECONDS) == {"e0", "e1"}

    def test_the_session_that_has_the_trial_may_send_it(self) -> None:
        fleet = fleet_of()
        fail(fleet)
        fleet.entering("e0", 2)
        trial = fleet.generation_begins("e0", 2.1)
        assert trial is not None
        assert fleet.generation_begins("e0", 2.1) is None
        fleet.generation_ended(trial, 2.1, ok=True)
        assert up(fleet, 2.1) == {"e0", "e1"}

    def test_an_engine_that_is_listed_anew_starts_anew(self) -> None:
        fleet = fleet_of()
        attempt = fleet.generation_begins("e0", 0)
        fail(fleet)
        apply(fleet, endpoint("e1"))
        assert attempt is not None
        fleet.generation_ended(attempt, 1, ok=False)
        assert fleet.generation_begins("e0", 1) is None
        assert standing(fleet) is Standing.UNREACHABLE
        apply(fleet, endpoint("e0"), endpoint("e1"))
        assert up(fleet) == {"e0", "e1"}


class TestTheLastOnes:
    def test_a_single_engine_is_never_out(self) -> None:
        fleet = fleet_of("e0")
        fail(fleet, times=100)
        assert up(fleet) == {"e0"}
        assert standing(fleet) is Standing.EJECTED
        assert "tried all the same" in fleet.state("e0", 0.0).reason

    def test_with_all_ejected_all_are_tried(self) -> None:
        fleet = fleet_of("e0", "e1", "e2")
        for engine in ("e0", "e1", "e2"):
            fail(fleet, engine)
        assert up(fleet) == {"e0", "e1", "e2"}
        generate(fleet, "e1", 1, ok=True)
        assert up(fleet, 1) == {"e1"}, "one that works is enough"

    @pytest.mark.parametrize(
        "unsound",
        [
            pytest.param(lambda fleet: fleet.bar("e1", Bar.DRAINING), id="draining"),
            pytest.param(lambda fleet: fleet.bar("e1", Bar.STALE_WEIGHTS), id="stale"),
            pytest.param(lambda fleet: fleet.bar("e1", Bar.GONE), id="gone"),
            pytest.param(lambda fleet: fleet.pods_seen({"e0": UP, "e1": STARTING}), id="starting"),
            pytest.param(lambda fleet: [fleet.probed("e1", serves=False) for _ in range(3)], id="silent"),
            pytest.param(lambda fleet: [fleet.failed("e1", n) for n in (0, 1, 3, 6)], id="away"),
        ],
    )
    def test_one_that_nobody_can_count_on_does_not_keep_another_out(
        self, unsound: Callable[[Fleet], object]
    ) -> None:
        fleet = fleet_of()
        fail(fleet, now=10)
        assert not fleet.is_up("e0", 10)
        unsound(fleet)
        assert fleet.is_up("e0", 10)

    def test_a_connection_error_of_a_moment_ago_does_not_make_broken_ones_good(self) -> None:
        fleet = fleet_of()
        fail(fleet)
        fleet.failed("e1", 0)
        assert reachable(fleet) == set(), "for half a second"
        assert up(fleet, 0.5) == {"e1"}

    def test_prefill_engines_are_judged_among_themselves(self) -> None:
        fleet = Fleet()
        apply(fleet, endpoint("p", role="prefill"), endpoint("d", role="decode"))
        fail(fleet, "p")
        fail(fleet, "d")
        assert up(fleet) == {"p", "d"}


class TestConnections:
    def test_errors_take_an_engine_out_for_growing_times(self) -> None:
        fleet = fleet_of("e0")
        for wait in (0.5, 1, 2, 4, 8, 10, 10):
            now = 1000 * wait
            fleet.failed("e0", now)
            fleet.failed("e0", now + wait / 2)
            assert not fleet.reachable("e0", now + wait - 0.01)
            assert fleet.reachable("e0", now + wait)
        assert standing(fleet, now=now) is Standing.UNREACHABLE

    def test_any_answer_ends_that(self) -> None:
        fleet = fleet_of("e0")
        fleet.failed("e0", 0)
        fleet.answered("e0")
        assert fleet.is_up("e0", 0)
        fleet.failed("unknown", 0)
        fleet.answered("unknown")

    def test_a_trial_that_finds_nobody_waits_for_both(self) -> None:
        fleet = fleet_of()
        fail(fleet)
        trial = fleet.generation_begins("e0", 2)
        assert trial is not None
        fleet.failed("e0", 2)
        fleet.generation_ended(trial, 2, ok=None)
        assert not fleet.reachable("e0", 2.4)
        assert fleet.reachable("e0", 2.5)


class TestProbes:
    def test_unanswered_ones_take_an_engine_out_until_one_is_answered(self) -> None:
        fleet = fleet_of()
        for number in range(3):
            assert up(fleet) == {"e0", "e1"}, number
            fleet.probed("e0", serves=False)
        assert reachable(fleet) == {"e1"}
        assert standing(fleet) is Standing.UNREACHABLE
        fleet.probed("e0", serves=True)
        assert up(fleet) == {"e0", "e1"}

    def test_an_engine_that_goes_on_answering_is_just_busy(self) -> None:
        fleet = fleet_of()
        generate(fleet, "e0", 0, ok=True)
        for _ in range(10):
            fleet.probed("e0", serves=False)
        assert reachable(fleet) == {"e0", "e1"}

    def test_with_none_answering_all_are_tried(self) -> None:
        fleet = fleet_of()
        for _ in range(5):
            fleet.probed("e0", serves=False)
            fleet.probed("e1", serves=False)
        assert up(fleet) == {"e0", "e1"}
        assert "tried all the same" in fleet.state("e0", 0).reason

    def test_an_answer_says_more_than_an_old_object(self) -> None:
        fleet = fleet_of("e0", ready=False)
        assert (up(fleet), reachable(fleet)) == (set(), {"e0"})
        assert standing(fleet) is Standing.NOT_READY
        fleet.probed("e0", serves=None)
        assert up(fleet) == set(), "it answers, but not that it has a model"
        fleet.probed("e0", serves=True)
        assert up(fleet) == {"e0"}
        fleet.probed("e0", serves=False)
        assert up(fleet) == set()
        fleet.probed("unknown", serves=True)


class TestDrain:
    @pytest.mark.parametrize(
        "drain",
        [
            pytest.param(lambda fleet: fleet.bar("e0", Bar.DRAINING), id="bar"),
            pytest.param(lambda fleet: fleet.pods_seen({"e0": GOING, "e1": UP}), id="pod"),
            pytest.param(
                lambda fleet: apply(fleet, endpoint("e0", draining=True), endpoint("e1")), id="status"
            ),
        ],
    )
    def test_no_new_sessions_and_those_there_go_on(self, drain: Callable[[Fleet], object]) -> None:
        fleet = fleet_of()
        drain(fleet)
        fleet.probed("e0", serves=True)
        assert (up(fleet), reachable(fleet)) == ({"e1"}, {"e0", "e1"})
        assert standing(fleet) is Standing.DRAINING
        assert generate(fleet, "e0", 0, ok=True)

    def test_its_successor_takes_new_sessions_again(self) -> None:
        fleet = fleet_of()
        for pod in (GOING, STARTING):
            fleet.pods_seen({"e0": pod, "e1": UP})
            assert up(fleet) == {"e1"}
        fleet.pods_seen({"e0": UP, "e1": UP})
        assert up(fleet) == {"e0", "e1"}

    def test_pods_say_more_than_the_status(self) -> None:
        fleet = fleet_of(ready=False)
        fleet.pods_seen({"e0": UP, "e1": STARTING})
        assert up(fleet) == {"e0"}
        fleet.pods_seen(None)
        assert up(fleet) == set()

    def test_an_engine_without_a_pod_is_gone(self) -> None:
        fleet = fleet_of()
        fleet.pods_seen({"e1": UP, "other": UP})
        assert reachable(fleet) == {"e1"}
        assert standing(fleet) is Standing.UNREACHABLE

    @pytest.mark.parametrize("pods", [pytest.param({}, id="none"), pytest.param({"x": UP}, id="others")])
    def test_where_no_engine_has_a_pod_they_are_no_pods(self, pods: dict[str, Pod]) -> None:
        fleet = fleet_of()
        fleet.pods_seen(pods)
        assert up(fleet) == {"e0", "e1"}


class TestBars:
    def test_stale_weights_let_no_request_pass_even_on_the_last_engine(self) -> None:
        fleet = fleet_of("e0")
        fleet.bar("e0", Bar.STALE_WEIGHTS)
        fleet.bar("e0", Bar.DRAINING)
        fleet.bar("e0", Bar.DRAINING)
        assert reachable(fleet) == set()
        assert standing(fleet) is Standing.STALE_WEIGHTS
        fleet.unbar("e0", Bar.STALE_WEIGHTS)
        assert (up(fleet), reachable(fleet)) == (set(), {"e0"})
        fleet.unbar("e0", Bar.DRAINING)
        fleet.unbar("e0", Bar.DRAINING)
        assert up(fleet) == {"e0"}

    def test_only_engines_that_are_listed_are_barred(self) -> None:
        fleet = fleet_of()
        fleet.bar("unknown", Bar.GONE)
        fleet.unbar("unknown", Bar.GONE)
        fleet.bar("e0", Bar.STALE_WEIGHTS)
        apply(fleet, endpoint("e1"))
        apply(fleet, endpoint("e0"), endpoint("e1"))
        assert up(fleet) == {"e0", "e1"}


class TestPrefillPairs:
    @pytest.mark.parametrize(
        ("spoil", "chosen"),
        [
            pytest.param(lambda fleet: None, "p1", id="the one of its revision that is up"),
            pytest.param(lambda fleet: fleet.bar("p1", Bar.DRAINING), None, id="draining"),
            pytest.param(lambda fleet: fleet.bar("p1", Bar.STALE_WEIGHTS), None, id="stale"),
            pytest.param(lambda fleet: fail(fleet, "p1"), None, id="ejected"),
            pytest.param(lambda fleet: fleet.failed("p1", 0), None, id="out"),
        ],
    )
    def test_only_engines_of_the_revision_that_are_up(
        self, spoil: Callable[[Fleet], object], chosen: str | None
    ) -> None:
        fleet = Fleet()
        apply(
            fleet,
            endpoint("p0", role="prefill", revision="r0"),
            endpoint("p1", role="prefill"),
            endpoint("d", role="decode"),
        )
        spoil(fleet)
        choice = fleet.choose_prefill("d", prefix=(), prompt_tokens=100, now=0, rng=Random(1))
        assert (choice.engine if isinstance(choice, Remote) else None) == chosen
        assert fleet.has_prefill
        there = fleet.choose_prefill("p1", prefix=(), prompt_tokens=100, now=0, rng=Random(1))
        assert isinstance(there, Local)


@dataclass
class Stream:
    """An open answer."""

    last_byte_at: float
    is_held: bool = False

    def close(self) -> None:
        """Nobody listens."""


def test_silent_engines_are_ejected_and_their_open_answers_broken_off() -> None:
    fleet = fleet_of()
    fleet.stalls.bounds = StallBounds(answer_seconds=30, first_token_seconds=20, next_token_seconds=10)
    opened = [fleet.generation_begins(engine, 0) for engine in ("e0", "e0", "e1")]
    stuck, headless, lively = opened
    assert stuck is not None
    assert headless is not None
    assert lively is not None
    stuck.head_arrived(Stream(0))
    answer = Stream(0)
    lively.head_arrived(answer)
    found: list[Attempt] = []
    for second in range(1, 60):
        answer.last_byte_at = second - 0.5
        found += fleet.stalled_answers(second)
        if found:
            break
    assert found == [stuck]
    assert [stuck.stalled, headless.stalled, lively.stalled] == [True, False, False]
    assert "delivered nothing" in fleet.state("e0", second).reason
    assert reachable(fleet, second) == {"e1"}
    fleet.generation_ended(stuck, second, ok=False)
    fleet.generation_ended(headless, second + 1, ok=True)
    assert up(fleet, second + 1) == {"e0", "e1"}


def test_trials_without_an_answer_for_too_long_make_room_for_others() -> None:
    fleet = fleet_of()
    fleet.stalls.bounds = StallBounds(answer_seconds=100)
    fail(fleet)
    hanging: list[tuple[int, Attempt]] = []
    for second in range(2, 200):
        generate(fleet, "e1", second, ok=True)
        assert not fleet.stalled_answers(second)
        if (trial := fleet.generation_begins("e0", second)) is not None:
            hanging.append((second, trial))
    times = [second for second, _ in hanging]
    assert times[: health.MOST_TRIALS] == [2, 6, 14, 30]
    assert 100 <= times[health.MOST_TRIALS] <= 110
    for _, trial in hanging:
        fleet.generation_ended(trial, second, ok=None)
    assert generate(fleet, "e0", second, ok=True)
    assert up(fleet, second) == {"e0", "e1"}


def test_homes_are_the_same_tuple_while_the_same_engines_are_up() -> None:
    fleet = fleet_of("e0", "e1", "e2")
    homes = fleet.homes(0)
    fail(fleet, times=EJECT_FAILURES - 1)
    fleet.probed("e0", serves=True)
    fleet.failed("e2", 0)
    assert fleet.homes(0) is not homes
    fleet.answered("e2")
    homes = fleet.homes(1)
    fleet.bar("e1", Bar.DRAINING)
    fleet.unbar("e1", Bar.DRAINING)
    assert fleet.homes(2) is homes
