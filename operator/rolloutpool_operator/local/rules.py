"""The CRD's own rules where no API server checks them: CEL expressions and lists that are maps. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import cel

from rolloutpool_api import crdgen

Schema = Mapping[str, Any]


def broken_rules(pool: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """What the API server would refuse about an object, one message per broken rule; empty if nothing.

    Args:
        pool: the object with its defaults (`RolloutPool.to_wire`).
        old: what it replaces; without it the rules about changes are left out.
    """
    schema = crdgen.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return tuple(_broken(schema, pool, old, path=""))


def _broken(schema: Schema, value: Any, old: Any, *, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        about_change = "oldSelf" in rule["rule"]
        if not (about_change and old is None) and not _holds(rule["rule"], value, old):
            named = (
                rule["message"] if "spec." in rule["message"] or not path else f"{path}: {rule['message']}"
            )
            yield str(named)
    yield from _duplicates(schema, value, path)
    if isinstance(value, Mapping):
        before = old if isinstance(old, Mapping) else {}
        for name, part in schema.get("properties", {}).items():
            if name in value:
                yield from _broken(part, value[name], before.get(name), path=f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _broken(schema["items"], item, None, path=f"{path}.{index}")


def _duplicates(schema: Schema, value: Any, path: str) -> Iterator[str]:
    """Items of a list-map with the same key."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys is None or not isinstance(value, list):
        return
    seen: set[tuple[Any, ...]] = set()
    for index, item in enumerate(value):
        key = tuple(item.get(name) for name in keys)
        if key in seen:
            words = ", ".join(f"{name} {part!r}" for name, part in zip(keys, key, strict=True))
            yield f"{path}.{index}: {words} is there twice: rename or remove one"
        seen.add(key)


def _holds(expression: str, value: Any, old: Any) -> bool:
    context = cel.Context(variables={"self": value, "oldSelf": old})
    context.add_function("sum", sum)  # of Kubernetes' list library
    return bool(cel.evaluate(expression, context))
