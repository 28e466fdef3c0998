"""The project's routers in the simulation: one real admission controller each.

A session belongs to one router, found by rendezvous hashing, so its requests always meet the same state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_router.core.caps import UNLIMITED
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.estimates import ClassEstimator
from rolloutpool_router.core.grants import own_part, sharers
from rolloutpool_router.core.outcomes import Refusal
from rolloutpool_router.core.ownership import ranking, session_key
from rolloutpool_router.core.requests import Arrival, Entered
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.core.snapshot import take_snapshot
from rolloutpool_sim.fleet.opened import OpenSample
from rolloutpool_sim.fleet.sampling import Sample, history_keys

if TYPE_CHECKING:
    from random import Random

LONG_AGO = -1e9
"""When the routers started, in seconds of the run: no session is older than they are, so none is adopted."""


class Routers:
    """All routers of a pool, as one `SessionGate`."""

    def __init__(self, rngs: Sequence[Random]) -> None:
        """One router for each generator, which breaks its ties."""
        self.controllers = [AdmissionController(rng, started=LONG_AGO) for rng in rngs]
        self._names = [f"router-{index}" for index in range(len(rngs))]
        self._owners: dict[str, AdmissionController] = {}

    def apply(self, pool: RolloutPool, capacities: Mapping[str, int], now: float) -> list[Entered]:
        """All routers read the object; the turns that go to their engines now."""
        sharing = sharers(pool)
        own = {name: blocks // sharing for name, blocks in capacities.items()}
        for name, controller in zip(self._names, self.controllers, strict=True):
            controller.apply(own_part(pool, name), own)
        return self._admit_all(now)

    def tell(self, estimators: Mapping[str, ClassEstimator], now: float) -> None:
        """All routers know this of the classes from now on."""
        for controller in self.controllers:
            for name, estimator in estimators.items():
                controller.ledger.tell(name, deepcopy(estimator))
            controller.ledger.refresh(now)

    def snapshots(self, now: float) -> list[AdmissionSnapshot]:
        """What each router tells the operator."""
        return [
            take_snapshot(controller, router=name, now=now, taken_at=now, ignored_statuses=0)
            for name, controller in zip(self._names, self.controllers, strict=True)
        ]

    def arrive(self, opened: OpenSample, now: float) -> list[Entered] | Refusal:
        """As in `SessionGate`."""
        sample = opened.sample
        controller = self._owners.get(sample.name) or self._assign(sample)
        prefix = sample.group.prefix
        if opened.turn and controller.table.get(sample.name) is None:
            prefix = history_keys(sample, opened.prompt_tokens)
        arrival = Arrival(
            session=sample.name,
            class_name=sample.group.class_name,
            prefix=prefix,
            single=sample.group.single,
            has_history=opened.turn > 0,
            prompt_tokens=opened.prompt_tokens,
            group=sample.group.key,
        )
        answer, entered = controller.arrive(arrival, now)
        if isinstance(answer, Refusal):
            return answer
        if isinstance(answer, Entered) and not any(entry is answer for entry in entered):
            return [answer, *entered]
        return entered

    def reroute(self, session: str, now: float) -> list[Entered] | Refusal:
        """As in `SessionGate`."""
        answer = self._owners[session].reroute(session, now=now, avoid=())
        if isinstance(answer, Refusal):
            return answer
        return [answer] if isinstance(answer, Entered) else []

    def end_turn(self, session: str, now: float, *, usage: Usage | None) -> None:
        """As in `SessionGate`."""
        self._owners[session].end_turn(session, now=now, ok=usage is not None, usage=usage)

    def finish(self, session: str, now: float) -> None:
        """As in `SessionGate`."""
        self._owners[session].finish(session, now)

    def admit(self, session: str, now: float) -> list[Entered]:
        """As in `SessionGate`: only the session's own router has changed."""
        return self._owners[session].admit_waiting(now)

    def forget(self, session: str) -> None:
        """As in `SessionGate`."""
        self._owners.pop(session, None)

    def tick(self, now: float) -> list[Entered]:
        """As in `SessionGate`."""
        return [entry for controller in self.controllers for entry in controller.tick(now).entered]

    def engine_failed(self, session: str, engine: str, now: float) -> None:
        """As in `SessionGate`: only the session's own router has noticed."""
        self._owners[session].fleet.failed(engine, now)

    def is_resident(self, session: str) -> bool:
        """As in `SessionGate`."""
        owner = self._owners.get(session)
        return owner is not None and owner.table.get(session) is not None

    def active(self) -> Mapping[str, int]:
        """As in `SessionGate`."""
        found: Counter[str] = Counter()
        for controller in self.controllers:
            found.update(controller.table.by_class)
        return found

    def waiting(self) -> Mapping[str, int]:
        """As in `SessionGate`."""
        found: Counter[str] = Counter()
        for controller in self.controllers:
            found.update({name: len(state.queue) for name, state in controller.classes.items()})
        return found

    def caps(self) -> Mapping[str, int]:
        """As in `SessionGate`; under policy Session, the class-blind cap for each class."""
        found: Counter[str] = Counter()
        for controller in self.controllers:
            for engine in controller.fleet.engines.values():
                found.update(engine.caps)
        return {name: cap for name, cap in found.items() if cap < UNLIMITED}

    def _admit_all(self, now: float) -> list[Entered]:
        return [entry for controller in self.controllers for entry in controller.admit_waiting(now)]

    def _assign(self, sample: Sample) -> AdmissionController:
        """The router of a new session; requests that name no session belong where their prompt does."""
        key = sample.group.key if sample.group.single else session_key(sample.name)
        best = self._names.index(ranking(key, self._names)[0])
        self._owners[sample.name] = self.controllers[best]
        return self.controllers[best]
