"""Whole runs of small fleets: what holds whatever the policy decides, and that events do what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from random import Random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_sim.fleet.result import FleetResult
from rolloutpool_sim.fleet.run import run
from rolloutpool_sim.fleet.scenario import Scenario, parse_scenario
from rolloutpool_sim.fleet.simulation import Simulation

RLVR: dict[str, Any] = {
    "name": "rlvr",
    "share": 0.5,
    "groupSize": 4,
    "systemTokens": 64,
    "promptTokens": 100,
    "outputTokens": {"lognormal": {"median": 200, "sigma": 0.7}, "max": 2000},
    "groupCorrelation": 0.5,
}
AGENTIC: dict[str, Any] = {
    "name": "agentic",
    "share": 0.5,
    "groupSize": 2,
    "systemTokens": 512,
    "promptTokens": 200,
    "outputTokens": {"lognormal": {"median": 50, "p95": 200}},
    "turns": {"lognormal": {"median": 4, "p95": 8}},
    "turnTokens": 100,
    "toolGapSeconds": {"exponential": {"mean": 1}},
}
BASE: dict[str, Any] = {
    "name": "small",
    "fleet": {"engines": 2, "kvTokens": 10_000, "maxModelLen": 8192},
    "workloads": [RLVR, AGENTIC],
    "trainer": {"outstanding": 40},
    "seconds": 60,
    "warmupSeconds": 10,
}
POLICIES = ("MISA-T", "MISA", "Session", "Static", "None")
GATES = [
    *(pytest.param({"admission": {"policy": policy}}, id=policy) for policy in POLICIES),
    pytest.param({"gate": "Program"}, id="Program"),
    pytest.param({"fleet": BASE["fleet"] | {"routers": 3}}, id="three-routers"),
]


def scenario(**fields: Any) -> Scenario:
    return parse_scenario(BASE | fields)


def simulation(of: Scenario, seed: int = 1) -> Simulation:
    return Simulation(of, randoms=lambda name: Random(f"{seed}/{name}"), seed=seed)


def held(found: Simulation) -> dict[str, float]:
    """Everything that must be nothing once all sessions are over."""
    routers = found.routers.controllers
    return {
        "open": len(found.open),
        "residents": sum(len(router.table) for router in routers),
        "tallies": sum(bool(router.table.tally(name)) for router in routers for name in found.engines.names),
        "queued": sum(len(state.queue) for router in routers for state in router.classes.values()),
        "stalled": sum(len(router.stalled) for router in routers),
        "active": sum(found.gate.active().values()),
        "waiting": sum(found.gate.waiting().values()),
        "blocks needed": round(found.residency.blocks, 6),
        "blocks used": found.engines.used_fraction(),
    }


@pytest.mark.parametrize("fields", GATES)
def test_a_drained_run_leaves_nothing_behind(fields: dict[str, Any]) -> None:
    drained = scenario(trainer={"mode": "Sync", "batch": 60, "iterations": 2}, seconds=600, **fields)
    found = simulation(drained)
    result = found.run()
    assert len(result.iterations) == 2
    assert set(held(found).values()) == {0}
    assert sum(sum(iteration.counts.values()) for iteration in result.iterations) == sum(
        found.trainer.submitted.values()
    )


@pytest.mark.parametrize("fields", GATES)
def test_every_submitted_sample_completes_or_is_open(fields: dict[str, Any]) -> None:
    result = run(scenario(warmupSeconds=0, **fields), seed=1)
    submitted = sum(of.submitted for of in result.classes.values())
    completed = sum(of.completed for of in result.classes.values())
    assert submitted == completed + result.open_at_end
    assert completed > 100
    assert sum(sum(counts) for counts in result.series.completed.values()) == completed


def test_a_seed_gives_one_result_and_another_seed_another() -> None:
    short = scenario(seconds=20)
    first = run(short, seed=5)
    assert run(short, seed=5) == first
    assert run(short, seed=6) != first
    assert FleetResult.from_json(json.loads(json.dumps(first.to_json()))) == first


def test_the_result_does_not_depend_on_the_process() -> None:
    code = (
        "import json, sys\n"
        "from rolloutpool_sim.fleet.run import run\n"
        "from rolloutpool_sim.fleet.scenario import Scenario\n"
        "result = run(Scenario.model_validate(json.load(sys.stdin)), seed=3)\n"
        "sys.stdout.write(json.dumps(result.to_json()))\n"
    )
    wire = json.dumps(scenario(seconds=30, fleet=BASE["fleet"] | {"routers": 2}).to_wire())
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            input=wire,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]


def test_policies_are_compared_on_the_same_work() -> None:
    """Where every session gets through, all policies see the same samples."""
    batch = {"mode": "Sync", "batch": 40, "iterations": 1}
    results = [
        run(scenario(trainer=batch, seconds=600, warmupSeconds=0, **gate.values[0]), seed=2)  # type: ignore[arg-type]
        for gate in GATES[:6]
    ]
    assert len({tuple((of.turns, of.output_tokens) for of in r.classes.values()) for r in results}) == 1


@pytest.mark.parametrize("gate", ["Router", "Program"])
def test_residents_obey_littles_law(gate: str) -> None:
    result = run(scenario(gate=gate, seconds=260, warmupSeconds=60), seed=1)
    measured = [at for at, time in enumerate(result.series.time) if time > 60]
    for name, of in result.classes.items():
        mean_resident = fmean(result.series.active[name][at] for at in measured)
        assert of.residency_seconds is not None
        assert mean_resident == pytest.approx(of.per_minute / 60 * of.residency_seconds, rel=0.12)


def test_results_speak_of_the_time_after_the_warm_up() -> None:
    whole, later = run(scenario(warmupSeconds=0), seed=1), run(scenario(warmupSeconds=30), seed=1)
    assert whole.seconds == 60
    assert later.seconds == 30
    assert whole.series == later.series
    at = later.series.time.index(30)
    for name, of in later.classes.items():
        assert of.completed == sum(later.series.completed[name][at + 1 :])


def test_with_unlimited_kv_nothing_is_evicted_and_nobody_waits() -> None:
    unlimited = run(scenario(kv="Unlimited", admission={"policy": "None"}), seed=1)
    assert unlimited.evicted_history_tokens == unlimited.preemptions == 0
    assert all(of.queue_wait_max == 0 for of in unlimited.classes.values())
    assert unlimited.resident_fraction < 0.01


def test_without_admission_control_histories_are_evicted() -> None:
    overload = {"outstanding": 100}
    none = run(scenario(admission={"policy": "None"}, trainer=overload), seed=1)
    static = run(scenario(admission={"policy": "Static"}, trainer=overload), seed=1)
    assert none.evicted_history_tokens > 3 * static.evicted_history_tokens
    assert none.resident_fraction > 1 > static.resident_fraction
    assert all(of.queue_wait_max == 0 for of in none.classes.values())
    assert set(none.series.caps["rlvr"]) == {-1}


def test_turns_of_a_lost_engine_fail_and_are_repeated_elsewhere() -> None:
    lost = scenario(
        trainer={"mode": "Sync", "batch": 40, "iterations": 1},
        seconds=600,
        warmupSeconds=0,
        events=[{"at": 1, "engineLost": 1}],
    )
    found = simulation(lost)
    result = found.run()
    assert result.failed_turns > 0
    assert set(held(found).values()) == {0}
    assert not found.engines.is_up("engine-1")


def test_an_engine_that_is_back_serves_again() -> None:
    gone = {"at": 5, "engineLost": "engine-0"}
    back = run(scenario(events=[gone, {"at": 20, "engineBack": 0}], warmupSeconds=30), seed=1)
    away = run(scenario(events=[gone], warmupSeconds=30), seed=1)
    always = run(scenario(warmupSeconds=30), seed=1)
    assert away.samples_per_minute < 0.8 * always.samples_per_minute
    assert back.samples_per_minute > 0.9 * always.samples_per_minute


def test_with_all_engines_lost_sessions_wait_until_one_is_back() -> None:
    events = [{"at": 1, "engineLost": 0}, {"at": 1, "engineLost": 1}, {"at": 10, "engineBack": 0}]
    batch = {"mode": "Sync", "batch": 40, "iterations": 1}
    found = simulation(scenario(trainer=batch, seconds=600, events=events))
    assert len(found.run().iterations) == 1
    assert set(held(found).values()) == {0}


def test_a_burst_of_a_class_is_submitted_at_once() -> None:
    burst = run(scenario(events=[{"at": 20, "burst": {"class": "rlvr", "samples": 100}}]), seed=1)
    waiting = dict(zip(burst.series.time, burst.series.waiting["rlvr"], strict=True))
    assert waiting[20] - waiting[19] > 70


def test_a_silent_class_is_not_submitted() -> None:
    silent = run(scenario(events=[{"at": 10, "classSilent": {"class": "rlvr", "for": 40}}]), seed=1)
    completed = dict(zip(silent.series.time, silent.series.completed["rlvr"], strict=True))
    assert sum(count for time, count in completed.items() if 30 < time <= 50) == 0
    assert sum(count for time, count in completed.items() if time > 50) > 0


def test_a_changed_class_has_the_new_sessions_from_then_on() -> None:
    change = {"class": "rlvr", "replace": {"outputTokens": 20}}
    changed = run(scenario(events=[{"at": 5, "workload": change}], warmupSeconds=40), seed=1).classes["rlvr"]
    assert changed.output_tokens == 20 * changed.turns


def test_outputs_grow_with_every_iteration() -> None:
    growth = {"class": "rlvr", "percentPerIteration": 50}
    grown = scenario(
        workloads=[RLVR | {"outputTokens": 100}, AGENTIC],
        trainer={"mode": "Sync", "batch": 16, "iterations": 3},
        events=[{"at": 0, "outputGrowth": growth}],
        seconds=600,
        warmupSeconds=0,
    )
    found = run(grown, seed=1)
    assert found.classes["rlvr"].output_tokens == 8 * (100 + 150 + 225)


@pytest.mark.parametrize(
    ("operator", "written"),
    [
        pytest.param({}, True, id="there"),
        pytest.param({"frozenFrom": 0}, False, id="frozen-from-the-start"),
        pytest.param({"away": [{"from": 0, "to": 100}]}, False, id="away"),
        pytest.param({"delayFactor": 100}, False, id="too-slow"),
    ],
)
def test_caps_come_from_the_operator_while_there_is_one(operator: dict[str, Any], written: bool) -> None:
    found = simulation(scenario(operator=operator, seconds=30))
    found.run()
    view = found.routers.controllers[0].view
    assert view is not None
    assert (view.admission is not None) is written


def test_progress_is_told_from_beginning_to_end() -> None:
    told: list[float] = []
    run(scenario(seconds=20), seed=1, progress=told.append)
    assert told == sorted(told)
    assert 50 <= len(told) <= 101
    assert told[-1] > 0.95


def test_a_second_kv_tier_gives_back_what_was_evicted() -> None:
    overload = {"trainer": {"outstanding": 100}, "admission": {"policy": "None"}}
    without = run(scenario(**overload), seed=1)
    tier = run(scenario(**overload, fleet=BASE["fleet"] | {"offload": {"blocks": 100_000}}), seed=1)
    assert without.loaded_tokens == 0 < tier.loaded_tokens
    assert tier.evicted_history_tokens < without.evicted_history_tokens / 10
    assert tier.samples_per_minute > without.samples_per_minute


EVENTS = st.lists(
    st.one_of(
        st.just({"at": 1, "engineLost": 0}),
        st.just({"at": 4, "engineBack": "engine-0"}),
        st.just({"at": 2, "burst": {"class": "rlvr", "samples": 30}}),
        st.just({"at": 2, "classSilent": {"class": "agentic", "for": 5}}),
        st.just({"at": 3, "workload": {"class": "agentic", "replace": {"toolGapSeconds": 3}}}),
        st.just({"at": 0, "outputGrowth": {"class": "rlvr", "percentPerIteration": 20}}),
    ),
    max_size=4,
)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    policy=st.sampled_from(POLICIES),
    gate=st.sampled_from(["Router", "Router", "Program"]),
    routers=st.sampled_from([1, 1, 2]),
    mode=st.sampled_from(["Sync", "Async"]),
    batch=st.integers(1, 60),
    kv=st.sampled_from([8192, 12_000, 30_000]),
    oracle=st.booleans(),
    events=EVENTS,
)
def test_whatever_happens_no_sample_and_no_permit_is_lost(
    seed: int,
    policy: str,
    gate: str,
    routers: int,
    mode: str,
    batch: int,
    kv: int,
    oracle: bool,
    events: list[dict[str, Any]],
) -> None:
    back = [{"at": 6, "engineBack": 0}]
    found = simulation(
        scenario(
            gate=gate,
            oracle=oracle,
            admission={"policy": policy},
            fleet={"engines": 2, "kvTokens": kv, "maxModelLen": 8192, "routers": routers},
            trainer={"mode": mode, "batch": batch, "outstanding": batch, "iterations": 1},
            events=[*events, *back],
            seconds=1000 if mode == "Sync" else 15,
            warmupSeconds=5,
        ),
        seed,
    )
    result = found.run()
    submitted = sum(found.trainer.submitted.values())
    completed = sum(sum(counts) for counts in result.series.completed.values())
    if mode == "Sync":
        assert len(result.iterations) == 1
        assert sum(result.iterations[0].counts.values()) == submitted
        assert set(held(found).values()) == {0}
    else:
        assert completed + result.open_at_end >= submitted - 60
        assert sum(found.gate.active().values()) + sum(found.gate.waiting().values()) <= result.open_at_end
