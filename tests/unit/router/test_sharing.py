"""How the caps of a pool are shared by its routers, and how large the status gets."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from rolloutpool_api.conditions import Condition, ConditionStatus, ConditionType
from rolloutpool_api.planning import Role
from rolloutpool_api.serving import AdmissionPolicy
from rolloutpool_api.snapshot import AdmissionSnapshot, SnapshotClass, SnapshotEngine, SnapshotEngineClass
from rolloutpool_api.status import (
    MAX_ENGINES,
    AdmissionStatus,
    ClassAdmission,
    Endpoints,
    EngineAdmission,
    EngineClass,
    EngineEndpoint,
    RolloutPoolStatus,
)
from rolloutpool_router.core.grants import History, given, seen, wrote
from rolloutpool_router.core.roster import RouterState
from rolloutpool_router.core.sharing import share, shares_matter

CAPS = {"rlvr": 6, "agentic": 3}


def computed(
    revision: int = 1,
    caps: Mapping[str, int] = CAPS,
    *,
    engines: int = 1,
    blocks: int = 900,
    footprint: int = 100,
    policy: AdmissionPolicy = AdmissionPolicy.MISA_T,
) -> AdmissionStatus:
    """Equal engines with these caps, all routers together."""
    return AdmissionStatus(
        revision=revision,
        policy=policy,
        computed_at="2026-01-01T00:00:00Z",
        engines=[
            EngineAdmission(
                name=f"e{number}",
                capacity_blocks=blocks,
                protected_blocks=blocks,
                classes=[EngineClass(name=name, cap=cap) for name, cap in caps.items()],
            )
            for number in range(engines)
        ],
        classes=[
            ClassAdmission(name=name, cap=cap * engines, active=0, waiting=0, footprint_blocks=footprint)
            for name, cap in caps.items()
        ],
    )


def router(
    name: str,
    *,
    applied: int = 1,
    active: Mapping[str, int] | None = None,
    waiting: Mapping[str, int] | None = None,
    oldest_wait: float = 1.0,
    ready: bool = True,
) -> RouterState:
    """A router with sessions on e0."""
    residents = [SnapshotEngineClass(name=name, active=n, blocks=0) for name, n in (active or {}).items()]
    snapshot = AdmissionSnapshot(
        router=name,
        taken_at=0,
        applied_revision=applied,
        engines=[SnapshotEngine(name="e0", classes=residents)],
        classes=[
            SnapshotClass(name=name, active=0, waiting=n, oldest_wait_seconds=oldest_wait)
            for name, n in (waiting or {}).items()
        ],
    )
    return RouterState(name=name, url=f"http://{name}", ready=ready, snapshot=snapshot)


def grants(status: AdmissionStatus, engine: int = 0) -> dict[str, str]:
    """The lines of an engine by router."""
    return dict(zip((r.name for r in status.routers), status.engines[engine].grants, strict=True))


def settled(*routers: RouterState, caps: Mapping[str, int] = CAPS) -> History:
    """Revision 1, applied by these routers: all there is, shared alike."""
    first = share(
        computed(1, caps), routers=[r for r in routers if r.ready], replicas=len(routers), history=()
    )
    return seen((), first)


def test_one_router_is_listed_and_has_everything() -> None:
    fresh = computed()
    found = share(fresh, routers=[router("a")], replicas=1, history=())
    assert [(item.name, item.url) for item in found.routers] == [("a", "http://a")]
    assert found.model_copy(update={"routers": []}) == fresh


def test_the_first_status_divides_alike() -> None:
    found = share(computed(), routers=[router("a"), router("b")], replicas=3, history=())
    assert grants(found) == {"a": "300 2 1", "b": "300 2 1"}


def test_demand_moves_caps_and_the_blocks_go_with_them() -> None:
    a, b = router("a", active={"rlvr": 3}, waiting={"rlvr": 9}), router("b", active={"rlvr": 1})
    history = settled(a, b)
    second = share(computed(2), routers=[a, b], replicas=2, history=history)
    assert grants(second) == {"a": "450 3 2", "b": "200 1 1"}, "b gives up at once, a gets nothing yet"

    a, b = (
        router("a", applied=1, active={"rlvr": 3}, waiting={"rlvr": 9}),
        router("b", applied=2, active={"rlvr": 1}),
    )
    third = share(computed(3), routers=[a, b], replicas=2, history=wrote(history, second))
    assert grants(third)["a"].split()[1] == "5"
    assert sum(int(line.split()[1]) for line in grants(third).values()) == 6


def test_a_cap_is_not_given_on_while_its_sessions_are_there() -> None:
    a, b = router("a", active={"rlvr": 3}), router("b", waiting={"rlvr": 90}, oldest_wait=60)
    history = settled(a, b)
    second = share(computed(2), routers=[a, b], replicas=2, history=history)
    after = [router("a", applied=2, active={"rlvr": 3}), router("b", applied=2, waiting={"rlvr": 90})]
    third = share(computed(3), routers=after, replicas=2, history=wrote(history, second))
    assert grants(third)["b"].split()[1] == "3"

    ended = [router("a", applied=3), router("b", applied=3, waiting={"rlvr": 90})]
    fourth = share(computed(4), routers=ended, replicas=2, history=wrote(wrote(history, second), third))
    assert grants(fourth)["b"].split()[1] == "5", "all but the one that a was given meanwhile"


def test_a_router_that_leaves_counts_until_it_lets_go() -> None:
    a, b = router("a"), router("b")
    history = settled(a, b)
    leaving = router("b", ready=False, active={"rlvr": 1})
    second = share(computed(2), routers=[a, leaving], replicas=2, history=history)
    assert grants(second) == {"a": "450 3 2"}

    aware = router("b", applied=2, ready=False, active={"rlvr": 1})
    third = share(
        computed(3), routers=[router("a", applied=2), aware], replicas=2, history=wrote(history, second)
    )
    assert grants(third) == {"a": "800 5 3"}, "all but its last session"

    gone = share(computed(3), routers=[router("a", applied=2)], replicas=2, history=wrote(history, second))
    assert [item.name for item in gone.routers] == ["a"]
    assert not gone.engines[0].grants


def test_a_new_router_starts_with_what_is_left() -> None:
    a = router("a", active={"rlvr": 2})
    history = settled(a)
    second = share(computed(2), routers=[a, router("b")], replicas=2, history=history)
    assert grants(second) == {"a": "600 4 2", "b": "0 0 0"}
    both = [router("a", applied=2, active={"rlvr": 2}), router("b", applied=2)]
    third = share(computed(3), routers=both, replicas=2, history=wrote(history, second))
    assert grants(third) == {"a": "600 4 2", "b": "300 2 1"}


def test_an_operator_that_starts_anew_raises_nothing_until_all_are_current() -> None:
    a, b = router("a"), router("b")
    second = share(computed(2), routers=[a, b], replicas=2, history=settled(a, b))
    assert seen((), second)
    busy = [router("a", applied=1, waiting={"rlvr": 50}), router("b", applied=2)]
    third = share(computed(3), routers=busy, replicas=2, history=seen((), second))
    assert grants(third) == grants(second)
    fallen = share(
        computed(3, {"rlvr": 2, "agentic": 0}, blocks=300), routers=busy, replicas=2, history=seen((), second)
    )
    assert grants(fallen) == {"a": "159 1 0", "b": "141 1 0"}, "as it was shared, in proportion"


def test_a_router_that_was_not_heard_yet_is_not_listed() -> None:
    silent = RouterState(name="b", url="http://b", ready=True)
    found = share(computed(), routers=[router("a"), silent], replicas=2, history=())
    assert grants(found) == {"a": "450 3 1"}


def test_with_a_class_blind_policy_every_cap_is_split_alike() -> None:
    caps = {"rlvr": 6, "agentic": 6}
    a, b = router("a", active={"rlvr": 1}, waiting={"agentic": 1}), router("b")
    first = share(computed(1, caps, policy=AdmissionPolicy.SESSION), routers=[a, b], replicas=2, history=())
    found = share(
        computed(2, caps, policy=AdmissionPolicy.SESSION), routers=[a, b], replicas=2, history=seen((), first)
    )
    assert {line.split()[1] == line.split()[2] for line in grants(found).values()} == {True}


def test_without_a_policy_nothing_is_shared() -> None:
    found = share(
        computed(policy=AdmissionPolicy.NONE), routers=[router("a"), router("b")], replicas=2, history=()
    )
    assert len(found.routers) == 2
    assert not found.engines[0].grants


def test_a_class_without_a_cap_gets_room_where_it_has_waited_longest() -> None:
    caps = {"rlvr": 9, "agentic": 0}
    waits = {"agentic": 1}
    a, b = router("a", waiting=waits, oldest_wait=1), router("b", waiting=waits, oldest_wait=5)
    fresh = computed(2, caps).model_copy(
        update={
            "classes": [
                item.model_copy(update={"footprint_blocks": {"rlvr": 100, "agentic": 700}[item.name]})
                for item in computed(2, caps).classes
            ]
        }
    )
    history = settled(a, b, caps=caps)
    second = share(fresh, routers=[a, b], replicas=2, history=history)
    after = [router("a", applied=2, waiting=waits), router("b", applied=2, waiting=waits, oldest_wait=5)]
    third = share(
        fresh.model_copy(update={"revision": 3}), routers=after, replicas=2, history=wrote(history, second)
    )
    assert int(grants(third)["b"].split()[0]) >= 700


@pytest.mark.parametrize(
    ("changed", "matters"),
    [
        pytest.param(["100 10 3", "100 10 3"], False, id="nothing"),
        pytest.param(["102 10 3", "98 10 3"], False, id="a few blocks"),
        pytest.param(["110 10 3", "90 10 3"], True, id="many blocks"),
        pytest.param(["100 11 3", "100 9 3"], True, id="one session"),
    ],
)
def test_which_shares_are_worth_a_write(changed: list[str], matters: bool) -> None:
    old = share(computed(), routers=[router("a"), router("b")], replicas=2, history=())
    engine = old.engines[0]
    before = old.model_copy(
        update={"engines": [engine.model_copy(update={"grants": ["100 10 3", "100 10 3"]})]}
    )
    after = old.model_copy(update={"engines": [engine.model_copy(update={"grants": changed})]})
    assert shares_matter(after, before) is matters


def test_another_router_is_worth_a_write() -> None:
    one = share(computed(), routers=[router("a")], replicas=1, history=())
    two = share(computed(), routers=[router("a"), router("b")], replicas=1, history=())
    assert shares_matter(two, one)
    assert shares_matter(one, None)
    assert not shares_matter(one, one)


@pytest.mark.parametrize(
    ("engines", "classes", "routers"),
    [
        pytest.param(MAX_ENGINES, 16, 8, id="everything at its most"),
        pytest.param(MAX_ENGINES, 16, 1, id="many classes"),
        pytest.param(MAX_ENGINES, 3, 8, id="many routers"),
        pytest.param(16, 16, 16, id="a rollout"),
    ],
)
def test_the_status_stays_below_200_kilobytes(engines: int, classes: int, routers: int) -> None:
    pool = "p" * 31
    caps = {f"agentic-class-{number:02d}": 10 + 2 * number for number in range(classes)}
    fresh = computed(1, caps, engines=engines, blocks=25650)
    named = fresh.model_copy(
        update={
            "engines": [
                engine.model_copy(
                    update={
                        "name": f"{pool}-aggregated-tp1-{number}",
                        "classes": [
                            item.model_copy(update={"active": item.cap, "blocks": 9999})
                            for item in engine.classes
                        ],
                    }
                )
                for number, engine in enumerate(fresh.engines)
            ]
        }
    )
    states = [router(f"{pool}-router-7c9d6bf5c8-{number:05d}") for number in range(routers)]
    admission = share(named, routers=states, replicas=routers, history=())
    assert len(given(admission).engines) == engines
    condition = Condition(
        type=ConditionType.READY, status=ConditionStatus.TRUE, reason="R" * 40, message="m" * 500
    )
    status = RolloutPoolStatus(
        admission=admission,
        conditions=[condition] * 12,
        endpoints=Endpoints(
            admin=[
                EngineEndpoint(
                    name=engine.name,
                    role=Role.AGGREGATED,
                    url=f"http://{engine.name}.{pool}-engines.a-namespace.svc:8000",
                    ready=True,
                    revision="0123456789abcdef",
                )
                for engine in admission.engines
            ]
        ),
    )
    assert len(json.dumps(status.to_wire(), separators=(",", ":"))) < 200_000
