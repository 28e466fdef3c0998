"""The CPU tier behind the prefix cache."""

from collections import OrderedDict
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_sim.engine import EngineConfig, FinishedRequest
from rolloutpool_sim.leap import LeapEngine, LeapRequest, Offload, Segment
from rolloutpool_sim.leap.offload import CpuTier
from rolloutpool_sim.leap.streams import Trie
from rolloutpool_sim.profile import load_builtin, prefill_seconds

SPEED = load_builtin("emulated-8b-h100").at(1)
PER_BLOCK = 1e-4


def _engine(gpu: int, cpu: int | None, *, sequences: int = 8) -> LeapEngine:
    config = EngineConfig(
        num_blocks=gpu + 1, max_model_len=gpu * 16, max_num_seqs=sequences, max_num_batched_tokens=512
    )
    offload = None if cpu is None else Offload(blocks=cpu, seconds_per_block=PER_BLOCK, seconds_per_load=0.01)
    return LeapEngine(config, SPEED, offload=offload)


def _request(name: str, *segments: tuple[str, int], output: int = 1) -> LeapRequest:
    return LeapRequest(name, tuple(Segment(key, tokens) for key, tokens in segments), output)


def _drain(engine: LeapEngine) -> dict[str, FinishedRequest]:
    ended: dict[str, FinishedRequest] = {}
    while (event := engine.next_event()) is not None:
        ended |= {end.request_id: end for end in engine.advance(event)}
    return ended


def test_what_the_gpu_has_lost_comes_back_from_the_cpu() -> None:
    engine = _engine(gpu=40, cpu=100)
    engine.add(_request("a", ("x", 400), output=81), 0.0)
    _drain(engine)
    engine.add(_request("b", ("y", 400)), 10.0)  # takes 25 of 40 blocks, 10 were blank and 15 were x's tail
    _drain(engine)
    engine.add(_request("c", ("x", 500)), 20.0)
    assert engine.next_event() == 20.0
    engine.advance(20.0)
    assert (engine.running, engine.waiting) == (0, 1), "it waits for its blocks"
    assert engine.used_blocks == 30
    c = _drain(engine)["c"]
    assert (c.cached_tokens, c.remote_tokens) == (240, 240)
    assert c.queue_seconds == pytest.approx(0.01 + 15 * PER_BLOCK)
    assert c.prefill_seconds == pytest.approx(prefill_seconds(SPEED, uncached_tokens=20, cached_tokens=480))
    assert engine.counters.external_prefix_cache_queries == 400 + 400 + 500 - 240
    assert engine.counters.external_prefix_cache_hits == 240
    assert engine.counters.prompt_tokens_remote == 240


def test_others_run_while_a_request_loads() -> None:
    outcomes: list[dict[str, float]] = []
    for eager in (False, True):
        engine = _engine(gpu=40, cpu=100)
        for name, start in (("x", 0.0), ("y", 5.0)):
            engine.add(_request(name, (name, 500)), start)
            _drain(engine)
        engine.add(_request("x2", ("x", 510), output=3), 10.0)
        engine.add(_request("z", ("z", 16), output=200), 10.0)
        if not eager:
            engine.advance(10.0)
            assert (engine.running, engine.waiting) == (1, 1)
        ended = {end.request_id: end for end in engine.advance(100.0)} if eager else _drain(engine)
        assert ended["x2"].remote_tokens > 0
        assert ended["z"].queue_seconds == 0.0
        assert ended["x2"].finished_at < ended["z"].finished_at
        outcomes.append({name: end.finished_at for name, end in ended.items()})
    assert outcomes[0] == pytest.approx(outcomes[1])


def test_samples_of_one_prompt_load_it_once() -> None:
    engine = _engine(gpu=150, cpu=400)
    for name, tokens in (("x", 600), ("y", 2300)):
        engine.add(_request(name, (name, tokens)), 0.0)
        _drain(engine)
    for sample in "abc":
        engine.add(_request(sample, ("x", 610), (sample, 0), output=5), 10.0)
    ended = _drain(engine)
    assert ended["a"].cached_tokens + ended["a"].remote_tokens == 592
    assert ended["a"].remote_tokens > 16 * 16
    for sample in "bc":
        assert (ended[sample].cached_tokens, ended[sample].remote_tokens) == (608, 0)
    assert len({end.finished_at for end in ended.values()}) == 1


def test_two_loads_do_not_take_each_other_the_room_to_go_on() -> None:
    engine = _engine(gpu=40, cpu=100)
    for name, tokens in (("x", 300), ("y", 170), ("z", 600)):
        engine.add(_request(name, (name, tokens)), 0.0)
        _drain(engine)
    engine.add(_request("a", ("x", 600)), 10.0)
    engine.add(_request("b", ("y", 320)), 10.0)
    engine.advance(10.0)
    assert engine.waiting == 2
    assert engine.used_blocks == 18, "b does not load while a still needs 20 of the 22 blocks left"
    ended = _drain(engine)
    assert list(ended) == ["a", "b"]
    assert (ended["a"].remote_tokens, ended["b"].remote_tokens) == (288, 160)


