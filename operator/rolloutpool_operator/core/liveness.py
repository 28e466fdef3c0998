"""Do the watches still deliver? What was read or written must come back through a watch before long.

Every object that a gather reads, every status that is written and every renewal of the heartbeat Lease has a
resource version; the watch of its kind must deliver that version or a newer one. A version that is overdue
proves that a stream died or fell silent, although the process answers. While the API server itself does not
answer nothing is expected: the pools run on without the operator, and a restart would help nobody.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

OUTAGE_SECONDS = 5.0
"""How long the API server must have been away for its watches to get the full time again: one request that
is left unanswered now and then must not hide a watch that is deaf."""
MAX_DELIVERED = 50_000
"""Most objects whose last delivered version is remembered."""

Object = tuple[str, str]
"""Kind and uid."""


@dataclass(kw_only=True)
class WatchAudit:
    """Versions expected from the watches and delivered by them. Times are those of a monotonic clock."""

    limit_seconds: float
    """How late a version may come."""
    _delivered: OrderedDict[Object, str] = field(default_factory=OrderedDict)
    _awaited: dict[str, dict[Object, float]] = field(default_factory=dict)
    _away_since: float | None = -math.inf
    """Since when the API server left requests unanswered, or was never asked; None while it answers."""
    _back: float = 0.0
    """When it last came back."""

    def api_answered(self, now: float) -> None:
        """The API server answered a request."""
        if self._away_since is not None and now - self._away_since >= OUTAGE_SECONDS:
            self._back = now
        self._away_since = None

    def api_failed(self, now: float) -> None:
        """The API server did not answer a request."""
        if self._away_since is None:
            self._away_since = now

    def delivered(self, kind: str, uid: str, version: str) -> None:
        """A watch delivered a version of an object (also its deletion)."""
        self._delivered[kind, uid] = version
        self._delivered.move_to_end((kind, uid))
        if len(self._delivered) > MAX_DELIVERED:
            self._delivered.popitem(last=False)
        for awaited in self._awaited.values():
            awaited.pop((kind, uid), None)

    def expect(self, scope: str, versions: Mapping[Object, str], now: float) -> None:
        """These versions exist; what this scope awaited of other objects is dropped, since they are gone.

        Args:
            scope: whose objects they are: a pool, or the heartbeat.
            versions: resource version by object.
            now: monotonic seconds.
        """
        before = self._awaited.get(scope, {})
        missing = (item for item, version in versions.items() if not self._has(item, version))
        self._awaited[scope] = {item: before.get(item, now) for item in missing}

    def expect_one(self, scope: str, kind: str, uid: str, version: str, now: float) -> None:
        """This version exists: one more of the scope."""
        if not self._has((kind, uid), version):
            self._awaited.setdefault(scope, {}).setdefault((kind, uid), now)

    def forget(self, scope: str) -> None:
        """The scope is gone."""
        self._awaited.pop(scope, None)

    def verdict(self, now: float) -> str:
        """What is wrong, in words; empty while the watches deliver or the API server is away."""
        if self._away_since is not None:
            return ""
        waits = [
            (now - max(since, self._back), kind, scope)
            for scope, awaited in self._awaited.items()
            for (kind, _), since in awaited.items()
        ]
        longest, kind, scope = max(waits, default=(0.0, "", ""))
        if longest <= self.limit_seconds:
            return ""
        return f"the watch of {kind} is deaf: a change of {scope} is overdue by {longest:.0f} s"

    def _has(self, item: Object, version: str) -> bool:
        last = self._delivered.get(item)
        if last is None:
            return False
        if last.isdigit() and version.isdigit():
            return int(last) >= int(version)
        return last == version
