"""The seam between deciding and doing: what a place that pools run in must offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rolloutpool_api.status import PlanGroup
from rolloutpool_operator.core.children import Action, Child
from rolloutpool_operator.core.events import PoolEvent
from rolloutpool_operator.core.observed import Observed, PoolKey

Clock = Callable[[], float]
"""Unix seconds."""


class PlatformError(Exception):
    """The platform could not do what was asked for; trying again later may help."""


class StatusConflict(PlatformError):
    """Somebody wrote the object since it was read: gather again and decide anew."""


class PoolGone(PlatformError):
    """The object is no longer there."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An action that was refused, and why."""

    action: Action
    message: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the actions."""

    done: tuple[Action, ...] = ()
    failed: tuple[Failure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """A status to write and Events to post."""

    key: PoolKey
    uid: str
    resource_version: str
    """Version of the object that the status was decided on."""
    patch: Mapping[str, Any]
    """Merge patch of the status; empty: nothing to write."""
    events: tuple[PoolEvent, ...] = ()


class Platform(Protocol):
    """Kubernetes, one machine, or a test."""

    async def gather(self, key: PoolKey) -> Observed | None:
        """Everything about a pool; None where it does not exist. Raises PlatformError."""
        ...

    def build(self, observed: Observed, groups: Sequence[PlanGroup]) -> tuple[Child, ...]:
        """What should exist for a pool with a valid spec under a plan; pure."""
        ...

    async def apply(self, observed: Observed, actions: Sequence[Action]) -> Outcome:
        """Take actions one by one; one that is refused does not stop the others."""
        ...

    async def report(self, report: Report) -> str:
        """Write a status if the object is unchanged, then post Events; returns the new resource version.

        Raises StatusConflict, PoolGone and PlatformError.
        """
        ...
