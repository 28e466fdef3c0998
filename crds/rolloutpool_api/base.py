"""The base of every API model: camelCase on the wire, unknown fields refused, frozen once read."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """A part of the object: attributes in snake_case, fields on the wire in camelCase."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def to_wire(self) -> dict[str, Any]:
        """The JSON form: camelCase keys, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(ApiModel):
    """A part of the status: unknown fields of a newer operator are ignored, not refused."""

    model_config = ConfigDict(extra="ignore")


def rules(pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Schema extras that carry CEL rules: pairs of expression and message."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


def map_list(*keys: str) -> dict[str, Any]:
    """Schema extras of a list that the API server treats as a map by `keys`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


PRESERVE = {"x-kubernetes-preserve-unknown-fields": True}
"""Schema extras of an object that Kubernetes itself describes (pod overlays, tolerations)."""
