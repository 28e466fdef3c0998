"""What stands between trainer and engines: the routers, or a policy to compare them with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rolloutpool_router.core.outcomes import Refusal
from rolloutpool_router.core.requests import Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_sim.fleet.opened import OpenSample


class SessionGate(Protocol):
    """Decides when and where each turn goes. Every method that takes `now` takes seconds of the run."""

    def arrive(self, opened: OpenSample, now: float) -> list[Entered] | Refusal:
        """A turn comes: the turns that go to their engines now, of any session; or it is refused."""

    def reroute(self, session: str, now: float) -> list[Entered] | Refusal:
        """Like `arrive` for a turn that had entered and found no engine where it was sent."""

    def end_turn(self, session: str, now: float, *, usage: Usage | None) -> None:
        """A turn that had entered ended; without usage, it failed."""

    def finish(self, session: str, now: float) -> None:
        """A session has ended."""

    def forget(self, session: str) -> None:
        """A session will not be heard of again."""

    def admit(self, session: str, now: float) -> list[Entered]:
        """The turns that go to their engines now that this session changed something."""

    def tick(self, now: float) -> list[Entered]:
        """Once a second; the turns that go to their engines now."""

    def engine_failed(self, session: str, engine: str, now: float) -> None:
        """A turn of this session could not connect to its engine."""

    def is_resident(self, session: str) -> bool:
        """Whether a session holds a place on an engine."""

    def active(self) -> Mapping[str, int]:
        """Resident sessions, by class."""

    def waiting(self) -> Mapping[str, int]:
        """Waiting sessions, by class."""

    def caps(self) -> Mapping[str, int]:
        """Sessions that may be resident on all engines, by class; classes without a cap are absent."""
