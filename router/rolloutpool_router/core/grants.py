"""What each of several routers may use of every engine: as the status says it, and as its router reads it.

`status.admission.routers` lists the routers that sessions belong to. Where there is more than one, every
engine's `grants` hold one line a router, in that order: the protected blocks, then the caps in the order of
`admission.classes`, e.g. "8550 4 1 1". The caps in `engines[].classes` stay those of all routers together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rolloutpool_api.status import AdmissionStatus, EngineAdmission, EngineClass
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_router.core.roster import RouterState

POT = ""
"""Key of an engine's protected blocks among its parts; the others are classes, and none has an empty name."""
EVERY = ""
"""Stands for every router where a status lists none."""
MAX_GIVEN = 32
"""Most revisions remembered; a router that is further behind counts as unknown."""

Parts = Mapping[str, int]
"""What may be used of one engine: blocks under POT, sessions by class."""
NOTHING: Parts = {}


@dataclass(frozen=True)
class Given:
    """What one revision of the status gives to each router."""

    revision: int
    routers: tuple[str, ...]
    engines: Mapping[str, Mapping[str, Parts]]
    """Parts by engine and router; under EVERY instead of a router's name: each has the same."""

    def parts(self, engine: str, router: str) -> Parts:
        """What a router may use of an engine; nothing where it is not told."""
        rows = self.engines.get(engine, {})
        return rows.get(router) or rows.get(EVERY, NOTHING)


History = tuple[Given, ...]
"""Revisions that were written one after the other, the newest last."""


def given(admission: AdmissionStatus) -> Given:
    """What a status gives to each router."""
    routers = tuple(router.name for router in admission.routers)
    names = (POT, *(item.name for item in admission.classes))
    engines: dict[str, dict[str, Parts]] = {}
    for engine in admission.engines:
        if engine.grants:
            rows = [dict(zip(names, map(int, row.split()), strict=False)) for row in engine.grants]
            engines[engine.name] = dict(zip(routers, rows, strict=False))
        else:
            engines[engine.name] = {name: _whole(engine) for name in routers or (EVERY,)}
    return Given(admission.revision, routers, engines)


def line(parts: Parts, classes: list[str]) -> str:
    """One router's line of an engine's grants."""
    return " ".join(str(parts.get(name, 0)) for name in (POT, *classes))


def seen(history: History, stored: AdmissionStatus | None) -> History:
    """The history once this status was read: begun anew if somebody else wrote it."""
    if stored is None:
        return ()
    if history and history[-1].revision == stored.revision:
        return history
    return (given(stored),)


def wrote(history: History, written: AdmissionStatus) -> History:
    """The history once this process replaced its newest revision with another."""
    if history and history[-1].revision >= written.revision:
        return history
    return (*history, given(written))[-MAX_GIVEN:]


def in_force(history: History, engine: str, router: RouterState) -> Parts | None:
    """The largest parts of an engine that may be in force at a router; None where that is not known.

    A router applies newer revisions only, so what it reported as applied is the oldest that may be in force.
    """
    applied = router.snapshot.applied_revision if router.snapshot is not None else -1
    if not history or not history[0].revision <= applied <= history[-1].revision:
        return None
    most: dict[str, int] = {}
    start = max(at for at, entry in enumerate(history) if entry.revision <= applied)
    for entry in history[start:]:
        for name, part in entry.parts(engine, router.name).items():
            most[name] = max(most.get(name, 0), part)
    return most


def sharers(pool: RolloutPool) -> int:
    """How many routers share an engine that no status speaks of yet."""
    listed = pool.status.admission.routers if pool.status.admission is not None else []
    return max(pool.spec.router.replicas, len(listed))


def own_part(pool: RolloutPool, router: str, *, deserted: bool = False) -> RolloutPool:
    """The object as one router must read it: with its own part as if that were all there is.

    Where there are several routers, what the status gives to none of them is nothing: a class that it does
    not know yet, and all engines for a router that is not listed.

    Args:
        pool: as read.
        router: its name.
        deserted: no router that the status lists is there any more, and no operator to list this one: it
            takes the part that it would have without a list.
    """
    admission = pool.status.admission
    if admission is None:
        return pool
    routers = [item.name for item in admission.routers]
    alone = routers == [router] or (not routers and pool.spec.router.replicas == 1)
    if alone and not any(engine.grants for engine in admission.engines):
        return pool
    told = given(admission)
    if router in routers:
        parts = {engine.name: told.parts(engine.name, router) for engine in admission.engines}
    elif deserted or not routers:
        parts = {engine.name: _fraction(engine, told, pool) for engine in admission.engines}
    else:
        endpoints = (item.name for item in pool.status.endpoints.admin)
        parts = dict.fromkeys((*told.engines, *endpoints), NOTHING)
    nothing = {POT: 0, **dict.fromkeys((workload.name for workload in pool.spec.workloads), 0)}
    known = {engine.name: engine for engine in admission.engines}
    engines = [_reduced(name, known.get(name), {**nothing, **part}) for name, part in parts.items()]
    own = admission.model_copy(update={"engines": engines})
    return pool.model_copy(update={"status": pool.status.model_copy(update={"admission": own})})


def _whole(engine: EngineAdmission) -> Parts:
    return {POT: engine.protected_blocks, **{item.name: item.cap for item in engine.classes}}


def _fraction(engine: EngineAdmission, told: Given, pool: RolloutPool) -> Parts:
    """One part of as many as there are routers; where only grants tell the caps, of their sum."""
    granted: Counter[str] = Counter()
    for parts in told.engines[engine.name].values() if engine.grants else ():
        granted.update(parts)
    return {name: part // pool.spec.router.replicas for name, part in {**granted, **_whole(engine)}.items()}


def _reduced(name: str, engine: EngineAdmission | None, parts: Parts) -> EngineAdmission:
    """An engine with these parts of it; one that the status does not tell of has no size."""
    told = engine or EngineAdmission(name=name, capacity_blocks=0, protected_blocks=0)
    shown = {item.name: item for item in told.classes}
    classes = [
        shown[name].model_copy(update={"cap": cap}) if name in shown else EngineClass(name=name, cap=cap)
        for name, cap in parts.items()
        if name != POT
    ]
    return told.model_copy(update={"protected_blocks": parts[POT], "classes": classes})
