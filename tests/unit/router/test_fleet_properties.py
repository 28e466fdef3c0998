"""Whatever becomes of generations, probes and trials: somebody is tried, and broken engines rarely are."""

from __future__ import annotations

import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rolloutpool_router.core.health import EJECT_FAILURES, MAX_EJECTION_SECONDS, MOST_TRIALS
from rolloutpool_router.core.stalls import Attempt, StallBounds
from rolloutpool_testkit.fleets import fleet_of, generate, reachable, up

NAMES = ("e0", "e1", "e2")
engines = st.sampled_from(NAMES)


class Outcomes(RuleBasedStateMachine):
    """A fleet of three engines to which anything happens but connection errors and bars."""

    @initialize()
    def start(self) -> None:
        self.fleet = fleet_of(*NAMES)
        self.fleet.stalls.bounds = StallBounds(answer_seconds=3, first_token_seconds=3, next_token_seconds=3)
        self.now = 0.0
        self.open: list[Attempt] = []

    @rule(engine=engines)
    def begins(self, engine: str) -> None:
        was_reachable = self.fleet.reachable(engine, self.now)
        attempt = self.fleet.generation_begins(engine, self.now)
        assert attempt is not None or not was_reachable
        if attempt is not None:
            self.open.append(attempt)
            assert not (attempt.trial and self.fleet.reachable(engine, self.now))

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(min_value=0), ok=st.sampled_from([True, False, False, None]))
    def ends(self, pick: int, ok: bool | None) -> None:
        attempt = self.open.pop(pick % len(self.open))
        self.fleet.generation_ended(attempt, self.now, ok=ok)
        if ok:
            assert self.fleet.is_up(attempt.engine, self.now), "a success always brings it back"

    @rule(engine=engines)
    def fails_at_once(self, engine: str) -> None:
        for _ in range(EJECT_FAILURES):
            generate(self.fleet, engine, self.now, ok=False)

    @rule(engine=engines, serves=st.sampled_from([True, False, None]))
    def is_probed(self, engine: str, serves: bool | None) -> None:
        self.fleet.probed(engine, serves=serves)

    @rule(engine=engines)
    def a_session_enters(self, engine: str) -> None:
        self.fleet.entering(engine, self.now)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 10.0, 100.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        assert not self.fleet.stalled_answers(self.now), "no answer has begun"

    @invariant()
    def somebody_is_tried(self) -> None:
        assert self.fleet.homes(self.now)
        assert reachable(self.fleet, self.now) >= up(self.fleet, self.now)

    @invariant()
    def trials_are_few(self) -> None:
        ejections = [health.ejection for health in self.fleet._health.values() if health.ejection]
        assert all(0 <= ejection.trials <= MOST_TRIALS for ejection in ejections)

    @invariant()
    def what_is_remembered_is_what_is_so(self) -> None:
        fresh = copy.copy(self.fleet)
        fresh._standings = fresh._standings.outdated()
        assert fresh.homes(self.now) == self.fleet.homes(self.now)
        assert reachable(fresh, self.now) == reachable(self.fleet, self.now)


TestOutcomes = Outcomes.TestCase
TestOutcomes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seconds", [60, 3600])
def test_an_engine_that_fails_every_generation_gets_one_trial_per_back_off(seconds: int) -> None:
    fleet = fleet_of()
    failed = 0
    for tenth in range(10 * seconds):
        now = tenth / 10
        fleet.probed("e0", serves=True)
        failed += generate(fleet, "e0", now, ok=False)
        assert generate(fleet, "e1", now, ok=True)
    assert failed <= EJECT_FAILURES + 6 + seconds / MAX_EJECTION_SECONDS
