"""Strategic overlays, merge patches and drift."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_operator.core.merging import drifted, merge_patch, strategic_merge
from rolloutpool_operator.testing import merged

POD: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [
            {
                "name": "engine",
                "image": "one",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}],
                "args": ["x"],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "tolerations": [{"key": "gpu"}],
    },
}


@pytest.mark.parametrize(
    ("overlay", "path", "expected"),
    [
        pytest.param(
            {"metadata": {"labels": {"b": "2"}}}, ["metadata", "labels"], {"a": "1", "b": "2"}, id="object"
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "engine", "image": "two"}]}},
            ["spec", "containers", 0, "image"],
            "two",
            id="container by name",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "engine", "env": [{"name": "B", "value": "9"}]}]}},
            ["spec", "containers", 0, "env"],
            [{"name": "A", "value": "1"}, {"name": "B", "value": "9"}],
            id="env by name",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "engine", "args": ["y"]}]}},
            ["spec", "containers", 0, "args"],
            ["y"],
            id="args are replaced",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "sidecar", "image": "s"}]}},
            ["spec", "containers", 1],
            {"name": "sidecar", "image": "s"},
            id="a container more",
        ),
        pytest.param(
            {"spec": {"volumes": [{"name": "tmp", "$patch": "delete"}]}},
            ["spec", "volumes"],
            [],
            id="delete item",
        ),
        pytest.param(
            {"spec": {"tolerations": [{"key": "other"}]}},
            ["spec", "tolerations"],
            [{"key": "other"}],
            id="atomic list",
        ),
        pytest.param(
            {
                "spec": {
                    "containers": [{"name": "engine", "volumeMounts": [{"mountPath": "/x", "name": "x"}]}]
                }
            },
            ["spec", "containers", 0, "volumeMounts"],
            [{"mountPath": "/tmp", "name": "tmp"}, {"mountPath": "/x", "name": "x"}],
            id="mounts by path",
        ),
        pytest.param(
            {"metadata": {"labels": {"$patch": "replace", "c": "3"}}},
            ["metadata", "labels"],
            {"c": "3"},
            id="replace",
        ),
    ],
)
def test_strategic_merge(overlay: dict[str, Any], path: list[Any], expected: Any) -> None:
    found = strategic_merge(POD, overlay)
    for part in path:
        found = found[part]
    assert found == expected


def test_strategic_merge_removes_with_none_and_leaves_the_base_alone() -> None:
    assert "tolerations" not in strategic_merge(POD, {"spec": {"tolerations": None}})["spec"]
    assert POD["spec"]["tolerations"] == [{"key": "gpu"}]


JSON = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=2), JSON, max_size=4)


@given(old=OBJECTS, new=OBJECTS)
def test_merge_patch_turns_one_into_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, merge_patch(old, new)) == new


@given(same=OBJECTS)
def test_merge_patch_of_equals_is_empty(same: dict[str, Any]) -> None:
    assert merge_patch(same, same) == {}


@given(desired=OBJECTS, more=st.integers())
def test_what_only_the_live_object_has_is_no_drift(desired: dict[str, Any], more: int) -> None:
    assert drifted(desired, {**desired, "another field": more}) is None


@pytest.mark.parametrize(
    ("desired", "live", "where"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, None, id="defaults"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 2}}, ".a.b", id="changed"),
        pytest.param({"a": [1, 2]}, {"a": [1]}, ".a", id="item removed"),
        pytest.param({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 3}]}, None, id="item with defaults"),
        pytest.param({"a": {}}, {}, None, id="an empty object that was dropped"),
        pytest.param({"a": "1000m"}, {"a": "1"}, None, id="quantity: milli"),
        pytest.param({"a": "8192Mi"}, {"a": "8Gi"}, None, id="quantity: binary"),
        pytest.param({"a": "0.5"}, {"a": "500m"}, None, id="quantity: fraction"),
        pytest.param({"a": "1k"}, {"a": "1Ki"}, ".a", id="quantities that differ"),
        pytest.param({"a": "milk"}, {"a": "silk"}, ".a", id="words are no quantities"),
        pytest.param({"a": {"b": 1}}, {"a": None}, ".a", id="gone"),
        pytest.param({"a": 4}, {"a": "4"}, None, id="quantity given as a number"),
        pytest.param({"a": "", "b": False, "c": None}, {}, None, id="empty values that were dropped"),
        pytest.param({"a": True}, {}, ".a", id="a switch that was taken away"),
    ],
)
def test_drifted(desired: dict[str, Any], live: dict[str, Any], where: str | None) -> None:
    assert drifted(desired, live) == where
