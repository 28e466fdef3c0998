"""Which engines have the pool's weights, when the pool is paused, and whom a call goes to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.weight_calls import CALLS, EngineResult
from rolloutpool_router.core.weights import (
    MISSED,
    UNFINISHED,
    EngineWeights,
    Observation,
    Pause,
    PauseCause,
    Update,
    WeightGroup,
    Weights,
    after,
    emptied,
    expired,
    give_up,
    listed,
    observed,
    paused,
    resumed,
    stale,
    targets,
)

THREE = listed(Weights(), ["e0", "e1", "e2"])


def answers(ok: str = "", failed: str = "", status: int = 500) -> list[EngineResult]:
    """Results of the engines named by their digits."""
    made = [EngineResult(engine=f"e{n}", url="", status=200, body=b"{}") for n in ok]
    return made + [EngineResult(engine=f"e{n}", url="", status=status, body=b"boom") for n in failed]


def call(
    state: Weights,
    path: str,
    ok: str = "012",
    failed: str = "",
    *,
    status: int = 500,
    body: dict[str, Any] | None = None,
    **query: str,
) -> Weights:
    """The state after a call that some engines carried out and others did not."""
    results = answers(ok, failed, status)
    return after(state, CALLS[path], results, body=json.dumps(body or {}).encode(), query=query)


def update(state: Weights, version: str | None = None, ok: str = "012") -> Weights:
    """The state after a whole weight update."""
    state = call(state, "/start_weight_update", ok)
    state = call(state, "/update_weights", ok)
    return call(state, "/finish_weight_update", ok, body={"weight_version": version} if version else {})


def said(*versions: str | None, paused: bool | None = False) -> dict[str, Observation]:
    """All engines answer, with these versions."""
    return {
        f"e{number}": Observation(connected=True, version=version, paused=paused)
        for number, version in enumerate(versions)
    }


def away(engine: str) -> dict[str, Observation]:
    return {engine: Observation(connected=False)}


def reasons(state: Weights) -> dict[str, str]:
    """Stale engines, and the beginning of why."""
    return {name: reason[:20] for name, reason in stale(state).items()}


def test_all_is_well_at_first() -> None:
    assert stale(THREE) == {}
    assert stale(observed(THREE, said("default", "default", "default"), 0.0)) == {}


def test_an_update_with_a_version_makes_it_the_pools() -> None:
    state = update(THREE, "7")
    assert (state.wanted, state.told, stale(state)) == ("7", True, {})
    state = observed(state, said("7", "7", "6"), 0.0)
    assert stale(state) == {"e2": "has weights '6', the pool has '7'"}
    assert stale(observed(state, said("7", "7", "7"), 0.0)) == {}


def test_an_engine_that_is_restarted_is_stale_until_the_next_update() -> None:
    state = observed(update(THREE), away("e1"), 0.0)
    assert stale(state) == {"e1": MISSED}
    state = observed(state, said("default", "default", "default"), 0.0)
    assert stale(state) == {"e1": MISSED}
    assert stale(update(state)) == {}


def test_an_engine_that_was_restarted_and_brought_up_by_hand_is_not_stale() -> None:
    state = observed(update(THREE, "7"), away("e1"), 0.0)
    state = observed(state, said("7", "default", "7"), 0.0)
    assert "e1" in stale(state)
    assert stale(observed(state, said("7", "7", "7"), 0.0)) == {}


def test_before_any_update_a_restart_does_no_harm() -> None:
    state = observed(observed(THREE, away("e1"), 0.0), said("default", "default", "default"), 0.0)
    assert stale(state) == {}


def test_an_engine_that_joins_later_has_missed_the_updates() -> None:
    state = listed(update(THREE), ["e0", "e1", "e2", "e3"])
    assert stale(state) == {"e3": MISSED}
    assert stale(update(state, ok="0123")) == {}


def test_an_update_that_left_an_engine_out_makes_it_stale() -> None:
    assert stale(update(THREE, ok="01")) == {"e2": MISSED}


PHASES = ("/start_weight_update", "/update_weights", "/finish_weight_update")


@pytest.mark.parametrize(
    ("first", "status"),
    [
        pytest.param(PHASES[0], 500, id="start"),
        pytest.param(PHASES[1], 500, id="update"),
        pytest.param(PHASES[1], 400, id="update refused by this engine alone"),
        pytest.param(PHASES[2], 500, id="finish"),
    ],
)
def test_an_engine_on_which_an_update_failed_is_stale_until_one_succeeds(first: str, status: int) -> None:
    state = THREE
    for step in PHASES:
        fails = PHASES.index(step) >= PHASES.index(first)
        state = call(state, step, "01", "2", status=status) if fails else call(state, step)
    assert stale(state) == {"e2": f"failed at {PHASES[2]}: status {status}: boom"}
    assert stale(update(state)) == {}


def test_an_engine_is_stale_from_the_first_part_that_it_lacks() -> None:
    state = call(THREE, "/start_weight_update")
    state = call(call(state, "/update_weights", "01", "2"), "/update_weights")
    assert list(stale(call(state, "/finish_weight_update"))) == ["e2"]


@pytest.mark.parametrize("path", PHASES)
@pytest.mark.parametrize("status", [400, 500])
def test_a_call_that_no_engine_took_before_an_update_began_changed_nothing(path: str, status: int) -> None:
    assert stale(call(THREE, path, "", "012", status=status)) == {}


@pytest.mark.parametrize("path", PHASES)
def test_a_refused_call_changed_no_weights(path: str) -> None:
    state = call(call(THREE, "/start_weight_update"), path, "", "012", status=400)
    assert stale(state) == {}


def test_an_engine_whose_update_is_one_call_is_understood() -> None:
    """Servers with calls of their own load a folder of weights without start and finish."""
    state = observed(call(THREE, "/update_weights", "01"), away("e1"), 0.0)
    assert stale(state) == {"e1": MISSED, "e2": MISSED}
    assert stale(call(state, "/update_weights")) == {}
    assert "e2" in stale(call(state, "/update_weights", "01", "2"))


def test_an_update_that_failed_everywhere_leaves_nobody_to_ask() -> None:
    state = call(call(THREE, "/start_weight_update"), "/update_weights", "", "012")
    assert len(stale(state)) == 3
    assert stale(update(state)) == {}


def test_engines_disagree_after_a_version_that_reached_some() -> None:
    state = call(update(THREE, "1"), "/update_weight_version", "01", "2", body={"new_version": "2"})
    assert stale(state) == {"e2": "has weights '1', the pool has '2'"}


def test_a_version_without_an_update_makes_weights_known_again() -> None:
    state = call(THREE, "/update_weights", "01", "2")
    assert "e2" in stale(state)
    assert stale(call(state, "/update_weight_version", body={"new_version": "2"})) == {}


@pytest.mark.parametrize(
    ("versions", "wanted", "lagging"),
    [
        pytest.param(["default"] * 3, None, [], id="base weights everywhere"),
        pytest.param([None] * 3, None, [], id="no engine says"),
        pytest.param(["7", "7", "7"], "7", [], id="all the same"),
        pytest.param(["7", "7", "default"], "7", ["e2"], id="one was restarted"),
        pytest.param(["7", "8", "8"], None, [], id="in the middle of a sync engine by engine"),
        pytest.param(["7", "8", "default"], None, ["e2"], id="the same, and one was restarted"),
        pytest.param(["7", "7", None], "7", [], id="one does not say"),
    ],
)
def test_a_version_that_nobody_told_is_learned(
    versions: list[str | None], wanted: str | None, lagging: list[str]
) -> None:
    state = observed(THREE, said(*versions), 0.0)
    assert (state.wanted, list(stale(state))) == (wanted, lagging)


def test_a_told_version_gives_way_when_all_engines_have_another() -> None:
    state = observed(update(THREE, "7"), said("8", "8", "7"), 0.0)
    assert (state.wanted, sorted(stale(state))) == ("7", ["e0", "e1"])
    state = observed(state, said("8", "8", "8"), 0.0)
    assert (state.wanted, stale(state)) == ("8", {})


def test_base_weights_never_replace_a_told_version() -> None:
    state = observed(update(THREE, "7"), said("default", "default", "default"), 0.0)
    assert (state.wanted, len(stale(state))) == ("7", 3)


def test_a_silent_engine_keeps_what_it_said() -> None:
    state = observed(update(THREE, "7"), {"e1": Observation()}, 0.0)
    assert stale(state) == {}


def test_the_group_goes_on_as_it_was_formed() -> None:
    state = call(THREE, "/init_weight_transfer_engine")
    assert state.group == WeightGroup(epoch=2, members=("e0", "e1", "e2"))
    joined = listed(state, ["e0", "e1", "e2", "e3"])
    assert reasons(joined) == {"e3": "is not in the weight"}
    assert targets(joined, CALLS["/update_weights"]).engines == ("e0", "e1", "e2")
    assert targets(joined, CALLS["/pause"]).engines == ("e0", "e1", "e2", "e3")
    assert joined.epoch == 3
    assert stale(call(joined, "/init_weight_transfer_engine", "0123")) == {}


def test_a_group_that_lost_a_member_takes_no_update() -> None:
    state = observed(call(THREE, "/init_weight_transfer_engine"), away("e1"), 0.0)
    assert targets(state, CALLS["/update_weights"]).absent == {"e1": "was restarted"}
    state = observed(state, said("default", "default", "default"), 0.0)
    assert targets(state, CALLS["/update_weights"]).absent == {"e1": "was restarted"}
    assert targets(state, CALLS["/finish_weight_update"]).engines == ("e0", "e2")
    assert targets(state, CALLS["/pause"]).engines == ("e0", "e1", "e2")
    assert reasons(state) == {"e1": "is not in the weight"}
    gone = listed(state, ["e1", "e2"])
    assert targets(gone, CALLS["/update_weights"]).absent == {"e0": "is not there", "e1": "was restarted"}


def test_a_group_that_did_not_come_about_is_none() -> None:
    state = call(THREE, "/init_weight_transfer_engine")
    assert call(state, "/init_weight_transfer_engine", "01", "2").group is None
    assert call(state, "/shutdown_weight_transfer_engine", "01", "2").group is not None
    assert call(state, "/shutdown_weight_transfer_engine").group is None


def test_without_a_group_calls_go_to_engines_that_are_there() -> None:
    state = observed(THREE, away("e1"), 0.0)
    assert targets(state, CALLS["/update_weights"]).engines == ("e0", "e2")


def test_the_epoch_tells_of_every_change_of_membership() -> None:
    epochs = [THREE.epoch]
    state = THREE
    for change in (away("e1"), said("default", "default", "default"), said("1", "1", "1")):
        state = observed(state, change, 0.0)
        epochs.append(state.epoch)
    state = listed(state, ["e0", "e1", "e2"])
    assert [*epochs, state.epoch, listed(state, ["e0"]).epoch] == [1, 2, 3, 3, 3, 4]


def test_a_pause_is_given_up_after_its_time_and_half_updated_engines_are_stale() -> None:
    state = paused(THREE, 100.0, PauseCause.PAUSE)
    state = call(call(state, "/start_weight_update"), "/update_weights")
    assert [expired(state, now, 60.0) for now in (100.0, 159.0, 160.0)] == [False, False, True]
    assert stale(state) == {}
    state = give_up(state)
    assert (state.pause, state.given_up) == (None, True)
    assert stale(state) == dict.fromkeys(("e0", "e1", "e2"), UNFINISHED)
    state = observed(state, said("default", "default", "default", paused=True), 200.0)
    assert state.pause is None  # not taken up again
    assert stale(update(state)) == {}


def test_a_pause_without_an_update_leaves_no_trace() -> None:
    assert stale(give_up(paused(update(THREE, "7"), 0.0, PauseCause.PAUSE))) == {}


@pytest.mark.parametrize(
    ("before", "engines", "after_it"),
    [
        pytest.param(None, [True, True], PauseCause.FOUND, id="all paused by somebody"),
        pytest.param(None, [True, False], None, id="one of them"),
        pytest.param(None, [None, None], None, id="nobody says"),
        pytest.param(None, [True, None], PauseCause.FOUND, id="all that say"),
        pytest.param(
            PauseCause.STARTING, [True, True], PauseCause.FOUND, id="a new router finds them paused"
        ),
        pytest.param(PauseCause.STARTING, [False, False], None, id="a new router finds them running"),
        pytest.param(PauseCause.STARTING, [None, None], None, id="a new router cannot tell"),
        pytest.param(PauseCause.FOUND, [True, False], None, id="found, and over"),
        pytest.param(
            PauseCause.PAUSE, [True, False], PauseCause.PAUSE, id="asked for, one resumed by itself"
        ),
        pytest.param(PauseCause.PAUSE, [None, None], PauseCause.PAUSE, id="asked for, nobody says"),
        pytest.param(PauseCause.PAUSE, [False, False], None, id="asked for, all resumed behind our back"),
        pytest.param(PauseCause.SLEEP, [True, True], PauseCause.SLEEP, id="asleep"),
    ],
)
def test_pauses_are_seen_at_the_engines(
    before: PauseCause | None, engines: list[bool | None], after_it: PauseCause | None
) -> None:
    state = listed(Weights(pause=Pause(since=1.0, by=before) if before else None), ["e0", "e1"])
    seen = {f"e{n}": Observation(connected=True, paused=paused) for n, paused in enumerate(engines)}
    pause = observed(state, seen, 5.0).pause
    assert (pause.by if pause else None) == after_it


def test_sleep_goes_before_pause() -> None:
    state = paused(paused(THREE, 1.0, PauseCause.PAUSE), 2.0, PauseCause.SLEEP)
    assert state.pause == Pause(since=1.0, by=PauseCause.SLEEP)
    assert paused(state, 3.0, PauseCause.PAUSE).pause == state.pause
    assert resumed(state).pause is None


def test_memory_that_was_given_back_holds_no_weights_until_they_are_updated() -> None:
    state = call(paused(THREE, 0.0, PauseCause.SLEEP), "/sleep", level="2")
    assert stale(give_up(state)) == dict.fromkeys(("e0", "e1", "e2"), UNFINISHED)
    assert stale(give_up(call(paused(THREE, 0.0, PauseCause.SLEEP), "/sleep", level="1"))) == {}
    woken = after(
        state,
        CALLS["/wake_up"],
        [EngineResult(engine="e0", url="", status=200, body=b'{"status": "awake"}')],
        body=b"",
        query={},
    )
    assert list(stale(give_up(woken))) == ["e1", "e2"]


def test_which_caches_a_call_made_void() -> None:
    success = EngineResult(engine="e0", url="", status=200, body=b'{"success": true}')
    busy = EngineResult(engine="e1", url="", status=200, body=b'{"success": false}')
    results = [success, busy, *answers(failed="2")]
    assert emptied(CALLS["/reset_prefix_cache"], results, {}) == ("e0",)
    assert emptied(CALLS["/pause"], answers("01"), {"mode": "keep"}) == ()
    assert emptied(CALLS["/finish_weight_update"], answers("01", "2"), {}) == ("e0", "e1")


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["/start_weight_update", "/update_weights", "/init_weight_transfer_engine"]),
            st.sets(st.sampled_from("012")),
        ),
        st.tuples(st.just("away"), st.sets(st.sampled_from("012"))),
        st.tuples(st.just("base"), st.just(set[str]())),
    ),
    max_size=12,
)


@given(STEPS)
def test_a_whole_update_of_a_new_group_leaves_no_engine_stale(steps: list[tuple[str, set[str]]]) -> None:
    """Whatever went wrong before, a trainer that begins anew has the whole pool."""
    state = update(THREE, "1")
    for step, engines in steps:
        if step == "away":
            state = observed(state, {f"e{n}": Observation(connected=False) for n in engines}, 0.0)
        elif step == "base":
            state = observed(state, said("default", "default", "default"), 0.0)
        else:
            state = call(state, step, "".join(sorted(set("012") - engines)), "".join(sorted(engines)))
    state = observed(state, said("default", "default", "default"), 0.0)
    state = update(call(state, "/init_weight_transfer_engine"), "2")
    assert stale(state) == {}
    assert stale(observed(state, said("2", "2", "2"), 0.0)) == {}


@given(STEPS, st.sampled_from("012"))
def test_an_engine_with_base_weights_gets_no_requests_once_there_are_others(
    steps: list[tuple[str, set[str]]], restarted: str
) -> None:
    """An engine that was restarted is stale from then until a whole update reached it."""
    state = observed(update(THREE, "1"), away(f"e{restarted}"), 0.0)
    for step, engines in steps:
        if step in ("away", "base"):
            continue
        state = call(state, step, "".join(sorted(set("012") - engines)), "".join(sorted(engines)))
        state = observed(state, said(*("default" if n == restarted else "1" for n in "012")), 0.0)
        assert f"e{restarted}" in stale(state)


def test_an_engine_is_shown_as_it_is() -> None:
    state = call(observed(THREE, said("1", "1", "1", paused=True), 0.0), "/start_weight_update", "0")
    assert state.engines["e0"] == EngineWeights(version="1", paused=True, update=Update.OPEN)
