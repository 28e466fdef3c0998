"""Nothing waits for ever, whoever comes meanwhile: the real controller in virtual time, with adversaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_router.testing import pool_object
from rolloutpool_testkit.admission import (
    CLASSES,
    ENGINES,
    ONE,
    Sample,
    Turn,
    World,
    controller_of,
    enter,
    get_ahead,
    names,
)

STARVATION = 12
LONGEST = 8.0
"""Longest session of these worlds, in seconds."""
BOUND = STARVATION + LONGEST + 2
"""A class that waits is overdue after STARVATION, and what is kept free for it is empty LONGEST later."""


def world(
    *,
    caps: Mapping[str, int],
    blocks: int = 1000,
    engines: Mapping[str, str] = ONE,
    mixture: Mapping[str, Any] | None = None,
    workloads: Any = None,
    **admission: Any,
) -> World:
    pool = pool_object(
        engines,
        caps=caps,
        blocks=blocks,
        workloads=workloads,
        admission={"starvationSeconds": STARVATION} | admission,
    )
    pool["spec"]["mixture"] = mixture or {}
    return World(controller_of(pool))


class Adversary:
    """Keeps `waiting` short sessions of some classes in the queues at any time."""

    def __init__(self, world: World, *, waiting: int = 10, **kinds: Callable[[], Sample]) -> None:
        self.world = world
        self.waiting = waiting
        self.kinds = kinds
        world.every_second = self.refill
        world.ended = lambda _: self.refill()
        self.refill()

    def refill(self) -> None:
        for name, kind in self.kinds.items():
            state = self.world.controller.classes[name]
            for _ in range(self.waiting - len(state.queue)):
                before = len(state.queue)
                self.world.submit(kind())
                if len(state.queue) == before and len(self.world.entered) > 20_000:
                    raise AssertionError("endless")


numbers = count()


def short(name: str, *, tokens: int = 320, seconds: float = 4.0, **fields: Any) -> Callable[[], Sample]:
    return lambda: Sample(f"{name}-{next(numbers)}", name, (Turn(seconds, tokens, 16),), **fields)


def wait_of(world: World, session: str) -> float:
    """How long it waited before it entered, in seconds."""
    (waited,) = (entry.waited_seconds for _, entry in world.entered if entry.session == session)
    return waited


VICTIM = Sample("victim", "rlhf", (Turn(LONGEST, 12_000, 160),))
"""It needs three quarters of an engine."""
AMPLE = dict.fromkeys(CLASSES, 500)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"caps": AMPLE}, id="does-not-fit-between-the-others"),
        pytest.param({"caps": AMPLE, "mixtureDebt": False}, id="first-come-first-served"),
        pytest.param({"caps": AMPLE, "mixture": {"enforcement": "Soft"}}, id="soft"),
        pytest.param({"caps": {"rlvr": 50, "rlhf": 0, "agentic": 50}}, id="no-cap-anywhere"),
        pytest.param(
            {"caps": {"rlvr": 50, "rlhf": 0, "agentic": 50}, "mixtureDebt": False}, id="no-cap-nor-debts"
        ),
        pytest.param({"caps": AMPLE, "engines": ENGINES}, id="two-engines"),
        pytest.param({"caps": AMPLE, "blocks": 700}, id="fits-only-an-empty-engine"),
    ],
)
def test_a_large_session_enters_although_small_ones_come_without_end(options: dict[str, Any]) -> None:
    found = world(**options)
    Adversary(found, rlvr=short("rlvr"), agentic=short("agentic"))
    found.run(10)
    found.submit(VICTIM)
    found.run(10 + BOUND)

    assert wait_of(found, "victim") <= BOUND


def test_a_class_that_is_far_ahead_is_held_but_not_for_ever() -> None:
    found = world(caps=AMPLE, mixture={"enforcement": "Hard"})
    get_ahead(found.controller, "rlhf", 500)
    Adversary(found, rlvr=short("rlvr"), agentic=short("agentic"))
    found.run(5)
    found.submit(VICTIM)
    found.run(5 + BOUND)

    assert STARVATION <= wait_of(found, "victim") <= BOUND


def test_a_class_at_its_cap_enters_beyond_it_in_the_end() -> None:
    """Its own resident never ends."""
    found = world(caps={"rlvr": 500, "rlhf": 1, "agentic": 500}, mixtureDebt=False)
    found.submit(Sample("endless", "rlhf", (Turn(1e6, 320, 0),)))
    Adversary(found, rlvr=short("rlvr"), agentic=short("agentic"))
    found.submit(Sample("victim", "rlhf", (Turn(5, 320, 0),)))
    found.run(BOUND)

    assert STARVATION <= wait_of(found, "victim") <= BOUND


def test_endless_samples_of_one_prompt_hold_up_no_other_session_of_their_class() -> None:
    """Ten are ahead of it in the queue, and two resident: at two places that is six times four seconds."""
    found = world(caps=dict.fromkeys(CLASSES, 2), lending=False, mixtureDebt=False)
    Adversary(found, rlvr=short("rlvr", group=b"same"))
    found.run(10)
    found.submit(Sample("victim", "rlvr", (Turn(4, 320, 16),)))
    found.run(100)

    assert wait_of(found, "victim") <= 24


def test_endless_samples_of_one_prompt_do_not_go_before_all_classes_for_ever() -> None:
    """Once a whole group has entered, its class is one of several again."""
    shares = {}
    for group in (b"same", None):
        found = world(caps=AMPLE)
        Adversary(found, rlvr=short("rlvr", group=group), rlhf=short("rlhf"), agentic=short("agentic"))
        found.run(100)
        entered = [entry.class_name for _, entry in found.entered]
        shares[group] = entered.count("rlvr") / len(entered)

    assert shares[None] == pytest.approx(0.5, abs=0.05)
    assert shares[b"same"] == pytest.approx(0.5, abs=0.1)


def test_parked_sessions_that_come_and_go_hold_up_new_ones_no_longer_than_they_last() -> None:
    """They go first, but each has a last turn; nobody new is let in between to take its place."""
    agentic = {"name": "agentic", "share": 0.5, "sessionIdleSeconds": 600}
    found = world(
        caps={"rlvr": 2, "agentic": 2},
        workloads=[{"name": "rlvr", "share": 0.5}, agentic],
        parkIdleSeconds=3,
        lending=False,
        mixtureDebt=False,
        starvationSeconds=1000,
    )
    turns = (Turn(2, 320, 16, gap_seconds=10),) * 6
    for number in range(8):
        found.submit(Sample(f"agent-{number}", "agentic", turns))
    found.run(400)

    assert found.controller.classes["agentic"].counters.parked > 0
    assert len(found.finished) == 8


def test_while_a_class_waits_others_overtake_it_a_bounded_number_of_times() -> None:
    """By debts: who enters falls behind. Recent consumption moves each by at most the tolerated 3 samples."""
    found = world(caps=AMPLE, mixture={"windowSamples": 100, "tolerancePercentagePoints": 3})
    Adversary(found, rlvr=short("rlvr"), agentic=short("agentic"), rlhf=short("rlhf", seconds=LONGEST))
    found.run(100)
    entered = [entry.class_name for _, entry in found.entered][50:]
    for name, share in {"rlvr": 0.5, "rlhf": 0.3, "agentic": 0.2}.items():
        runs = "".join("x" if one == name else "." for one in entered).strip(".").split("x")
        assert max(len(run) for run in runs) <= (2 * 3 + 2) / share
        assert entered.count(name) / len(entered) == pytest.approx(share, abs=0.03)


def test_pressure_keeps_no_session_out_of_an_empty_engine() -> None:
    found = world(caps=AMPLE)
    found.submit(Sample("evicted", "agentic", (Turn(1, 9000, 16, gap_seconds=1),) * 8, cached_tokens=1000))
    found.run(10)
    assert found.controller.occupancy.protected_blocks("e0") < 1000
    found.run(20)
    found.submit(Sample("victim", "rlhf", (Turn(1, 15_900, 16),)))
    found.run(20 + BOUND)

    assert wait_of(found, "victim") <= BOUND


@pytest.mark.parametrize(("pressure", "protected"), [(0, 1000), (9, 906), (50, 500)])
def test_nor_does_that_of_the_operator(pressure: int, protected: int) -> None:
    pool = pool_object(ONE, caps=AMPLE)
    pool["status"]["admission"]["engines"][0] |= {"pressure": pressure, "protectedBlocks": protected}

    assert enter(controller_of(pool), "victim", prompt_tokens=15_900).engine == "e0"


def test_a_wait_beyond_what_the_class_allows_is_refused() -> None:
    workloads = [
        {"name": "rlvr", "share": 0.5, "overload": {"maxWaitSeconds": 12, "status": 529}},
        {"name": "rlhf", "share": 0.5},
    ]
    found = world(caps={"rlvr": 1, "rlhf": 1}, workloads=workloads, lending=False, mixtureDebt=False)
    for number in range(4):
        found.submit(Sample(f"s{number}", "rlvr", (Turn(10, 320, 16),)))
    found.run(100)

    assert names([entry for _, entry in found.entered]) == ["s0", "s1"]
    assert found.refused == ["s2", "s3"]
    assert found.waiting == 0


arrivals = st.lists(
    st.tuples(
        st.sampled_from(CLASSES),
        st.integers(1, 12_000),  # prompt tokens
        st.floats(0.1, LONGEST),  # seconds of the turn
        st.floats(0, 3),  # until the next arrival
        st.integers(1, 8),  # samples of the prompt
    ),
    min_size=5,
    max_size=30,
)


@settings(max_examples=15)
@given(
    arrivals=arrivals,
    caps=st.fixed_dictionaries({name: st.integers(0, 3) for name in CLASSES}),
    engines=st.integers(1, 2),
    hard=st.booleans(),
    switches=st.fixed_dictionaries(
        {name: st.booleans() for name in ("lending", "mixtureDebt", "groups", "timeAveragedFootprint")}
    ),
    seed=st.integers(0, 99),
)
def test_whatever_comes_no_class_waits_longer_than_the_bound_without_an_entry(
    arrivals: list[tuple[str, int, float, float, int]],
    caps: dict[str, int],
    engines: int,
    hard: bool,
    switches: dict[str, bool],
    seed: int,
) -> None:
    """The pattern comes over and over for as long as anybody looks."""
    found = world(
        caps=caps,
        engines=dict(list(ENGINES.items())[:engines]),
        mixture={"enforcement": "Hard" if hard else "Soft"},
        **switches,
    )
    order = Random(seed)

    def come(at: int) -> None:
        name, tokens, seconds, pause, samples = arrivals[at % len(arrivals)]
        for _ in range(samples):
            if len(found.controller.classes[name].queue) < 20:
                life = (Turn(order.uniform(0.1, seconds), tokens, 64),)
                found.submit(Sample(f"s{next(numbers)}", name, life, group=str(at).encode()))
        found.at(found.now + pause + 0.05, lambda: come(at + 1))

    def look() -> None:
        for state in found.controller.classes.values():
            if len(state.queue):
                assert found.now - state.turn_since <= STARVATION + len(CLASSES) * LONGEST + 2

    found.every_second = look
    come(0)
    found.run(80)


def test_sessions_that_only_idle_hold_no_other_class_up() -> None:
    """Clients that never come back, or are all in long tool calls, leave the engines to the others."""
    found = world(caps=AMPLE, blocks=20_000, starvationSeconds=10_000)
    for number in range(12):
        found.submit(Sample(f"hung-{number}", "agentic", (Turn(1, 500, 20, gap_seconds=1e6), Turn(1))))
    found.run(5)
    for number in range(120):
        found.submit(Sample(f"s{number}", "rlhf", (Turn(1, 500, 20),)))

    found.run(40)

    assert sum(sample.class_name == "rlhf" for sample in found.finished) == 120
