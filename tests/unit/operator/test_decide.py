"""What is to be done about children: tables, and that doing it leaves nothing to do."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_operator.core.children import Action, ApplyChild, Child, Reason, sealed
from rolloutpool_operator.core.decide import decide
from rolloutpool_operator.core.observed import ChildFacts


def child(kind: str = "StatefulSet", name: str = "a", **spec: Any) -> Child:
    return sealed(
        kind, name, {"metadata": {"name": name}, "spec": {"replicas": 2, "serviceName": "s"} | spec}
    )


def seen(item: Child, *, deleting: bool = False, **spec: Any) -> ChildFacts:
    body = copy.deepcopy(dict(item.body))
    body["spec"] |= spec
    return ChildFacts(kind=item.kind, name=item.name, uid=f"uid-{item.name}", body=body, deleting=deleting)


def summary(actions: tuple[Action, ...]) -> list[tuple[str, str, str]]:
    return [
        ("apply", action.child.name, action.reason.value)
        if isinstance(action, ApplyChild)
        else ("delete", action.name, action.reason.value)
        for action in actions
    ]


@pytest.mark.parametrize(
    ("desired", "live", "known", "expected"),
    [
        pytest.param([child()], [], [], [("apply", "a", "Create")], id="missing"),
        pytest.param(
            [child()], [], [("StatefulSet", "a")], [("apply", "a", "Restore")], id="deleted by somebody"
        ),
        pytest.param([child()], [seen(child())], [], [], id="as it should be"),
        pytest.param([child()], [seen(child(), default="x")], [], [], id="with defaults"),
        pytest.param(
            [child(image="2")], [seen(child(image="1"))], [], [("apply", "a", "Change")], id="changed"
        ),
        pytest.param(
            [child()], [seen(child(), replicas=5)], [], [("apply", "a", "Restore")], id="edited by somebody"
        ),
        pytest.param([], [seen(child())], [], [("delete", "a", "Obsolete")], id="not in the plan"),
        pytest.param([], [seen(child(), deleting=True)], [], [], id="already going"),
        pytest.param([child()], [seen(child(), deleting=True)], [], [], id="waits for one that is going"),
        pytest.param(
            [child(serviceName="t")],
            [seen(child())],
            [],
            [("delete", "a", "Recreate")],
            id="a field that cannot change",
        ),
        pytest.param(
            [child("RoleBinding", roleRef={})],
            [seen(child("RoleBinding"))],
            [],
            [("apply", "a", "Change")],
            id="kinds",
        ),
        pytest.param(
            [child(name="b")],
            [seen(child(name="a"))],
            [],
            [("delete", "a", "Obsolete"), ("apply", "b", "Create")],
            id="deletions free GPUs first",
        ),
    ],
)
def test_decide(
    desired: list[Child],
    live: list[ChildFacts],
    known: list[tuple[str, str]],
    expected: list[tuple[str, str, str]],
) -> None:
    assert summary(decide(desired, live, known=known)) == expected


CHILDREN = st.builds(
    child,
    kind=st.sampled_from(["StatefulSet", "Service", "Deployment"]),
    name=st.sampled_from(["a", "b", "c"]),
    serviceName=st.sampled_from(["s", "t"]),
    replicas=st.integers(1, 3),
    selector=st.sampled_from([{"x": "1"}, {"x": "2"}]),
)
SETS = st.lists(CHILDREN, unique_by=lambda item: (item.kind, item.name), max_size=6)


@given(desired=SETS, present=SETS, scaled=st.integers(1, 5))
def test_replay_converges(desired: list[Child], present: list[Child], scaled: int) -> None:
    """However the cluster looks, two rounds are enough, and then nothing is left to do."""
    live = {(item.kind, item.name): seen(item, replicas=scaled) for item in present}
    for _ in range(2):
        for action in decide(desired, list(live.values())):
            if isinstance(action, ApplyChild):
                live[action.child.kind, action.child.name] = seen(action.child)
            else:
                del live[action.kind, action.name]
    assert decide(desired, list(live.values())) == ()
    assert set(live) == {(item.kind, item.name) for item in desired}


def test_a_change_remembers_what_was_there() -> None:
    (action,) = decide([child(image="2")], [seen(child(image="1"))])
    assert isinstance(action, ApplyChild)
    assert action.reason is Reason.CHANGE
    assert action.before is not None
    assert action.before["spec"]["image"] == "1"
