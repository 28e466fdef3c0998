"""How the leaping engine is driven: its clock, its errors, and what it costs."""

import pytest

from rolloutpool_sim.engine import EngineConfig, FinishedRequest
from rolloutpool_sim.leap import LeapEngine, LeapRequest, Segment
from rolloutpool_sim.profile import load_builtin, prefill_seconds, step_seconds

SPEED = load_builtin("emulated-8b-h100").at(1)


def _engine(blocks: int = 64, **limits: int) -> LeapEngine:
    fields = {"max_num_seqs": 8, "max_num_batched_tokens": 64, **limits}
    config = EngineConfig(
        num_blocks=blocks + 1,
        max_model_len=blocks * 16,
        max_num_seqs=fields["max_num_seqs"],
        max_num_batched_tokens=fields["max_num_batched_tokens"],
    )
    return LeapEngine(config, SPEED)


def _request(name: str, prompt: int = 32, output: int = 4, *, shared: int = 0) -> LeapRequest:
    return LeapRequest(name, (Segment("shared", shared), Segment(name, prompt)), output)


def test_a_run_of_decodes_is_one_event() -> None:
    engine = _engine(blocks=4000)
    engine.add(_request("a", 16, output=60000), 0.0)
    events: list[float] = []
    while (event := engine.next_event()) is not None:
        events.append(event)
        ended = engine.advance(event)
    assert len(events) == 2, "the prefill begins; 60,000 tokens later the request ends"
    assert [(end.output_tokens, end.finished_at) for end in ended] == [(60000, events[-1])]
    contexts = sum(16 + number for number in range(1, 60000))
    one = step_seconds(SPEED, decode_batch=1)
    decode = 59999 * one + SPEED.decode_seconds_per_context_token * contexts
    assert ended[0].decode_seconds == pytest.approx(decode, rel=1e-9)
    assert ended[0].prefill_seconds == pytest.approx(prefill_seconds(SPEED, uncached_tokens=16))


def test_the_next_event_is_never_after_the_next_end() -> None:
    engine = _engine(max_num_seqs=2)
    for number in range(5):
        engine.add(_request(str(number), 50, output=3 + number), 0.01 * number)
    ends: list[float] = []
    while (event := engine.next_event()) is not None:
        for end in engine.advance(event):
            assert end.finished_at == event
            ends.append(event)
    assert len(ends) == 5
    assert ends == sorted(ends)


def test_an_arrival_during_a_step_is_seen_by_the_next_one() -> None:
    engine = _engine()
    engine.add(_request("a", 32, output=100), 1.0)
    assert engine.next_event() == 1.0
    assert engine.advance(1.0) == ()
    first_step = prefill_seconds(SPEED, uncached_tokens=32)
    assert engine.next_event() == pytest.approx(1.0 + first_step + _decodes(99, context=32))
    engine.add(_request("b", 32, output=1), 1.0 + first_step / 2)
    assert (engine.running, engine.waiting) == (1, 1)
    event = engine.next_event()
    assert event is not None
    assert event == pytest.approx(1.0 + first_step)
    engine.advance(event)
    assert (engine.running, engine.waiting) == (1, 0), "b's only token is there at the end of the step begun"
    end = engine.next_event()
    assert end is not None
    (b,) = engine.advance(end)
    assert b.request_id == "b"
    assert b.queue_seconds == pytest.approx(first_step / 2)
    assert b.finished_at == end


def _decodes(steps: int, *, context: int) -> float:
    """Seconds of the decode steps of one request that has `context` tokens before them."""
    return sum(
        step_seconds(SPEED, decode_batch=1, decode_context_tokens=context + number)
        for number in range(1, steps + 1)
    )


@pytest.mark.parametrize(
    "advanced", [pytest.param(False, id="before it began"), pytest.param(True, id="after")]
)
def test_a_step_sees_what_was_added_before_advance_reached_it(advanced: bool) -> None:
    engine = _engine()
    engine.add(_request("a", 32, output=100), 0.0)
    engine.advance(0.0)
    event = prefill_seconds(SPEED, uncached_tokens=32)
    if advanced:
        engine.advance(event)
    engine.add(_request("b", 32, output=50), event)
    engine.advance(event)
    assert engine.running == (1 if advanced else 2)


