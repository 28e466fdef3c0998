"""Children of a pool: what should exist, and what is to be done about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rolloutpool_api import labels


@dataclass(frozen=True, kw_only=True)
class Child:
    """One child that should exist."""

    kind: str
    name: str
    body: Mapping[str, Any]
    """The fields that the operator owns; others are left as they are."""


class Reason(StrEnum):
    """Why a child is written or deleted."""

    CREATE = "Create"
    """It is new."""
    CHANGE = "Change"
    """What it is made from changed."""
    RESTORE = "Restore"
    """It was there and somebody deleted or edited it."""
    RECREATE = "Recreate"
    """A field that cannot be changed must change: it is deleted, and made anew once gone."""
    OBSOLETE = "Obsolete"
    """The plan has no use for it."""


@dataclass(frozen=True, kw_only=True)
class ApplyChild:
    """Write a child."""

    child: Child
    reason: Reason
    before: Mapping[str, Any] | None = None
    """The live object, where there is one."""


@dataclass(frozen=True, kw_only=True)
class DeleteChild:
    """Delete a child of this pool."""

    kind: str
    name: str
    uid: str
    reason: Reason


Action = ApplyChild | DeleteChild


def sealed(kind: str, name: str, body: dict[str, Any]) -> Child:
    """Make a child whose annotation CONFIG_HASH names the content it was made from."""
    digest = content_hash(body)
    metadata = {**body["metadata"]}
    metadata["annotations"] = {**metadata.get("annotations", {}), labels.CONFIG_HASH: digest}
    return Child(kind=kind, name=name, body={**body, "metadata": metadata})


def content_hash(content: Any) -> str:
    """Short hash of a JSON value; equal for equal content in any key order."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def config_hash(body: Mapping[str, Any]) -> str:
    """The hash that an object carries in its annotation, empty where it has none."""
    annotations = (body.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(labels.CONFIG_HASH, ""))
