"""The policy to compare with: whole sessions let in, paused and resumed by footprint alone."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_router.core.sessions import Usage
from rolloutpool_sim.fleet.opened import OpenSample
from rolloutpool_sim.fleet.program_gate import DECODE_TOKENS, LONGEST_WAIT_SECONDS, ProgramScheduler
from rolloutpool_sim.fleet.sampling import Group, Sample, Turn
from rolloutpool_sim.fleet.scenario import ProgramGate
from rolloutpool_sim.leap import Segment

SETTINGS = ProgramGate(admit_fraction=1.0, high_watermark=1.0, low_watermark=0.8)


def sample(name: str, *, own: int = 0, shared: int = 0, turns: int = 5) -> OpenSample:
    """A session whose first prompt is one of `shared` common tokens, and that has `own` tokens of history."""
    prompt = (Segment("system", shared),) if shared else ()
    group = Group(name, name.encode(), "a", prompt, shared, (), 0.0)
    opened = OpenSample(Sample(name, group, (Turn(0, 10, 0.0),) * turns), 0.0, 16)
    opened.history_tokens = own
    return opened


def scheduler(capacity: int = 10_000, engines: int = 1) -> ProgramScheduler:
    return ProgramScheduler(SETTINGS, [f"e{index}" for index in range(engines)], capacity)


def enter(gate: ProgramScheduler, opened: OpenSample, now: float = 0.0) -> list[str]:
    answer = gate.arrive(opened, now)
    assert isinstance(answer, list)
    return [entry.session for entry in answer]


def answer(gate: ProgramScheduler, opened: OpenSample, own: int, now: float = 0.0) -> None:
    """The session's turn ends and leaves it with as many tokens of its own."""
    prompt = opened.sample.group.prompt_tokens
    gate.end_turn(opened.sample.name, now, usage=Usage(prompt + own - 10, 10, 0))
    opened.turn += 1
    opened.history_tokens = own


def test_sessions_enter_first_come_first_served_while_they_fit() -> None:
    gate = scheduler(capacity=3 * DECODE_TOKENS + 50)
    opened = [sample(f"s{index}") for index in range(5)]
    assert [enter(gate, each) for each in opened] == [["s0"], ["s1"], ["s2"], [], []]
    assert gate.active() == {"a": 3}
    assert gate.waiting() == {"a": 2}
    gate.finish("s1", 1.0)
    assert [entry.session for entry in gate.admit("s1", 1.0)] == ["s3"]


def test_a_new_session_goes_to_the_engine_with_the_most_room() -> None:
    gate = scheduler(engines=2)
    for name, own in (("big", 5000), ("small", 0), ("next", 0)):
        enter(gate, sample(name, own=own))
    engines = [gate.arrive(sample(name), 0.0) for name in ("big", "small", "next")]
    assert [entries[0].engine for entries in engines if isinstance(entries, list)] == ["e0", "e1", "e1"]


def test_a_shared_prompt_counts_once() -> None:
    gate = scheduler(capacity=8000 + 4 * DECODE_TOKENS)
    entered = [enter(gate, sample(f"s{index}", shared=8000)) for index in range(5)]
    assert entered == [["s0"], ["s1"], ["s2"], ["s3"], []]


def test_turns_of_sessions_that_are_in_always_go_through() -> None:
    gate, opened = scheduler(capacity=1000), sample("s")
    enter(gate, opened)
    answer(gate, opened, own=5000)
    assert enter(gate, opened, 1.0) == ["s"]


def test_when_an_engine_overflows_the_smallest_sessions_in_a_tool_gap_are_paused() -> None:
    gate = scheduler()
    opened = {name: sample(name) for name in ("small", "middle", "big", "running")}
    for each in opened.values():
        enter(gate, each)
    for name, own in (("small", 1500), ("middle", 2000), ("big", 7000)):
        answer(gate, opened[name], own)
    gate.tick(0.0)
    assert not gate.is_resident("small")
    assert not gate.is_resident("middle")
    assert gate.is_resident("big")
    assert gate.is_resident("running")


def test_running_sessions_are_paused_when_their_turn_ends_if_the_others_are_too_few() -> None:
    gate = scheduler(capacity=1000)
    opened = [sample("s0"), sample("s1")]
    for each in opened:
        enter(gate, each)
    gate.tick(30.0)
    assert gate.is_resident("s0")
    answer(gate, opened[0], own=900)
    assert not gate.is_resident("s0")
    assert gate.is_resident("s1")


def test_paused_sessions_go_on_before_new_ones_enter() -> None:
    gate = scheduler()
    paused, big, new = sample("paused"), sample("big", own=9000), sample("new")
    for each in (paused, big):
        enter(gate, each)
    answer(gate, paused, 1000)
    gate.tick(0.0)
    assert not gate.is_resident("paused")
    assert gate.is_resident("big")
    assert enter(gate, paused, 1.0) == []
    assert enter(gate, new, 2.0) == []
    gate.finish("big", 3.0)
    assert [entry.session for entry in gate.admit("big", 3.0)] == ["paused", "new"]


def test_nobody_waits_for_ever() -> None:
    gate = scheduler(capacity=1000)
    enter(gate, sample("s"))
    assert enter(gate, sample("huge", own=5000), 1.0) == []
    assert gate.tick(LONGEST_WAIT_SECONDS) == []
    assert [entry.session for entry in gate.tick(LONGEST_WAIT_SECONDS + 1.0)] == ["huge"]


def test_a_session_whose_engine_is_gone_goes_to_another() -> None:
    gate, opened = scheduler(engines=2), sample("s")
    first = gate.arrive(opened, 0.0)
    assert isinstance(first, list)
    gate.engine_failed("s", first[0].engine, 1.0)
    second = gate.reroute("s", 1.0)
    assert isinstance(second, list)
    assert {first[0].engine, second[0].engine} == {"e0", "e1"}


def test_with_no_engine_up_sessions_wait_for_the_next_tick() -> None:
    gate, opened = scheduler(), sample("s")
    enter(gate, opened)
    gate.engine_failed("s", "e0", 1.0)
    assert gate.reroute("s", 1.0) == []
    assert [entry.session for entry in gate.tick(2.0)] == ["s"]


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000))
def test_what_counts_against_the_engines_is_what_their_sessions_hold(seed: int) -> None:
    rng, gate = Random(seed), scheduler(capacity=5000, engines=2)
    known: dict[str, OpenSample] = {}
    running: set[str] = set()
    for step in range(200):
        now, name = float(step), f"s{rng.randrange(12)}"
        if name in running:
            answer(gate, known[name], own=known[name].history_tokens + rng.randrange(10, 800), now=now)
            running.discard(name)
            entered = gate.admit(name, now)
            if known[name].turn == 5:
                gate.finish(known.pop(name).sample.name, now)
        elif name not in known:
            known[name] = sample(name, shared=rng.choice((0, 500)))
            entered = gate.arrive(known[name], now)  # type: ignore[assignment]
        elif gate.is_resident(name):
            entered = gate.arrive(known[name], now)  # type: ignore[assignment]
        else:
            entered = gate.tick(now)
        running |= {entry.session for entry in entered}
        for room in gate._rooms.values():
            own = sum(program.tokens for program in room.programs.values())
            shared = any(program.opened.sample.group.prompt_tokens for program in room.programs.values())
            assert room.tokens == pytest.approx(own + (500 if shared else 0))
    for name in [*known]:
        gate.finish(name, 999.0)
    assert not gate.active()
    assert all(room.tokens == pytest.approx(0) for room in gate._rooms.values())
