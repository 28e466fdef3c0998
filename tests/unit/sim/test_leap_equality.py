"""The leaping engine against the exact one on the same traces: the same decisions, at the same times."""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_sim.engine import Counters, Engine, EngineConfig, EngineRequest, FinishedRequest
from rolloutpool_sim.leap import LeapEngine, LeapRequest, Segment
from rolloutpool_sim.leap.streams import Extent, Stream
from rolloutpool_sim.profile import load_builtin

SPEED = load_builtin("emulated-8b-h100").at(1)


@dataclass(frozen=True)
class Session:
    """Turns that follow each other: each begins `gap` seconds after the one before has ended."""

    start: float
    turns: tuple[tuple[LeapRequest, float], ...]


@dataclass(frozen=True)
class Trace:
    config: EngineConfig
    sessions: tuple[Session, ...]
    aborts: tuple[tuple[float, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Seen:
    """A request that ended, and the engine as it was right then."""

    request: FinishedRequest
    used_blocks: int
    evicted: int
    steps: int


@dataclass
class Arrivals:
    """What comes to the engine when; turns are put in as their predecessors end."""

    trace: Trace
    heap: list[tuple[float, int, Sequence[tuple[LeapRequest, float]] | tuple[str, ...]]] = field(
        default_factory=list
    )
    open: dict[str, Sequence[tuple[LeapRequest, float]]] = field(default_factory=dict)
    order: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        for session in self.trace.sessions:
            self._push(session.start, session.turns)
        for at, request_ids in self.trace.aborts:
            self._push(at, request_ids)

    def _push(self, at: float, what: Sequence[tuple[LeapRequest, float]] | tuple[str, ...]) -> None:
        heapq.heappush(self.heap, (at, next(self.order), what))

    def pop(self) -> tuple[float, LeapRequest | tuple[str, ...]]:
        at, _, what = heapq.heappop(self.heap)
        if isinstance(what[0], str):
            return at, tuple(str(one) for one in what)
        turns = [one for one in what if not isinstance(one, str)]
        self.open[turns[0][0].request_id] = turns
        return at, turns[0][0]

    def ended(self, request: FinishedRequest) -> None:
        turns = self.open.pop(request.request_id)
        if len(turns) > 1:
            self._push(request.finished_at + turns[0][1], turns[1:])


class Tokens:
    """Token ids of segments: those of one stream behind one prefix are the same, all others differ."""

    def __init__(self) -> None:
        self._streams: dict[tuple[object, ...], int] = {}

    def request(self, request: LeapRequest) -> EngineRequest:
        prompt: list[int] = []
        path: tuple[object, ...] = ()
        first = tokens = 0
        for segment in request.prompt:
            path = (*path, segment.key)
            first = self._streams.setdefault(path, len(self._streams)) * 1_000_003
            tokens = segment.tokens
            prompt += range(first, first + tokens)
            path = (*path, tokens)
        return EngineRequest(
            request_id=request.request_id,
            prompt=prompt,
            max_tokens=request.output_tokens,
            stop_after=request.output_tokens,
            next_token=lambda position: first + tokens + position,
        )


def run_exact(trace: Trace) -> tuple[Engine, list[Seen]]:
    """Drive the exact engine in real time: step after step, arrivals seen by the step after them."""
    engine, tokens, arrivals = Engine(trace.config, SPEED), Tokens(), Arrivals(trace)
    seen: list[Seen] = []
    ending: Iterable[FinishedRequest] = ()
    now = 0.0

    def end(request: FinishedRequest) -> None:
        seen.append(Seen(request, engine.pool.used_blocks, engine.pool.evicted, engine.counters.steps))
        arrivals.ended(request)

    while arrivals.heap or engine.running or engine.waiting or ending:
        while arrivals.heap and arrivals.heap[0][0] <= now:
            at, what = arrivals.pop()
            if isinstance(what, LeapRequest):
                engine.add(tokens.request(what), at)
            else:
                for request in engine.abort(what, at):
                    end(request)
        step = engine.step(now)
        for request in ending:
            end(request)
        ending = step.finished
        if step.scheduled:
            now = step.ends_at
        elif arrivals.heap:
            now = max(now, arrivals.heap[0][0])
    return engine, seen


def run_leap(trace: Trace) -> tuple[LeapEngine, list[Seen]]:
    """Drive the leaping engine from event to event, and check its books after each."""
    engine, arrivals = LeapEngine(trace.config, SPEED), Arrivals(trace)
    seen: list[Seen] = []

    def end(requests: Iterable[FinishedRequest]) -> None:
        for request in requests:
            seen.append(Seen(request, engine.used_blocks, engine.evicted, engine.counters.steps))
            arrivals.ended(request)

    while True:
        event = engine.next_event()
        if arrivals.heap and (event is None or arrivals.heap[0][0] <= event):
            at, what = arrivals.pop()
            if isinstance(what, LeapRequest):
                engine.add(what, at)
            else:
                end(engine.abort(what, at))
        elif event is None:
            return engine, seen
        else:
            end(engine.advance(event))
        check_books(engine)


def check_books(engine: LeapEngine) -> None:
    """Every block is held, cached or blank; streams without overlaps have no gaps; no stream is forgotten."""
    held = free = streams = 0
    todo: list[Stream] = [engine.trie.root]
    while todo:
        stream = todo.pop()
        todo += stream.children.values()
        streams += 1
        assert stream.parent is None or stream.extents or stream.users or stream.children
        for extent in stream.extents:
            assert extent.hi > extent.lo
            assert all(extent in holder.extents for holder in extent.holders)
            if extent.holders:
                held += extent.hi - extent.lo
            else:
                free += extent.hi - extent.lo
        if not stream.overlapping:
            assert _ends(stream.extents[:-1]) == [extent.lo for extent in stream.extents[1:]]
    pool = engine.pool
    assert free <= pool.free
    assert held <= engine.used_blocks <= held + engine.running * _unhashed(engine)
    assert streams <= 1 + 3 * (pool.usable + engine.running + engine.waiting)
    if not engine.running and not engine.waiting:
        assert engine.used_blocks == held == 0


def _ends(extents: Sequence[Extent]) -> list[int]:
    return [extent.hi for extent in extents]


def _unhashed(engine: LeapEngine) -> int:
    """Most blocks that one request holds beyond its cached ones: not full, or filled during leaps."""
    return -(-engine.config.max_model_len // engine.config.block_size)


def assert_equal(trace: Trace) -> Counters:
    """Both engines do the same; return the counters for a look at what the trace was about."""
    exact, expected = run_exact(trace)
    leap, actual = run_leap(trace)
    assert [one.request.request_id for one in actual] == [one.request.request_id for one in expected]
    for one, other in zip(actual, expected, strict=True):
        assert (one.used_blocks, one.evicted, one.steps) == (other.used_blocks, other.evicted, other.steps)
        for value, wanted in zip(astuple(one.request), astuple(other.request), strict=True):
            if isinstance(wanted, float):
                assert math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-9), (one, other)
            else:
                assert value == wanted, (one, other)
    assert leap.counters == exact.counters
    assert leap.evicted == exact.pool.evicted
    return leap.counters


def _config(blocks: int, block_size: int = 4, **limits: Any) -> EngineConfig:
    fields: dict[str, Any] = {
        "max_model_len": blocks * block_size,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
    }
    return EngineConfig(num_blocks=blocks + 1, block_size=block_size, **(fields | limits))


def _turns(
    name: str,
    shared: Sequence[tuple[str, int]],
    own: int,
    turns: Sequence[tuple[int, int, float]],
    *,
    stream: str = "",
) -> tuple[tuple[LeapRequest, float], ...]:
    """Turns of a session given as (output tokens, tokens appended after it, gap)."""
    made: list[tuple[LeapRequest, float]] = []
    for number, (output, append, gap) in enumerate(turns):
        prompt = (*(Segment(key, tokens) for key, tokens in shared), Segment(stream or name, own))
        made.append((LeapRequest(f"{name}.{number}", prompt, output), gap))
        own += output + append
    return tuple(made)


@st.composite
def _traces(draw: st.DrawFn) -> Trace:
    """Small caches, shared prefixes of odd and of full blocks, several turns, some streams in use twice."""
    size = draw(st.sampled_from([1, 2, 4, 4, 16]))
    blocks = draw(st.sampled_from([12, 20, 40, 90]))
    sequences = draw(st.sampled_from([1, 2, 4, 8, 16]))
    budget = sequences + draw(st.sampled_from([0, 3, 30, 300]))
    longest = blocks * size // draw(st.sampled_from([1, 1, 2]))
    tokens = st.sampled_from([0, size, 2 * size]) | st.integers(0, longest // 4)
    systems, groups = [draw(tokens) for _ in range(2)], [draw(tokens) for _ in range(3)]
    output = st.sampled_from([1, 2]) | st.integers(1, max(longest // 2, 2))
    gap = st.sampled_from([0.0, 0.001, 0.3])
    twice = draw(st.booleans())
    sessions: list[Session] = []
    for number in range(draw(st.integers(1, 14))):
        group = draw(st.integers(0, 2))
        shared = [(f"s{group % 2}", systems[group % 2]), (f"g{group}", groups[group])]
        stream = f"p{draw(st.integers(0, 2))}" if twice else ""
        turns = draw(
            st.lists(st.tuples(output, st.sampled_from([0, 1, size, 3 * size]), gap), min_size=1, max_size=4)
        )
        own = draw(tokens)
        if own + shared[0][1] + shared[1][1] == 0:
            own = 1
        made = _turns(str(number), shared, own, turns, stream=stream)
        fitting = tuple(turn for turn in made if turn[0].prompt_tokens < longest)
        if fitting:
            sessions.append(Session(draw(st.sampled_from([0.0, 0.02, 0.1]) | st.floats(0, 2)), fitting))
    names = [turn[0].request_id for session in sessions for turn in session.turns]
    aborted = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True) if names else st.nothing()
    aborts = draw(st.lists(st.tuples(st.floats(0, 2), aborted.map(tuple)), max_size=2)) if names else []
    config = _config(
        blocks, size, max_model_len=longest, max_num_seqs=sequences, max_num_batched_tokens=budget
    )
    return Trace(config, tuple(sessions), tuple(aborts))


@settings(max_examples=200, deadline=None)
@given(trace=_traces())
def test_any_trace_goes_as_in_the_exact_engine(trace: Trace) -> None:
    assert_equal(trace)


def _group(samples: int, prompt: int, output: int, *, at: float = 0.0, name: str = "a") -> list[Session]:
    shared = [("system", 10), (f"group {name}", prompt)]
    return [
        Session(at, _turns(f"{name}{number}", shared, 0, [(output + number, 0, 0.0)]))
        for number in range(samples)
    ]


def _chat(number: int, turns: int, *, at: float = 0.0, gap: float = 0.05, prompt: int = 20) -> Session:
    shared = [("system", 24), (f"task {number // 4}", 9)]
    steps = [(5 + (number + turn) % 7, 3 + turn, gap * (1 + number % 3)) for turn in range(turns)]
    return Session(at, _turns(f"chat{number}", shared, prompt, steps))


def _again(name: str, stream: str, own: int, output: int, at: float, *, system: int = 10) -> Session:
    return Session(at, _turns(name, [("system", system)], own, [(output, 0, 0.0)], stream=stream))


ADVERSARIAL = [
    pytest.param(
        Trace(_config(60), tuple(_group(8, 26, 12))), 0, id="a group whose prompt ends with a block: copies"
    ),
    pytest.param(Trace(_config(24), tuple(_group(8, 13, 30))), 5, id="a group too large for the cache"),
    pytest.param(
        Trace(
            _config(40, max_num_seqs=16, max_num_batched_tokens=16),
            tuple(session for g in range(6) for session in _group(5, 7 + g, 25, at=0.004 * g, name=str(g))),
        ),
        20,
        id="a burst of groups in chunks of 16 tokens",
    ),
    pytest.param(
        Trace(_config(50), tuple(_chat(number, 6, at=0.01 * number) for number in range(12))),
        1,
        id="sessions of many turns with gaps",
    ),
    pytest.param(
        Trace(_config(400), tuple(_chat(number, 8, prompt=300) for number in range(12))),
        0,
        id="long prompts evict each other's tails between the turns",
    ),
    pytest.param(
        Trace(_config(60, max_num_seqs=2), tuple(_chat(number, 3) for number in range(9))),
        0,
        id="more requests than sequences",
    ),
    pytest.param(
        Trace(
            _config(70),
            (_again("a", "x", 3, 60, 0.0), _again("b", "x", 3, 60, 0.0), _again("c", "x", 20, 60, 0.05)),
        ),
        0,
        id="one stream generated three times at once",
    ),
    pytest.param(
        Trace(
            _config(30, max_num_batched_tokens=8),
            (_again("a", "x", 3, 70, 0.0), _again("b", "x", 62, 30, 0.2), _again("c", "x", 29, 40, 0.21)),
        ),
        1,
        id="a prefill overtakes the request that generates its prompt",
    ),
    pytest.param(
        Trace(
            _config(30),
            (
                _again("a", "x", 9, 60, 0.0, system=0),
                _again("b", "y", 41, 60, 0.0, system=0),
                _again("c", "x", 75, 5, 0.01, system=0),
            ),
        ),
        0,
        id="a waiting request fits once another has cached a block more of its prompt",
    ),
    pytest.param(
        Trace(
            _config(60),
            (
                _again("a", "x", 2, 6, 0.0, system=4),
                _again("b", "x", 4, 40, 0.018, system=4),
                _again("c", "x", 9, 40, 0.06, system=4),
                _again("d", "y", 9, 14, 0.0, system=4),
            ),
        ),
        0,
        id="a block filled by a decode before a prefill filled it again",
    ),
    pytest.param(
        Trace(
            _config(30),
            (_again("a", "x", 9, 40, 0.0), _again("b", "x", 9, 40, 0.3), _again("c", "y", 9, 80, 0.31)),
            aborts=((0.2, ("a",)),),
        ),
        0,
        id="an answer broken off and asked for again",
    ),
    pytest.param(
        Trace(
            _config(30, enable_prefix_caching=False),
            tuple(_chat(number, 3) for number in range(9)),
        ),
        3,
        id="without prefix caching",
    ),
    pytest.param(
        Trace(
            _config(40, max_model_len=60),
            tuple(Session(0.0, _turns(str(n), [("system", 30)], n, [(100, 0, 0.0)])) for n in range(4)),
        ),
        0,
        id="answers cut off by max_model_len",
    ),
]


@pytest.mark.parametrize(("trace", "preemptions"), ADVERSARIAL)
def test_hard_cases_go_as_in_the_exact_engine(trace: Trace, preemptions: int) -> None:
    assert assert_equal(trace).preemptions >= preemptions


def test_a_thrashing_mix_of_real_sizes_goes_as_in_the_exact_engine() -> None:
    """The reference mix's lengths on one engine with a small part of its cache."""
    random = Random(7)

    def tokens(median: float, sigma: float) -> int:
        return max(int(random.lognormvariate(math.log(median), sigma)), 1)

    sessions: list[Session] = []
    for group in range(6):
        prompt, start = tokens(200, 0.76), random.uniform(0, 10)
        for sample in range(8):
            shared = [("rlvr", 300), (f"rlvr {group}", prompt)]
            turns = [(min(tokens(400, 0.9), 2000), 0, 0.0)]
            sessions.append(Session(start, _turns(f"rlvr{group}.{sample}", shared, 0, turns)))
    for number in range(24):
        shared = [("tools", 6000), (f"task {number // 4}", tokens(1500, 0.6))]
        turns = [
            (tokens(60, 0.8), min(tokens(700, 1.0), 3000), random.expovariate(1 / 0.4)) for _ in range(4)
        ]
        sessions.append(Session(random.uniform(0, 10), _turns(f"agent{number}", shared, 0, turns)))
    config = EngineConfig(num_blocks=1800, max_model_len=28000, max_num_seqs=256)
    counters = assert_equal(Trace(config, tuple(sessions)))
    assert counters.preemptions > 5
    assert 0.3 < counters.prefix_cache_hits / counters.prefix_cache_queries < 0.95
