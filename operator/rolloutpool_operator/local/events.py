"""The pool's events, as `kubectl describe` would list them: same ones are counted, old ones dropped. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

MAX_EVENTS = 100
"""Events kept, the newest."""


@dataclass(frozen=True, kw_only=True)
class EventRecord:
    """Something that happened."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str
    count: int = 1
    """How often."""
    last_seen: str
    """When last, as RFC 3339."""

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def with_event(records: Sequence[EventRecord], new: EventRecord) -> tuple[EventRecord, ...]:
    """Add an event at the end; one with the same reason and message moves there and counts one more."""
    same = [record for record in records if _key(record) == _key(new)]
    others = [record for record in records if _key(record) != _key(new)]
    count = new.count + sum(record.count for record in same)
    return (*others[-(MAX_EVENTS - 1) :], replace(new, count=count))


def read_event(body: Mapping[str, Any]) -> EventRecord:
    """Read an event from its JSON form.

    Raises:
        TypeError: a field is missing or unknown.
    """
    return EventRecord(**body)


def _key(record: EventRecord) -> tuple[str, str, str]:
    return record.type, record.reason, record.message
