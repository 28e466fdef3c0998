"""What a status gives to each router, what that router reads of it, and what may be in force where."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.status import AdmissionStatus
from rolloutpool_api.v1alpha1 import InvalidPool, RolloutPool, parse_pool
from rolloutpool_router.core.grants import POT, given, in_force, own_part, seen, sharers, wrote
from rolloutpool_router.core.roster import RouterState
from rolloutpool_router.testing import pool_object

CAPS = {"rlvr": 9, "rlhf": 4, "agentic": 1}


def pool(
    *, routers: list[str] | None = None, grants: list[str] | None = None, replicas: int = 1
) -> RolloutPool:
    """Engine e0 with caps, engine e1 without; `grants` those of e0."""
    body = pool_object({"e0": "http://e0", "e1": "http://e1"}, caps=CAPS, revision=7)
    body["spec"]["router"] = {"replicas": replicas}
    admission: dict[str, Any] = body["status"]["admission"]
    admission["engines"] = admission["engines"][:1]
    admission["classes"] = [
        {"name": name, "cap": cap, "active": 0, "waiting": 0} for name, cap in CAPS.items()
    ]
    admission["routers"] = [{"name": name, "url": f"http://{name}"} for name in routers or []]
    admission["engines"][0]["grants"] = grants or []
    return parse_pool(body)


def read(part: RolloutPool) -> dict[str, tuple[int, dict[str, int]]]:
    """Protected blocks and caps by engine."""
    assert part.status.admission is not None
    return {
        engine.name: (engine.protected_blocks, {item.name: item.cap for item in engine.classes})
        for engine in part.status.admission.engines
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(pool(), {"e0": (1000, CAPS)}, id="one router, no list"),
        pytest.param(pool(routers=["me"]), {"e0": (1000, CAPS)}, id="alone on the list"),
        pytest.param(
            pool(replicas=3),
            {"e0": (333, {"rlvr": 3, "rlhf": 1, "agentic": 0})},
            id="several and no list yet: a part in three",
        ),
        pytest.param(
            pool(routers=["other", "me"], grants=["600 6 2 0", "400 3 2 1"], replicas=2),
            {"e0": (400, {"rlvr": 3, "rlhf": 2, "agentic": 1})},
            id="what is granted",
        ),
        pytest.param(
            pool(routers=["other", "me"], grants=["600 6 2 0"], replicas=2),
            {"e0": (0, dict.fromkeys(CAPS, 0))},
            id="a line is missing",
        ),
        pytest.param(
            pool(routers=["other"], replicas=2),
            {"e0": (0, dict.fromkeys(CAPS, 0)), "e1": (0, dict.fromkeys(CAPS, 0))},
            id="not on the list: nothing, of new engines too",
        ),
    ],
)
def test_a_router_reads_its_own_part(
    found: RolloutPool, expected: dict[str, tuple[int, dict[str, int]]]
) -> None:
    assert read(own_part(found, "me")) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(pool(routers=["gone"]), (1000, CAPS), id="of one router"),
        pytest.param(
            pool(routers=["gone", "lost"], grants=["600 6 2 0", "400 3 2 1"], replicas=2),
            (500, {"rlvr": 4, "rlhf": 2, "agentic": 0}),
            id="of two",
        ),
    ],
)
def test_a_deserted_router_takes_its_fraction(
    found: RolloutPool, expected: tuple[int, dict[str, int]]
) -> None:
    assert read(own_part(found, "me", deserted=True)) == {"e0": expected}


def test_where_only_grants_tell_the_caps_a_deserted_router_adds_them_up() -> None:
    found = pool(routers=["gone", "lost"], grants=["600 6 2 0", "400 3 2 1"], replicas=2)
    admission = found.status.admission
    assert admission is not None
    bare = [engine.model_copy(update={"classes": []}) for engine in admission.engines]
    status = found.status.model_copy(update={"admission": admission.model_copy(update={"engines": bare})})
    found = found.model_copy(update={"status": status})
    assert read(own_part(found, "me", deserted=True)) == {"e0": (500, {"rlvr": 4, "rlhf": 2, "agentic": 0})}


@pytest.mark.parametrize("found", [pool(), pool(routers=["me"])], ids=["no list", "alone on it"])
def test_one_router_reads_the_object_as_it_is(found: RolloutPool) -> None:
    assert own_part(found, "me") is found


def test_all_but_the_parts_stays_as_it_is() -> None:
    found = pool(routers=["me", "other"], grants=["600 6 2 0", "400 3 2 1"], replicas=2)
    part = own_part(found, "me")
    assert part.spec == found.spec
    assert part.status.admission is not None
    assert found.status.admission is not None
    assert part.status.admission.routers == found.status.admission.routers
    assert part.status.admission.engines[0].capacity_blocks == 1000


def test_grants_are_numbers() -> None:
    with pytest.raises(InvalidPool, match="grants"):
        pool(routers=["me"], grants=["600 six"])


@pytest.mark.parametrize(
    ("found", "count"),
    [
        pytest.param(pool(), 1, id="one"),
        pytest.param(pool(replicas=3), 3, id="as many as the spec asks for"),
        pytest.param(
            pool(replicas=2, routers=["a", "b", "c"]), 3, id="as many as there are during a rollout"
        ),
    ],
)
def test_engines_without_caps_are_shared_alike(found: RolloutPool, count: int) -> None:
    assert sharers(found) == count


def status(revision: int, *lines: str, routers: tuple[str, ...] = ("a", "b")) -> AdmissionStatus:
    found = pool(routers=list(routers), grants=list(lines), replicas=2).status.admission
    assert found is not None
    return found.model_copy(update={"revision": revision})


def router(name: str, applied: int | None) -> RouterState:
    snapshot = (
        AdmissionSnapshot(router=name, taken_at=0, applied_revision=applied) if applied is not None else None
    )
    return RouterState(name=name, url="", ready=True, snapshot=snapshot)


REVISIONS = (
    given(status(3, "500 5 0 0", "500 4 0 0")),
    given(status(5, "900 2 0 0", "100 4 0 0")),
    given(status(6, "300 3 0 0", routers=("a",))),
)


@pytest.mark.parametrize(
    ("state", "most"),
    [
        pytest.param(router("a", 3), (900, 5), id="every revision since"),
        pytest.param(router("a", 4), (900, 5), id="between two: the older may be in force"),
        pytest.param(router("a", 5), (900, 3), id="what it applied and what came after"),
        pytest.param(router("a", 6), (300, 3), id="current"),
        pytest.param(router("b", 5), (100, 4), id="taken from the list: until it has heard of it"),
        pytest.param(router("b", 6), (0, 0), id="taken from the list and aware of it"),
        pytest.param(router("new", 6), (0, 0), id="never listed"),
        pytest.param(router("a", 2), None, id="behind all that is remembered"),
        pytest.param(router("a", 9), None, id="ahead: the stored status is an old one"),
        pytest.param(router("a", None), None, id="never reported"),
    ],
)
def test_what_may_be_in_force(state: RouterState, most: tuple[int, int] | None) -> None:
    bound = in_force(REVISIONS, "e0", state)
    assert (None if bound is None else (bound.get(POT, 0), bound.get("rlvr", 0))) == most


def test_history_begins_anew_where_somebody_else_wrote() -> None:
    first = seen((), status(3, "500 5 0 0", "500 4 0 0"))
    second = wrote(first, status(4, "500 4 0 0", "500 4 0 0"))
    assert [entry.revision for entry in second] == [3, 4]
    assert seen(second, status(4, "500 4 0 0", "500 4 0 0")) is second
    assert [entry.revision for entry in seen(second, status(6, "1 1 0 0", "1 1 0 0"))] == [6]
    assert seen(second, None) == ()


def test_history_is_bounded() -> None:
    history = seen((), status(1, "1 1 0 0", "1 1 0 0"))
    for revision in range(2, 100):
        history = wrote(history, status(revision, "1 1 0 0", "1 1 0 0"))
    assert len(history) == 32
    assert history[-1].revision == 99
    assert in_force(history, "e0", router("a", 1)) is None