def test_a_preempted_request_loads_what_it_had() -> None:
    recomputed = []
    for cpu in (None, 200):
        engine = _engine(gpu=30, cpu=cpu)
        for name in "abc":
            engine.add(_request(name, (name, 100), output=200), 0.0)
        ended = _drain(engine)
        assert engine.counters.preemptions > 0
        assert {end.output_tokens for end in ended.values()} == {200}
        assert all(end.remote_tokens == 0 for end in ended.values()), "its first admission loaded nothing"
        recomputed.append(engine.counters.recomputed_tokens)
    assert 0 < recomputed[1] < recomputed[0]


def test_an_abort_while_loading_gives_the_blocks_back() -> None:
    engine = _engine(gpu=40, cpu=100)
    for name in "xy":
        engine.add(_request(name, (name, 600)), 0.0)
        _drain(engine)
    engine.add(_request("a", ("x", 610), ("a", 0)), 10.0)
    engine.add(_request("b", ("x", 610), ("b", 0)), 10.0)
    engine.advance(10.0)
    assert (engine.running, engine.waiting) == (0, 2)
    assert engine.abort(["a"], 10.001)[0].reason == "abort"
    assert engine.used_blocks == 0
    assert _drain(engine)["b"].remote_tokens > 0, "b loads the prompt itself now"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"blocks": 0, "seconds_per_block": 0.1}, id="no blocks"),
        pytest.param({"blocks": 1, "seconds_per_block": -0.1}, id="negative time"),
    ],
)
def test_malformed_tiers(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"offload tier needs|must not be negative"):
        Offload(blocks=int(fields["blocks"]), seconds_per_block=fields["seconds_per_block"])


PROMPTS: list[tuple[Segment, ...]] = [
    (Segment("s", 5), Segment(group, 7), Segment(own, 40))
    for group, own in (("g", "a"), ("g", "b"), ("h", "c"), ("h", "d"))
]


@settings(max_examples=150, deadline=None)
@given(
    blocks=st.integers(1, 30),
    uses=st.lists(st.tuples(st.booleans(), st.sampled_from(PROMPTS), st.integers(0, 13)), max_size=30),
)
def test_the_tier_is_an_lru_cache_of_blocks(
    blocks: int, uses: Sequence[tuple[bool, tuple[Segment, ...], int]]
) -> None:
    """Against one that keeps each block by itself. A prompt that is too long keeps its beginning."""
    trie, tier = Trie(4), CpuTier(Offload(blocks=blocks, seconds_per_block=0.0))
    paths = {prompt: trie.path(prompt) for prompt in PROMPTS}
    for path in paths.values():
        path[-1][0].users += 1
    model: OrderedDict[tuple[object, ...], None] = OrderedDict()
    for store, prompt, upto in uses:
        keys = [_key(prompt, index) for index in range(upto)]
        if store:
            tier.store(paths[prompt], upto)
            used = keys
        else:
            here = next((index for index, key in enumerate(keys) if key not in model), upto)
            assert tier.find(paths[prompt], start=0, limit=upto) == here
            used = keys[:here]
        for key in reversed(used):
            model[key] = None
            model.move_to_end(key)
        while len(model) > blocks:
            model.popitem(last=False)
        assert tier.used == len(model)


def _key(prompt: tuple[Segment, ...], index: int) -> tuple[object, ...]:
    """A block of 4 tokens is known by the segments up to the one in which it ends, and its number."""
    tokens = 0
    for place, segment in enumerate(prompt):
        tokens += segment.tokens
        if index * 4 + 4 <= tokens:
            return (*(one.key for one in prompt[: place + 1]), index)
    return (*(one.key for one in prompt), index)


@st.composite
def _loads(draw: st.DrawFn) -> list[tuple[float, LeapRequest]]:
    requests = []
    for number in range(draw(st.integers(1, 14))):
        group = draw(st.integers(0, 3))
        prompt = (
            ("s", 40),
            (f"g{group}", 30 * group),
            (f"p{draw(st.integers(0, 3))}", draw(st.integers(1, 150))),
        )
        request = _request(str(number), *prompt, output=draw(st.integers(1, 120)))
        requests.append((draw(st.sampled_from([0.0, 0.1]) | st.floats(0, 3)), request))
    return sorted(requests, key=lambda arrival: arrival[0])


@settings(max_examples=100, deadline=None)
@given(load=_loads(), gpu=st.integers(24, 60), cpu=st.integers(1, 200), sequences=st.integers(1, 8))
def test_every_request_ends_with_any_tier(
    load: list[tuple[float, LeapRequest]], gpu: int, cpu: int, sequences: int
) -> None:
    engine = _engine(gpu=gpu, cpu=cpu, sequences=sequences)
    ended: dict[str, FinishedRequest] = {}
    events = 0
    while load or engine.running or engine.waiting or engine.next_event() is not None:
        events += 1
        assert events < 20000, "the engine does not finish"
        event = engine.next_event()
        if load and (event is None or load[0][0] <= event):
            at, request = load.pop(0)
            engine.add(request, at)
        elif event is not None:
            ended |= {end.request_id: end for end in engine.advance(event)}
        assert engine.tier is not None
        assert engine.tier.used <= cpu
        assert 0 <= engine.used_blocks <= gpu
    assert engine.used_blocks == 0
    for end in ended.values():
        assert end.output_tokens == min(end.max_tokens, gpu * 16 - end.prompt_tokens)
        assert end.cached_tokens + end.remote_tokens < end.prompt_tokens
