"""Mixture, passive health, outcomes, and reading token counts."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.health import HEALTHY, MAX_BACKOFF_SECONDS, EngineHealth
from rolloutpool_router.core.mixture import ConsumedRing, MixtureDebt, drift_percentage_points
from rolloutpool_router.core.outcomes import ERRORS, RETRYABLE, Outcome, Refusal
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.usage import MOST_TOKENS, UsageReader

TARGET = {"rlvr": 0.5, "rlhf": 0.3, "agentic": 0.2}


def test_the_ring_remembers_its_window() -> None:
    ring = ConsumedRing(window=3)
    for name in ["a", "a", "b", "b"]:
        ring.add(name)

    assert dict(ring.counts) == {"a": 1, "b": 2}
    ring.resize(1)
    assert (dict(ring.counts), len(ring)) == ({"b": 1}, 1)


names = st.sampled_from(sorted(TARGET))


what_happened = st.sampled_from(["entered", "failed", "consumed"])


class TestMixtureDebt:
    """A running balance: each sample is owed to all classes present, and paid to its own."""

    def test_the_one_that_enters_gets_ahead_of_the_others(self) -> None:
        debt = MixtureDebt()
        debt.entered("rlvr", TARGET, window=100)
        assert debt.behind(TARGET) == pytest.approx({"rlvr": -0.5, "rlhf": 0.3, "agentic": 0.2})

    def test_who_always_lets_the_one_furthest_behind_in_keeps_the_mixture(self) -> None:
        debt, entered = MixtureDebt(), Counter[str]()
        for _ in range(1000):
            behind = debt.behind(TARGET)
            first = max(TARGET, key=behind.__getitem__)
            debt.entered(first, TARGET, window=1000)
            entered[first] += 1
        assert entered == pytest.approx({"rlvr": 500, "rlhf": 300, "agentic": 200}, abs=1)

    def test_a_class_that_sends_nothing_is_owed_nothing(self) -> None:
        debt = MixtureDebt()
        for _ in range(100):
            debt.entered("rlvr", {"rlvr": 0.5, "rlhf": 0.3}, window=1000)
        assert debt.behind({"rlvr": 0.5, "rlhf": 0.3}) == pytest.approx({"rlvr": -37.5, "rlhf": 37.5})
        assert debt.behind(TARGET)["agentic"] == pytest.approx(0)

    def test_one_that_came_to_nothing_is_owed_again(self) -> None:
        debt = MixtureDebt()
        debt.entered("rlvr", TARGET, window=100)
        debt.failed("rlvr", TARGET, window=100)
        assert debt.behind(TARGET) == pytest.approx(dict.fromkeys(TARGET, 0.0))

    def test_what_was_consumed_of_late_corrects_it_by_no_more_than_is_tolerated(self) -> None:
        debt = MixtureDebt()
        found = []
        for _ in range(200):
            debt.consumed("rlvr", TARGET, window=1000, tolerated=30)
            found.append(-debt.behind(TARGET)["rlvr"])
        assert found == sorted(found)
        assert 20 < found[-1] <= 61

    @given(
        samples=st.lists(
            st.tuples(names, st.sets(names), st.sampled_from(["entered", "failed", "consumed"]))
        ),
        window=st.integers(10, 1000),
    )
    def test_debts_of_those_present_sum_to_nothing_and_are_bounded(
        self, samples: list[tuple[str, set[str], str]], window: int
    ) -> None:
        debt = MixtureDebt()
        for name, present, what in samples:
            shares = {one: TARGET[one] for one in present | {name}}
            if what == "consumed":
                debt.consumed(name, shares, window=window, tolerated=0.03 * window)
            else:
                (debt.entered if what == "entered" else debt.failed)(name, shares, window=window)
            behind = debt.behind(shares)
            assert sum(behind.values()) == pytest.approx(0, abs=1e-6)
            assert max(map(abs, behind.values())) <= 4 * window


@pytest.mark.parametrize(
    ("consumed", "drift"),
    [
        pytest.param({}, 0.0, id="nothing-yet"),
        pytest.param({"rlvr": 0.5, "rlhf": 0.3, "agentic": 0.2}, 0.0, id="on-target"),
        pytest.param({"rlvr": 0.6, "rlhf": 0.3, "agentic": 0.1}, 10.0, id="ten-points"),
        pytest.param({"rlvr": 1.0}, 50.0, id="one-class-alone"),
        pytest.param({"other": 1.0}, 100.0, id="nothing-in-common"),
    ],
)
def test_drift_is_the_total_variation_in_points(consumed: dict[str, float], drift: float) -> None:
    assert drift_percentage_points(TARGET, consumed) == pytest.approx(drift)


def test_an_engine_is_out_longer_with_every_error_and_never_for_ever() -> None:
    health, now, pauses = HEALTHY, 0.0, []
    for _ in range(8):
        health = health.failed(now)
        pauses.append(health.out_until - now)
        assert not health.healthy(now)
        now = health.out_until
        assert health.healthy(now)

    assert pauses == [0.5, 1, 2, 4, 8, MAX_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS]


def test_errors_of_requests_that_were_under_way_count_once() -> None:
    health = HEALTHY.failed(10.0)

    assert health.failed(10.1) == health == EngineHealth(1, 10.5)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o in ERRORS])
def test_every_answer_of_the_router_has_a_status(outcome: Outcome) -> None:
    refusal = Refusal(outcome, "why")

    assert 400 <= refusal.http_status < 600
    assert refusal.retryable == (outcome in RETRYABLE)
    assert not refusal.retryable or refusal.http_status >= 429


def json_answer(padding: str = "") -> bytes:
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    return json.dumps(
        {"text": 'say "usage": {"prompt_tokens": 99}' + padding, "usage": usage, "tail": padding}
    ).encode()


def stream(*events: str) -> bytes:
    return "".join(f"data: {event}\n\n" for event in events).encode()


CASES = [
    pytest.param(json_answer(), Usage(11, 7, 4), id="json"),
    pytest.param(json_answer("x" * 100_000), Usage(11, 7, 4), id="long-json"),
    pytest.param(
        stream('{"a":1,"usage":null}', '{"usage":{"prompt_tokens":3,"completion_tokens":2}}', "[DONE]"),
        Usage(3, 2),
        id="stream-with-usage",
    ),
    pytest.param(stream("{}", "{}", "{}", "[DONE]"), Usage(25, 3, estimated=True), id="stream-without"),
    pytest.param(b'{"text": "' + b"x" * 78 + b'"}', Usage(25, 22, estimated=True), id="json-without"),
    pytest.param(
        b'{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":5}}',
        Usage(9, 5, 4),
        id="responses",
    ),
    pytest.param(
        b'{"usage":{"input_tokens":9,"cache_read_input_tokens":4,"output_tokens":5}}',
        Usage(13, 5, 4),
        id="messages",
    ),
    pytest.param(
        b'{"usage":{"prompt_tokens":-1,"prompt_tokens_details":null,"completion_tokens":99999999999}}',
        Usage(0, MOST_TOKENS),
        id="absurd-values",
    ),
    pytest.param(b'{"usage": {"prompt_tokens": "many"}}', Usage(0, 0), id="odd-values"),
    pytest.param(b'{"usage": {"prompt_tokens": 5', Usage(25, 7, estimated=True), id="cut-off"),
]


@pytest.mark.parametrize(("answer", "usage"), CASES)
@pytest.mark.parametrize("size", [1, 7, 1_000_000])
def test_tokens_are_read_from_the_bytes_however_they_are_cut(answer: bytes, usage: Usage, size: int) -> None:
    reader = UsageReader(100)
    for start in range(0, len(answer), size):
        reader.feed(answer[start : start + size])

    assert reader.usage() == usage


@given(chunks=st.lists(st.binary(max_size=50), max_size=20))
def test_no_answer_breaks_the_reader(chunks: list[bytes]) -> None:
    reader = UsageReader(0)
    for chunk in chunks:
        reader.feed(chunk)

    assert reader.usage().prompt_tokens >= 0
