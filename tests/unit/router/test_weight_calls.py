"""Control calls: which there are, how answers are merged, and what each engine is told of its rank."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.weight_calls import (
    CALLS,
    BadCall,
    EngineResult,
    Merge,
    check_update,
    empties_cache,
    fully_awake,
    init_bodies,
    merge,
    rank_offsets,
    stable_order,
    told_version,
)


def result(engine: str, body: Any = None, status: int = 200, error: str = "") -> EngineResult:
    raw = b"" if body is None else json.dumps(body).encode()
    return EngineResult(engine=engine, url=f"http://{engine}", status=status, body=raw, error=error)


def merged(path: str, *results: EngineResult, stale: dict[str, str] | None = None) -> tuple[int, Any]:
    answer = merge(CALLS[path], results, stale)
    return answer.status, json.loads(answer.body) if answer.body else None


def entry(engine: str, status: int, **fields: Any) -> dict[str, Any]:
    return {"engine": engine, "url": f"http://{engine}", "status": status, "ok": status < 300, **fields}


def failed(message: str, kind: str = "server_error") -> dict[str, Any]:
    return {"message": message, "type": kind, "param": None, "code": "engine_call_failed"}


LOST = result("b", status=502, error="no connection")
PAUSED, RUNS = {"is_paused": True}, {"is_paused": False}


@pytest.mark.parametrize(
    ("path", "results", "expected"),
    [
        pytest.param(
            "/pause", [result("a", {"status": "paused"})], (200, {"status": "paused"}), id="one engine"
        ),
        pytest.param(
            "/pause",
            [result("a", {"status": "paused"}), result("b", {"status": "paused"})],
            (200, {"status": "paused"}),
            id="all the same: that answer",
        ),
        pytest.param(
            "/reset_mm_cache", [result("a"), result("b")], (200, None), id="no body is an answer too"
        ),
        pytest.param(
            "/pause",
            [result("a", {"error": "x"}, 400), result("b", {"error": "x"}, 400)],
            (400, {"error": "x"}),
            id="all refuse in the same words: those words",
        ),
        pytest.param(
            "/weight_info",
            [result("a", {"weight_version": "1"}), result("b", {"weight_version": "2"})],
            (
                200,
                {
                    "results": [
                        entry("a", 200, body={"weight_version": "1"}),
                        entry("b", 200, body={"weight_version": "2"}),
                    ]
                },
            ),
            id="different answers are listed",
        ),
        pytest.param(
            "/update_weights",
            [result("a", {"message": "ok"}), LOST],
            (
                502,
                {
                    "error": failed("1 of 2 engines failed: b: no connection"),
                    "results": [
                        entry("a", 200, body={"message": "ok"}),
                        entry("b", 502, error="no connection"),
                    ],
                },
            ),
            id="one lost: nothing is well",
        ),
        pytest.param(
            "/update_weights",
            [result("a", "bad", 400), result("b", "bad", 500)],
            (
                500,
                {
                    "error": failed('2 of 2 engines failed: a: status 400: "bad"; b: status 500: "bad"'),
                    "results": [entry("a", 400, body="bad"), entry("b", 500, body="bad")],
                },
            ),
            id="the worst status counts",
        ),
        pytest.param(
            "/is_paused", [result("a", PAUSED), result("b", PAUSED)], (200, PAUSED), id="all paused"
        ),
        pytest.param(
            "/is_paused",
            [result("a", PAUSED), result("b", RUNS)],
            (
                200,
                {"is_paused": False, "results": [entry("a", 200, body=PAUSED), entry("b", 200, body=RUNS)]},
            ),
            id="one runs: not paused, and which",
        ),
        pytest.param(
            "/get_world_size",
            [result("a", {"world_size": 4}), result("b", {"world_size": 2})],
            (200, {"world_size": 6}),
            id="world sizes add up",
        ),
        pytest.param(
            "/get_world_size",
            [result("a", {"world_size": 4}), result("b", {})],
            (
                502,
                {
                    "error": failed("an engine's answer has no world_size"),
                    "results": [entry("a", 200, body={"world_size": 4}), entry("b", 200, body={})],
                },
            ),
            id="no sum without all its parts",
        ),
        pytest.param(
            "/get_world_size",
            [result("a", {"world_size": 4}), LOST],
            (
                502,
                {
                    "error": failed("1 of 2 engines failed: b: no connection"),
                    "results": [
                        entry("a", 200, body={"world_size": 4}),
                        entry("b", 502, error="no connection"),
                    ],
                },
            ),
            id="no sum with an engine lost",
        ),
        pytest.param("/server_info", [LOST, result("a", {"x": 1})], (200, {"x": 1}), id="any good one"),
    ],
)
def test_merge(path: str, results: list[EngineResult], expected: tuple[int, Any]) -> None:
    assert merged(path, *results) == expected


def test_a_list_of_results_names_stale_engines() -> None:
    _, body = merged("/pause", result("a", {}), LOST, stale={"b": "has weights '1'"})
    assert [item.get("stale") for item in body["results"]] == [None, "has weights '1'"]


RESULTS = st.lists(
    st.builds(
        result,
        st.sampled_from("abcdef"),
        st.sampled_from([None, {"is_paused": True}, {"world_size": 2}, {"status": "x"}]),
        st.sampled_from([200, 204, 302, 400, 409, 500, 503]),
        st.sampled_from(["", "", "gone"]),
    ),
    min_size=1,
    max_size=6,
)


@given(st.sampled_from(sorted(CALLS)), RESULTS)
def test_a_merge_is_all_or_nothing(path: str, results: list[EngineResult]) -> None:
    call = CALLS[path]
    answer = merge(call, results)
    good = all(item.ok for item in results)
    if call.merge is Merge.FIRST:
        good = any(item.ok for item in results)
    if call.merge is Merge.SUM:
        good = good and all(item.field(call.field) is not None for item in results)
    assert (200 <= answer.status < 300) is good
    if answer.status >= 400 and len(results) > 1 and len({item.body for item in results}) > 1:
        body = json.loads(answer.body)
        assert len(body["results"]) == len(results)
        assert body["error"].keys() == {"message", "type", "param", "code"}


@given(st.integers(0, 100), st.lists(st.integers(1, 16), max_size=20))
def test_ranks_are_given_out_without_gap_or_overlap(base: int, worlds: list[int]) -> None:
    offsets = rank_offsets(base, worlds)
    ranks = [
        rank for offset, world in zip(offsets, worlds, strict=True) for rank in range(offset, offset + world)
    ]
    assert ranks == list(range(base, base + sum(worlds)))


@given(
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    st.integers(1, 8),
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
)
def test_engines_are_told_their_rank_and_all_else_as_it_came(
    extra: dict[str, int], base: int, worlds: list[int]
) -> None:
    info = {**extra, "rank_offset": base, "world_size": base + sum(worlds)}
    bodies = init_bodies(json.dumps({"init_info": info, "more": [1]}).encode(), worlds)
    for body, offset in zip(bodies, rank_offsets(base, worlds), strict=True):
        assert json.loads(body) == {"init_info": info | {"rank_offset": offset}, "more": [1]}


def test_without_a_rank_the_body_goes_out_as_it_came() -> None:
    raw = b'{ "init_info": {} }'
    assert init_bodies(raw, [2, 2]) == (raw, raw)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"nonsense", "no JSON", id="no JSON"),
        pytest.param(b"[]", "JSON object", id="no object"),
        pytest.param(b'{"init_info": {"rank_offset": "1"}}', "rank_offset must be", id="no number"),
        pytest.param(b'{"init_info": {"rank_offset": true}}', "rank_offset must be", id="a truth"),
        pytest.param(
            b'{"init_info": {"rank_offset": 1, "world_size": 4}}',
            "world_size 4 has no room for the 4 workers of the pool's 2 engines after rank_offset 1",
            id="an engine joined since the world size was asked",
        ),
    ],
)
def test_a_group_that_cannot_come_about_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(BadCall, match=message):
        init_bodies(body, [2, 2])


def test_a_list_by_worker_goes_to_one_engine_only() -> None:
    check_update(b'{"update_info": [{}]}', 1)
    check_update(b'{"update_info": {}}', 2)
    with pytest.raises(BadCall, match="by its own address"):
        check_update(b'{"update_info": [{}]}', 2)


@pytest.mark.parametrize(
    ("path", "body", "version"),
    [
        pytest.param("/finish_weight_update", b'{"weight_version": "7"}', "7", id="finish"),
        pytest.param("/finish_weight_update", b"", None, id="finish without"),
        pytest.param("/finish_weight_update", b'{"weight_version": 7}', None, id="no text"),
        pytest.param("/update_weight_version", b'{"new_version": "8"}', "8", id="version"),
        pytest.param("/update_weights", b'{"weight_version": "7"}', None, id="another call"),
    ],
)
def test_told_version(path: str, body: bytes, version: str | None) -> None:
    assert told_version(CALLS[path], body) == version


@pytest.mark.parametrize(
    ("body", "query", "awake"),
    [
        pytest.param({"status": "awake"}, {}, True, id="says so"),
        pytest.param({"status": "sleeping", "tags": ["weights"]}, {"tags": "weights"}, False, id="in part"),
        pytest.param(None, {}, True, id="says nothing, all was asked for"),
        pytest.param(None, {"tags": "weights"}, False, id="says nothing, a part was asked for"),
    ],
)
def test_fully_awake(body: Any, query: dict[str, str], awake: bool) -> None:
    assert fully_awake([result("a", body)], query) is awake


@pytest.mark.parametrize(
    ("path", "query", "empties"),
    [
        pytest.param("/pause", {}, True, id="abort clears"),
        pytest.param("/pause", {"mode": "keep"}, False, id="keep keeps"),
        pytest.param("/pause", {"mode": "wait", "clear_cache": "false"}, False, id="told to keep"),
        pytest.param("/sleep", {"level": "0"}, False, id="sleep 0"),
        pytest.param("/sleep", {}, True, id="sleep 1"),
        pytest.param("/reset_prefix_cache", {}, True, id="reset"),
        pytest.param("/finish_weight_update", {}, True, id="new weights"),
        pytest.param("/is_paused", {}, False, id="a question"),
    ],
)
def test_what_empties_the_prefix_cache(path: str, query: dict[str, str], empties: bool) -> None:
    assert empties_cache(CALLS[path], query) is empties


def test_engines_are_ordered_by_number() -> None:
    names = ["pool-decode-tp1-10", "pool-decode-tp1-2", "pool-aggregated-tp1-0", "pool-decode-tp16-0", "9"]
    assert stable_order(names) == (
        "9",
        "pool-aggregated-tp1-0",
        "pool-decode-tp1-2",
        "pool-decode-tp1-10",
        "pool-decode-tp16-0",
    )


@given(st.lists(st.text(max_size=8)))
def test_any_names_have_one_order(names: list[str]) -> None:
    assert stable_order(names) == stable_order(reversed(names))