def test_calls_between_events_change_nothing() -> None:
    calm, restless = _engine(), _engine()
    ends: list[list[FinishedRequest]] = []
    for engine, pause in ((calm, None), (restless, 0.0007)):
        for number in range(6):
            engine.add(_request(str(number), 70, output=40, shared=100), 0.0)
        now = 0.0
        seen: list[FinishedRequest] = []
        while (event := engine.next_event()) is not None:
            now = event if pause is None else min(event, now + pause)
            seen += engine.advance(now)
        ends.append(seen)
    for one, other in zip(*ends, strict=True):
        assert (one.request_id, one.cached_tokens) == (other.request_id, other.cached_tokens)
        assert one.finished_at == pytest.approx(other.finished_at, rel=1e-9)
    assert calm.counters == restless.counters


def test_prefixes_are_shared_by_their_keys() -> None:
    engine = _engine()
    prompt = (Segment("system", 40), Segment("group", 40))
    engine.add(LeapRequest("a", (*prompt, Segment("mine", 0)), 20), 0.0)
    _drain(engine)
    assert engine.cached_tokens((*prompt, Segment("mine", 20))) == 96, "99 of 100 tokens were computed"
    assert engine.cached_tokens((*prompt, Segment("other", 20))) == 80
    assert engine.cached_tokens((Segment("system", 40), Segment("other", 40))) == 32, "no straddling block"
    assert engine.cached_tokens((Segment("system", 100),)) == 32
    assert engine.cached_tokens((Segment("group", 40),)) == 0
    assert engine.cached_tokens(()) == 0


def _drain(engine: LeapEngine) -> list[str]:
    ended: list[str] = []
    while (event := engine.next_event()) is not None:
        ended += [end.request_id for end in engine.advance(event)]
    return ended


def test_streams_are_forgotten_with_their_last_block() -> None:
    engine = _engine(blocks=20)
    for number in range(50):
        engine.add(_request(str(number), 60, output=30), float(number))
        _drain(engine)
    assert len(engine.trie.root.children) == 1, "all requests begin with the empty shared segment"
    (shared,) = engine.trie.root.children.values()
    assert len(shared.children) <= 20
    assert engine.used_blocks == 0
    assert engine.usage == 0.0


def test_aborts_of_any_kind() -> None:
    engine = _engine(max_num_seqs=2)
    for name in "abc":
        engine.add(_request(name, 70, output=20), 0.0)
    engine.advance(0.03)
    assert (engine.running, engine.waiting) == (2, 1)
    ended = engine.abort(["c", "a", "a", "nobody"], 0.031)
    assert [(end.request_id, end.reason) for end in ended] == [("c", "abort"), ("a", "abort")]
    assert ended[0].output_tokens == 0
    assert ended[1].output_tokens > 0
    assert _drain(engine) == ["b"]
    assert engine.used_blocks == 0


def test_requests_that_cannot_be_served_are_refused_with_the_numbers() -> None:
    engine = _engine(blocks=4)
    with pytest.raises(ValueError, match=r"a: its prompt of 64 tokens leaves no room .* max_model_len 64"):
        engine.add(_request("a", 64), 0.0)
    engine.add(_request("a", 63), 0.0)
    with pytest.raises(ValueError, match="id a is in use"):
        engine.add(_request("a", 3), 0.0)
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(4\) must be at least max_num_seqs \(8\)"):
        _engine(max_num_batched_tokens=4)


@pytest.mark.parametrize(
    ("segments", "output", "message"),
    [
        pytest.param((), 1, "empty prompt", id="no segment"),
        pytest.param((0, 0), 1, "empty prompt", id="no tokens"),
        pytest.param((3, -1), 1, "-1 tokens", id="less than no tokens"),
        pytest.param((3,), 0, "asks for 0 output tokens", id="no output"),
    ],
)
def test_malformed_requests(segments: tuple[int, ...], output: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LeapRequest("a", tuple(Segment(number, tokens) for number, tokens in enumerate(segments)), output)
