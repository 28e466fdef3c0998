"""Engines that fall silent: told from long prompts, a paused fleet, and a router that was stopped."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_router.core.stalls import OTHERS_SECONDS, Attempt, Awaited, StallBounds, Stalls

BOUNDS = StallBounds(
    answer_seconds=40, first_token_seconds=20, next_token_seconds=10, factor=4, half_life_seconds=1e9
)


@dataclass
class Stream:
    """An open answer."""

    last_byte_at: float
    is_held: bool = False

    def close(self) -> None:
        """Nobody listens."""


@dataclass
class World:
    """Engines with open answers, looked at once a second."""

    engines: tuple[str, ...] = ("e0", "e1")
    now: float = 100.0
    stalls: Stalls = field(default_factory=lambda: Stalls(BOUNDS))
    streams: dict[Attempt, Stream | None] = field(default_factory=dict)
    told: list[tuple[str, float]] = field(default_factory=list)
    """Engines that stalled, and when."""

    def open(self, engine: str, *, head: bool = True, tokens: bool = True) -> Attempt:
        """A generation begins; its head is there, and it had tokens."""
        attempt = Attempt(engine)
        self.streams[attempt] = None
        if head:
            stream = self.streams[attempt] = Stream(self.now)
            attempt.head_arrived(stream)
            if tokens:
                self.deliver(attempt)
        return attempt

    def deliver(self, attempt: Attempt) -> None:
        stream = self.streams[attempt]
        assert stream is not None
        stream.last_byte_at = self.now + 0.01

    def end(self, attempt: Attempt) -> None:
        """It ends well."""
        del self.streams[attempt]
        self.stalls.delivered(attempt.engine)

    def run(self, seconds: int, *active: Attempt, paused: bool = False, step: float = 1.0) -> list[str]:
        """Let time pass; these go on delivering. The engines that stalled meanwhile."""
        before = len(self.told)
        for _ in range(seconds):
            for attempt in active:
                self.deliver(attempt)
            self.now += step
            kinds = dict.fromkeys(self.engines, True)
            found = self.stalls.look(self.streams, kinds, self.now, paused=paused)
            self.told += [(stall.engine, self.now) for stall in found]
        return [engine for engine, _ in self.told[before:]]


def test_what_the_router_itself_does_not_read_is_no_silence() -> None:
    """Its client does not take what came."""
    world = World()
    held = world.streams[world.open("e0")]
    other = world.open("e1")
    assert held is not None
    held.is_held = True

    assert world.run(1000, other) == []
    held.is_held = False
    assert world.run(1000, other) == ["e0"] * len(world.told)
    assert world.told


def test_streams_that_stop_are_noticed_while_another_engine_delivers() -> None:
    world = World()
    world.open("e0")
    lively = world.open("e1")
    assert world.run(10, lively) == []
    assert world.run(3, lively) == ["e0"]
    assert not world.stalls.is_delivering("e0")
    assert world.stalls.is_delivering("e1")


@pytest.mark.parametrize(
    ("head", "tokens", "bound"),
    [
        pytest.param(True, True, 10, id="the-next-token"),
        pytest.param(True, False, 20, id="the-first-token: a long prompt"),
        pytest.param(False, False, 40, id="an-answer-that-is-not-streamed"),
    ],
)
def test_how_long_it_may_take_depends_on_what_is_awaited(head: bool, tokens: bool, bound: int) -> None:
    world = World()
    lively = world.open("e1")
    world.run(5, lively)
    world.open("e0", head=head, tokens=tokens)
    assert world.run(bound, lively) == []
    assert world.run(3, lively) == ["e0"]


def test_one_stream_that_delivers_speaks_for_its_engine() -> None:
    world = World()
    world.open("e0", tokens=False)
    delivers, other = world.open("e0"), world.open("e1")
    assert world.run(200, delivers, other) == []


def test_generations_that_end_well_speak_for_their_engine() -> None:
    world = World()
    world.open("e0")
    lively = world.open("e1")
    for _ in range(20):
        short = world.open("e0", head=False)
        assert world.run(8, lively) == []
        world.end(short)


def test_a_fleet_that_is_silent_as_a_whole_is_paused_and_nobody_is_at_fault() -> None:
    world = World()
    first, second = world.open("e0"), world.open("e1")
    world.run(5, first, second)
    assert world.run(2000) == []
    assert world.run(4, second) == [], "the one that goes on first proves nothing against the other"
    assert world.run(100, first, second) == []


def test_silence_of_a_pool_that_is_known_to_be_paused_does_not_count() -> None:
    world = World()
    world.open("e0")
    lively = world.open("e1")
    assert world.run(500, lively, paused=True) == []
    assert world.run(9, lively) == []


def test_the_last_engine_is_never_told() -> None:
    world = World(("e0",))
    world.open("e0")
    assert world.run(5000) == []


def test_where_the_others_have_nothing_to_do_silence_counts_slowly() -> None:
    world = World()
    world.open("e0")
    assert world.run(50) == []
    assert world.run(10) == ["e0"]


def test_an_engine_of_another_kind_proves_nothing() -> None:
    stalls, prefill = Stalls(BOUNDS), Attempt("p")
    stuck = Attempt("d0")
    stuck.head_arrived(Stream(0.0))
    for second in range(100):
        stalls.delivered("p")
        assert not stalls.look([stuck, prefill], {"p": False, "d0": True}, float(second))


def test_a_slow_engine_sets_its_own_pace() -> None:
    world = World()
    slow, lively = world.open("e0"), world.open("e1")
    world.run(8, lively)
    world.run(1, slow, lively)
    assert world.run(26, lively) == [], "four times its longest silence that ended well"
    assert world.run(8, lively) == ["e0"]


def test_its_pace_is_forgotten_in_time() -> None:
    world = World(stalls=Stalls(StallBounds(next_token_seconds=10, half_life_seconds=5)))
    slow, lively = world.open("e0"), world.open("e1")
    world.run(8, lively)
    world.run(60, slow, lively)
    assert world.run(13, lively) == ["e0"]


def test_no_pace_makes_the_bound_longer_than_it_may_be() -> None:
    assert StallBounds().bound(Awaited.NEXT_TOKEN, 1e9) == StallBounds().most_seconds


def test_a_router_that_was_stopped_finds_nobody_at_fault() -> None:
    world = World()
    first, second = world.open("e0"), world.open("e1")
    world.run(5, first, second)
    assert world.run(1, step=3600.0) == []
    assert world.run(5, first, second) == []
    assert world.run(1, step=-50.0) == [], "a clock that goes back"
    assert world.run(5, first, second) == []


def test_an_engine_that_is_paused_is_excused() -> None:
    world = World()
    world.open("e0")
    lively = world.open("e1")
    for _ in range(20):
        assert world.run(7, lively) == []
        assert world.stalls.is_suspect("e0")
        world.stalls.excuse("e0")
        assert not world.stalls.is_suspect("e0")
    world.stalls.excuse("unknown")
    assert not world.stalls.is_suspect("unknown")


def test_a_head_alone_is_no_delivery() -> None:
    world = World()
    world.open("e0")
    lively = world.open("e1")
    told = []
    for _ in range(15):
        world.open("e0", tokens=False)
        told += world.run(1, lively)
    assert told == ["e0"]


def test_engines_that_are_gone_are_forgotten() -> None:
    world = World()
    world.run(1, world.open("e0"), world.open("e1"))
    world.stalls.keep(["e1"])
    assert not world.stalls.is_delivering("e0")
    assert world.stalls.is_delivering("e1")


@settings(max_examples=50, deadline=None)
@given(
    busy=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=120),
)
def test_only_an_engine_that_was_silent_for_its_bound_is_ever_told(busy: list[list[bool]]) -> None:
    world = World(("e0", "e1", "e2"))
    attempts = [world.open(name) for name in world.engines]
    world.run(1, *attempts)
    silent = dict.fromkeys(world.engines, 0)
    for row in busy:
        active = [attempt for attempt, works in zip(attempts, row, strict=True) if works]
        told = world.run(1, *active)
        for attempt in attempts:
            silent[attempt.engine] = 0 if attempt in active else silent[attempt.engine] + 1
        assert all(silent[engine] >= BOUNDS.next_token_seconds for engine in told)
    assert BOUNDS.next_token_seconds > OTHERS_SECONDS
