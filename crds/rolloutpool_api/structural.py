"""Pydantic's JSON schema -> a structural schema as CustomResourceDefinitions need it.

Pure. The differences: no `$ref` (definitions are put in place), no null (absent instead), no `title`, no
`additionalProperties: false` beside `properties` (the API server prunes or refuses unknown fields by itself),
and exclusive bounds as booleans (OpenAPI 3.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]
_DROPPED = ("title", "$defs", "discriminator", "propertyNames")


def structural(schema: Mapping[str, Any]) -> Schema:
    """The structural form of a Pydantic model's JSON schema (mode validation, by alias)."""
    return _convert(schema, schema.get("$defs", {}))


def _convert(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    merged = _without_null(_resolved(schema, defs), defs)
    out = {key: value for key, value in merged.items() if key not in _DROPPED}
    _openapi_bounds(out)
    if "properties" in out:
        out.pop("additionalProperties", None)
        out["properties"] = {name: _convert(value, defs) for name, value in out["properties"].items()}
    elif isinstance(out.get("additionalProperties"), Mapping):
        out["additionalProperties"] = _convert(out["additionalProperties"], defs)
    elif out.get("x-kubernetes-preserve-unknown-fields"):
        out.pop("additionalProperties", None)
    if "items" in out:
        out["items"] = _convert(out["items"], defs)
    if "const" in out:
        out["enum"] = [out.pop("const")]
    if out.get("default", ...) is None:
        del out["default"]
    elif "default" in out:
        out["default"] = _shortest(out["default"], out)
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    return out


def _resolved(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Put a referenced definition in place; what stands beside the reference wins."""
    reference = schema.get("$ref")
    if reference is None:
        return dict(schema)
    target = _resolved(defs[reference.rsplit("/", 1)[-1]], defs)
    return {**target, **{key: value for key, value in schema.items() if key != "$ref"}}


def _without_null(schema: Schema, defs: Mapping[str, Any]) -> Schema:
    """An optional field is absent, never null: `anyOf: [X, null]` is X."""
    options = schema.get("anyOf")
    if options is None:
        return schema
    (kept,) = [option for option in options if option.get("type") != "null"]
    outer = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**_resolved(kept, defs), **outer}


def _shortest(default: Any, schema: Mapping[str, Any]) -> Any:
    """The default without nulls and without what the properties' own defaults say (the server adds those)."""
    if not isinstance(default, dict):
        return default
    own = schema.get("properties", {})
    kept = {name: _shortest(value, own.get(name, {})) for name, value in default.items() if value is not None}
    return {name: value for name, value in kept.items() if own.get(name, {}).get("default", ...) != value}


def _openapi_bounds(schema: Schema) -> None:
    for plain, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in schema:
            schema[plain], schema[exclusive] = schema[exclusive], True
