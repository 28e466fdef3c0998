"""What the operator is told of those who wait: by what they are held."""

from __future__ import annotations

from random import Random

import pytest

from rolloutpool_api.snapshot import AdmissionSnapshot, SnapshotClass
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.policy import LEAST_AHEAD
from rolloutpool_router.core.requests import Queued
from rolloutpool_router.core.snapshot import take_snapshot
from rolloutpool_router.testing import pool_object
from rolloutpool_testkit.admission import CAPS, CLASSES, ENGINES, ONE, arrive, controller_of, enter

ROOM = dict.fromkeys(CLASSES, 100)


def looked(controller: AdmissionController, **paused: int) -> dict[str, SnapshotClass]:
    snapshot = take_snapshot(controller, router="r", now=0.0, taken_at=0.0, ignored_statuses=0, paused=paused)
    assert AdmissionSnapshot.model_validate(snapshot.to_wire()) == snapshot
    return {item.name: item for item in snapshot.classes}


def one_runs_ahead(enforcement: str) -> AdmissionController:
    """A class that wants ever more sessions beside one that has what it wants."""
    pool = pool_object(ONE, caps=ROOM, blocks=10**6)
    pool["spec"]["mixture"] = {"enforcement": enforcement, "windowSamples": 10}
    controller = controller_of(pool)
    enter(controller, "a", "agentic")
    for number in range(20):
        arrive(controller, f"s{number}")
    return controller


def test_a_class_that_is_held_for_the_mixture_says_by_how_much_it_is_ahead() -> None:
    found = looked(one_runs_ahead("Hard"))
    assert found["rlvr"].waiting > 0
    assert LEAST_AHEAD < found["rlvr"].ahead == -found["rlvr"].debt
    assert found["agentic"].ahead == 0


@pytest.mark.parametrize("name", CLASSES)
def test_where_the_mixture_holds_nobody_nobody_is_said_to_be_held(name: str) -> None:
    assert looked(one_runs_ahead("Soft"))[name].ahead == 0
    full = controller_of(caps=CAPS, admission={"lending": False})
    for number in range(9):
        arrive(full, f"s{number}")
    assert looked(full)["rlvr"].waiting > 0
    assert looked(full)[name].ahead == 0


def test_requests_that_no_cap_holds_are_counted_apart() -> None:
    controller = controller_of(engines=ENGINES)
    enter(controller, "s", "agentic")
    for engine in ENGINES:
        controller.fleet.failed(engine, 0.0)
    controller.end_turn("s", now=0.0, ok=True)
    for _ in range(2):
        assert arrive(controller, "s", "agentic", now=0.1) == Queued("s", "agentic", resident=True)

    found = looked(controller, rlvr=300, agentic=1)

    assert {name: item.held for name, item in found.items()} == {"rlvr": 300, "rlhf": 0, "agentic": 3}
    assert {name: item.waiting for name, item in found.items()} == dict.fromkeys(CLASSES, 0)


def test_before_the_first_object_there_is_nothing_to_tell() -> None:
    assert looked(AdmissionController(Random(1))) == {}
