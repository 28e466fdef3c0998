"""The object and its events in files of the state folder, kept as an API server would keep them."""

from __future__ import annotations

import copy
import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rolloutpool_api.moments import rfc3339
from rolloutpool_operator.local.events import EventRecord, read_event, with_event

POOL_FILE = "pool.json"
EVENTS_FILE = "events.json"


class PoolStore:
    """One pool: metadata, spec and status in pool.json (which the router watches), events in events.json.

    Every write replaces the file atomically, so a reader sees the old or the new one, never a part.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float]) -> None:
        """Keep a new pool in `folder`; what an earlier run left there counts no more.

        Args:
            folder: an existing folder.
            clock: Unix seconds.
        """
        self.pool_file = folder / POOL_FILE
        self._events_file = folder / EVENTS_FILE
        self._clock = clock
        self._version = 0
        self._body: dict[str, Any] = {}
        self._events: tuple[EventRecord, ...] = ()

    @property
    def body(self) -> Mapping[str, Any]:
        """The whole object; a copy, so that what was observed stays as it was."""
        return copy.deepcopy(self._body)

    def put_manifest(self, manifest: Mapping[str, Any]) -> bool:
        """Store metadata and spec; a changed spec is a new generation.

        Returns:
            Whether the spec changed.
        """
        old = self._body.get("metadata", {})
        changed: bool = self._body.get("spec") != manifest["spec"]
        metadata = {
            "namespace": "default",
            "uid": str(uuid.uuid4()),
            "creationTimestamp": rfc3339(self._clock()),
            **old,
            **manifest["metadata"],
            "generation": old.get("generation", 0) + changed,
        }
        self._body = {
            **copy.deepcopy(dict(manifest)),
            "metadata": metadata,
            "status": self._body.get("status", {}),
        }
        self._write()
        return changed

    def patch_status(self, patch: Mapping[str, Any]) -> str:
        """Change the status by a JSON merge patch (RFC 7386): objects merge, None removes.

        Returns:
            The new resource version.
        """
        self._body["status"] = _merged(self._body.get("status", {}), copy.deepcopy(dict(patch)))
        self._write()
        return self.resource_version

    @property
    def resource_version(self) -> str:
        """Changes with every write."""
        return str(self._version)

    def add_event(self, type_: str, reason: str, message: str) -> EventRecord:
        """Keep an event of now."""
        record = EventRecord(type=type_, reason=reason, message=message, last_seen=rfc3339(self._clock()))
        self._events = with_event(self._events, record)
        replace_file(self._events_file, json.dumps([event.to_wire() for event in self._events]))
        return record

    def _write(self) -> None:
        self._version += 1
        self._body["metadata"]["resourceVersion"] = self.resource_version
        replace_file(self.pool_file, json.dumps(self._body))


def _merged(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(target)
    for name, value in patch.items():
        if isinstance(value, Mapping):
            before = merged.get(name)
            merged[name] = _merged(before if isinstance(before, Mapping) else {}, value)
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged


def read_body(folder: Path) -> dict[str, Any]:
    """The object that a pool keeps in `folder`.

    Raises:
        FileNotFoundError: no pool ran there.
    """
    body: dict[str, Any] = json.loads((folder / POOL_FILE).read_text())
    return body


def read_events(folder: Path) -> tuple[EventRecord, ...]:
    """The events that a pool keeps in `folder`, oldest first; none if there is no file."""
    try:
        return tuple(read_event(body) for body in json.loads((folder / EVENTS_FILE).read_text()))
    except FileNotFoundError:
        return ()


def replace_file(path: Path, text: str) -> None:
    """Write a file so that readers see the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
