"""Which objects are accepted, and what is made of them."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutpool_api.status import RolloutPoolStatus
from rolloutpool_api.v1alpha1 import RolloutPool, parse_pool
from rolloutpool_router.core.demand import prior_cost
from rolloutpool_router.core.view import Ignored, PoolView, accept
from rolloutpool_router.testing import pool_object
from rolloutpool_router.wire.engine import Origin


def pool(
    *,
    caps: int | None = 5,
    revision: int = 1,
    generation: int = 1,
    uid: str = "uid-1",
    engines: tuple[str, ...] = ("e0",),
    workloads: list[dict[str, Any]] | None = None,
    admission: dict[str, Any] | None = None,
) -> RolloutPool:
    by_class = None if caps is None else {"rlvr": caps, "rlhf": caps, "agentic": caps}
    body = pool_object(
        {name: f"http://{name}:8000/" for name in engines},
        caps=by_class,
        revision=revision,
        workloads=workloads,
        admission=admission,
    )
    body["metadata"] |= {"generation": generation, "uid": uid}
    return parse_pool(body)


def accepted(old: PoolView | None, new: RolloutPool) -> PoolView:
    view = accept(old, new)
    assert isinstance(view, PoolView)
    return view


def test_engines_do_not_vanish_with_a_damaged_status() -> None:
    old = accepted(None, pool(caps=5, revision=5))
    damaged = pool(caps=5, revision=5).model_copy(update={"status": RolloutPoolStatus()})
    view = accept(old, damaged)
    assert isinstance(view, Ignored)
    assert "no engine" in view.reason


@pytest.mark.parametrize(
    ("new", "cap"),
    [
        pytest.param(pool(caps=7, revision=6), 7, id="newer-revision"),
        pytest.param(pool(caps=7, revision=5), 7, id="same-revision-with-another-part-of-them"),
        pytest.param(pool(caps=7, revision=4), None, id="older-revision"),
        pytest.param(pool(caps=7, revision=4, generation=2), 5, id="older-revision-of-a-newer-spec"),
        pytest.param(pool(caps=7, revision=9, generation=0), None, id="older-spec"),
        pytest.param(pool(caps=7, revision=1, uid="uid-2"), 7, id="made-anew"),
        pytest.param(pool(caps=None), 5, id="status-without-caps-keeps-them"),
    ],
)
def test_which_caps_are_in_force(new: RolloutPool, cap: int | None) -> None:
    old = accepted(None, pool(caps=5, revision=5))

    view = accept(old, new)

    if cap is None:
        assert isinstance(view, Ignored)
        assert "older" in view.reason
    else:
        assert isinstance(view, PoolView)
        assert view.engines["e0"].caps["rlvr"] == cap


def test_engines_are_refreshed_at_the_same_revision() -> None:
    old = accepted(None, pool())

    view = accepted(old, pool(engines=("e0", "e1")))

    assert list(view.engines) == ["e0", "e1"]
    assert view.engines["e1"].url == "http://e1:8000"


def test_an_engine_without_caps_gets_them_from_priors() -> None:
    view = accept(accepted(None, pool()), pool(engines=("e0", "e1"), caps=None), {"e1": 10_000})

    assert isinstance(view, PoolView)
    assert view.engines["e0"].caps["agentic"] == 5
    assert view.engines["e1"].caps["agentic"] > 5
    assert view.engines["e1"].protected_blocks == 10_000


@pytest.mark.parametrize(
    ("admission", "protected"),
    [
        pytest.param({"safety": 0.8}, 10_000, id="the-forecast-keeps-its-own-margin"),
        pytest.param({"safety": 0.8, "chanceConstraint": False}, 8000, id="a-fixed-reserve"),
        pytest.param({"safety": 0.8, "policy": "Static"}, 8000, id="policies-of-the-paper"),
    ],
)
def test_what_sessions_may_fill_before_any_status(admission: dict[str, Any], protected: int) -> None:
    view = accept(None, pool(caps=None, admission=admission), {"e0": 10_000})

    assert isinstance(view, PoolView)
    assert view.engines["e0"].protected_blocks == protected


@pytest.mark.parametrize(
    ("admission", "told", "seconds"),
    [
        pytest.param({}, 0, None, id="nobody-knows"),
        pytest.param({}, 40, 40, id="as-the-operator-says"),
        pytest.param({"parkIdleSeconds": 0.4}, 40, 0.4, id="as-the-spec-says"),
        pytest.param({"parking": False, "parkIdleSeconds": 7}, 40, None, id="switched-off"),
    ],
)
def test_when_sessions_are_parked(admission: dict[str, Any], told: int, seconds: float | None) -> None:
    body = pool_object({"e0": "http://e0"}, caps={"rlvr": 1}, admission=admission)
    body["status"]["admission"]["parkIdleSeconds"] = told

    assert accepted(None, parse_pool(body)).park_seconds == seconds


def test_before_any_status_caps_come_from_priors_or_are_the_floors() -> None:
    unknown, known = accept(None, pool(caps=None)), accept(None, pool(caps=None), {"e0": 5000})

    assert isinstance(unknown, PoolView)
    assert dict(unknown.engines["e0"].caps) == {"rlvr": 1, "rlhf": 1, "agentic": 1}
    assert isinstance(known, PoolView)
    caps = known.engines["e0"].caps
    used = sum(caps[name] * known.costs[name].footprint_blocks for name in known.workloads)
    assert 1000 < used <= known.engines["e0"].protected_blocks
    assert known.revision == 0


def test_a_class_that_the_status_does_not_know_yet_has_its_floor() -> None:
    workloads = [{"name": "rlvr", "share": 0.5}, {"name": "new", "share": 0.5}]

    view = accepted(accepted(None, pool()), pool(generation=2, workloads=workloads))

    assert view.engines["e0"].caps["new"] >= 1


def test_footprints_of_the_status_go_before_priors() -> None:
    body = pool_object({"e0": "http://e0"}, caps={"rlvr": 1})
    body["status"]["admission"]["classes"] = [
        {"name": "rlvr", "cap": 1, "active": 0, "waiting": 0, "footprintBlocks": 77, "residencySeconds": 9}
    ]
    read = parse_pool(body)

    view = accepted(None, read)

    assert (view.costs["rlvr"].footprint_blocks, view.costs["rlvr"].residency_seconds) == (77, 9)
    prior = prior_cost(view.workloads["rlhf"], block_size=16, slo=None)
    assert view.costs["rlhf"] == prior


def test_adapters_of_match_rules_are_models_of_the_pool() -> None:
    workloads = [{"name": "rlvr", "share": 1, "match": {"models": ["lora-a", "m"]}}]

    assert accepted(None, pool(workloads=workloads)).models == ("m", "lora-a")


@pytest.mark.parametrize(
    "url", ["http://[::x", "http://h:99999", "http://h:x", "nope://", "https://h", "http://a b", ""]
)
def test_an_object_with_a_url_that_cannot_be_used_is_ignored(url: str) -> None:
    good = accepted(None, pool())
    engine, router = pool().to_wire(), pool().to_wire()
    engine["status"]["endpoints"]["admin"][0]["url"] = url
    router["status"]["admission"]["routers"] = [{"name": "r-1", "url": url}]

    for body, name in ((engine, "e0"), (router, "r-1")):
        for old in (None, good):
            view = accept(old, parse_pool(body))
            assert isinstance(view, Ignored)
            assert f"{name} has the URL {url!r}" in view.reason


@pytest.mark.parametrize(
    "url", ["http://h", "http://h:8000/", "http://[fd00::1]:8000", "http://10.0.0.1:80/base"]
)
def test_urls_that_can_be_used(url: str) -> None:
    body = pool().to_wire()
    body["status"]["endpoints"]["admin"][0]["url"] = url
    accepted(None, parse_pool(body))
    assert Origin.of(url).host
