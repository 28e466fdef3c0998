"""The CRD that the models generate."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolloutpool_api import crdgen
from rolloutpool_api.structural import structural

ROOT = Path(__file__).parents[3]
Schema = dict[str, Any]


def schemas(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema below this one with its path."""
    yield path, schema
    for name, value in schema.get("properties", {}).items():
        yield from schemas(value, f"{path}.{name}")
    for keyword, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(keyword), dict):
            yield from schemas(schema[keyword], path + mark)


@pytest.fixture(scope="module")
def root() -> Schema:
    schema = crdgen.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert isinstance(schema, dict)
    return schema


@pytest.mark.parametrize("name", ["crds", "charts/rolloutpool/files"])
def test_files_are_generated(name: str) -> None:
    assert (ROOT / name / "rolloutpools.rolloutpool.dev.yaml").read_text() == crdgen.render()


def test_every_field_is_described(root: Schema) -> None:
    fields = [
        f"{path}.{name}"
        for path, schema in schemas(root)
        for name, value in schema.get("properties", {}).items()
        if "description" not in value
    ]
    assert fields == [".apiVersion", ".kind", ".metadata"]


def test_it_is_structural(root: Schema) -> None:
    for path, schema in schemas(root):
        assert "type" in schema, path
        assert not {"$ref", "anyOf", "allOf", "oneOf", "title", "const"} & schema.keys(), path
        assert not ("properties" in schema and "additionalProperties" in schema), path


def test_every_list_is_bounded(root: Schema) -> None:
    """The API server refuses CEL rules over unbounded lists, and the status must stay small."""
    unbounded = [
        path for path, schema in schemas(root) if schema["type"] == "array" and "maxItems" not in schema
    ]
    assert unbounded == []


def test_the_status_has_no_defaults(root: Schema) -> None:
    assert [path for path, schema in schemas(root["properties"]["status"]) if "default" in schema] == []


def test_units_are_named(root: Schema) -> None:
    """A field whose name ends in a unit says the unit in words too, and numbers of time name theirs."""
    for path, schema in schemas(root["properties"]["spec"]):
        if path.endswith("Milliseconds"):
            assert "milliseconds" in schema["description"], path
        elif path.endswith("Seconds"):
            assert "second" in schema["description"].lower(), path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(
            {
                "$ref": "#/$defs/A",
                "description": "outer",
                "$defs": {"A": {"type": "integer", "description": "inner"}},
            },
            {"type": "integer", "description": "outer"},
            id="reference in place, outer text wins",
        ),
        pytest.param(
            {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}], "default": None},
            {"type": "string", "maxLength": 3},
            id="optional is absent, not null",
        ),
        pytest.param(
            {"type": "number", "exclusiveMinimum": 0},
            {"type": "number", "minimum": 0, "exclusiveMinimum": True},
            id="exclusive bound",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "integer", "default": 1}}, "default": {"a": 1}},
            {"type": "object", "properties": {"a": {"type": "integer", "default": 1}}, "default": {}},
            id="default says only what the properties do not",
        ),
        pytest.param(
            {"type": "object", "additionalProperties": True, "x-kubernetes-preserve-unknown-fields": True},
            {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            id="object that Kubernetes describes",
        ),
    ],
)
def test_structural(given: Schema, expected: Schema) -> None:
    assert structural(given) == expected


def test_the_yaml_reads_back() -> None:
    assert yaml.safe_load(crdgen.render()) == crdgen.crd()
