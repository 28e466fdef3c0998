"""Shares the caps of a pool between its routers, so that they never sum above an engine's, whoever lags.

A status is written by one operator and applied by each router when it hears of it. A cap that moves from one
router to another is therefore taken first, and given only once the loser has applied that: `grants.in_force`
bounds what every router may still enforce, and `splitting.stage` gives out no more than that leaves. Beyond
the stored status and what routers report, an operator needs only the revisions that it wrote since: one that
starts anew raises nothing until every router has applied the revision that it found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolloutpool_api.serving import AdmissionPolicy
from rolloutpool_api.status import MAX_ROUTERS, AdmissionStatus, EngineAdmission, RouterShare
from rolloutpool_router.core.grants import POT, Given, History, given, in_force, line
from rolloutpool_router.core.roster import RouterState
from rolloutpool_router.core.splitting import Claim, Holding, apportion, split, stage

PART_CHANGE = 0.05
"""Relative change of a router's part that is worth a write; one session always is where the part is small."""
MAX_PAIRS = 768
"""Most pairs of engine and class that the status shows one by one where grants tell the caps as well."""

Row = dict[str, int]
"""Parts of one amount, by router."""


def share(
    fresh: AdmissionStatus, *, routers: Sequence[RouterState], replicas: int, history: History
) -> AdmissionStatus:
    """The status with the routers listed, and with what each of them may use where there are several.

    Args:
        fresh: the caps of all routers together, as computed now.
        routers: all that may be alive (`roster.alive`); one that is not ready gets nothing, and what it holds
            is given to others once it has let go of it or is gone.
        replicas: routers that the spec asks for.
        history: revisions written so far (`grants.seen`, `grants.wrote`).
    """
    last = history[-1] if history else Given(0, (), {})
    listed = _listed(routers, last)
    shares = [RouterShare(name=router.name, url=router.url) for router in listed]
    many = len(fresh.engines) * len(fresh.classes) > MAX_PAIRS
    if fresh.policy is AdmissionPolicy.NONE or (len(routers) == len(listed) == 1 and not many):
        return fresh.model_copy(update={"routers": shares})
    demand = _Demand(fresh, {router.name: _report(router) for router in routers}, last)
    sharers = max(replicas, len(routers))
    engines = [
        _shared(engine, demand, routers=routers, listed=listed, sharers=sharers, history=history)
        for engine in fresh.engines
    ]
    if many:
        engines = [engine.model_copy(update={"classes": []}) for engine in engines]
    return fresh.model_copy(update={"routers": shares, "engines": engines})


def shares_matter(new: AdmissionStatus, old: AdmissionStatus | None) -> bool:
    """Whether what single routers may use is worth a write: another router, or a part that moves enough."""
    if old is None or new.routers != old.routers:
        return True
    after, before = given(new), given(old)
    return any(
        _moved(part, before.parts(engine, router).get(name, 0))
        for engine, rows in after.engines.items()
        for router, parts in rows.items()
        for name, part in parts.items()
    )


def _moved(after: int, before: int) -> bool:
    return abs(after - before) >= max(1.0, PART_CHANGE * before)


def _listed(routers: Sequence[RouterState], last: Given) -> list[RouterState]:
    """Routers that sessions belong to: the ready ones; while there is none, those listed before, or all."""
    before = {name: at for at, name in enumerate(last.routers)}
    ready = [router for router in routers if router.ready and (router.snapshot or router.name in before)]
    chosen = ready or [router for router in routers if router.name in before] or routers
    return sorted(chosen, key=lambda router: (before.get(router.name, len(before)), router.name))[
        :MAX_ROUTERS
    ]


@dataclass(frozen=True)
class _Report:
    """What one router says of its sessions."""

    active: Mapping[str, Mapping[str, int]]
    """Residents, by engine and class."""
    blocks: Mapping[str, int]
    """KV blocks that they hold, by engine."""
    waiting: Mapping[str, int]
    oldest_wait: Mapping[str, float]
    """Of those that wait, by class; classes without any are absent."""


def _report(router: RouterState) -> _Report:
    engines = router.snapshot.engines if router.snapshot is not None else []
    waiting = [
        item for item in (router.snapshot.classes if router.snapshot is not None else []) if item.waiting
    ]
    return _Report(
        active={engine.name: {item.name: item.active for item in engine.classes} for engine in engines},
        blocks={engine.name: sum(item.blocks for item in engine.classes) for engine in engines},
        waiting={item.name: item.waiting for item in waiting},
        oldest_wait={item.name: max(item.oldest_wait_seconds, 0.001) for item in waiting},
    )


class _Demand:
    """What the routers use and want of each engine."""

    def __init__(self, fresh: AdmissionStatus, reports: Mapping[str, _Report], last: Given) -> None:
        self.names = [item.name for item in fresh.classes]
        self.last = last
        self._reports = reports
        self._footprints = {item.name: max(1, item.footprint_blocks) for item in fresh.classes}
        self._blind = fresh.policy is AdmissionPolicy.SESSION
        self._blocks = max(1, sum(engine.capacity_blocks for engine in fresh.engines))
        self._turn = self._next_turn(fresh)

    def used(self, engine: str, router: str, name: str) -> int:
        """Units of an amount in use: blocks for the pot, else sessions."""
        report = self._reports[router]
        active = report.active.get(engine, {})
        if name == POT:
            expected = sum(active.get(item, 0) * blocks for item, blocks in self._footprints.items())
            return max(expected, report.blocks.get(engine, 0))
        return sum(active.values()) if self._blind else active.get(name, 0)

    def caps(self, engine: EngineAdmission, name: str, total: int, routers: Sequence[str]) -> Row:
        """What each router should have of a cap."""
        names = self.names if self._blind else [name]
        fraction = engine.capacity_blocks / self._blocks
        claims = {}
        for router in routers:
            report = self._reports[router]
            waiting = sum(report.waiting.get(item, 0) for item in names)
            claims[router] = Claim(
                demand=self.used(engine.name, router, name) + waiting * fraction,
                part=self.last.parts(engine.name, router).get(name, 0),
                oldest_wait=max((report.oldest_wait.get(item, 0.0) for item in names), default=0.0),
            )
        return split(total, claims)

    def pot(self, engine: EngineAdmission, caps: Mapping[str, Row], routers: Sequence[str]) -> Row:
        """What each router should have of the protected blocks: in proportion to what its caps may hold."""
        claims = {
            router: Claim(
                demand=sum(row[router] * self._footprints[name] for name, row in caps.items()),
                part=self.last.parts(engine.name, router).get(POT, 0),
            )
            for router in routers
        }
        total = engine.protected_blocks
        if self._turn is None or self._turn[0] != engine.name or self._turn[1] not in claims:
            return apportion(total, claims)
        _, router, blocks = self._turn
        kept = min(total, self.used(engine.name, router, POT) + blocks)
        row = apportion(total - kept, claims)
        row[router] += kept
        return row

    def _next_turn(self, fresh: AdmissionStatus) -> tuple[str, str, int] | None:
        """Engine, router and blocks of the session whose turn it is among classes with no cap anywhere.

        Of an engine shared by several routers the part of each may be too small for such a session, so the
        part of the router where one has waited longest is made large enough, on one engine at a time.
        """
        shut_out = [item.name for item in fresh.classes if item.cap == 0]
        waits = [
            (report.oldest_wait[name], router, name)
            for router, report in self._reports.items()
            for name in shut_out
            if name in report.oldest_wait
        ]
        if not waits or not fresh.engines:
            return None
        _, router, name = max(waits)
        engine = max(
            fresh.engines, key=lambda item: (self.last.parts(item.name, router).get(POT, 0), item.name)
        )
        return engine.name, router, self._footprints[name]


def _shared(
    engine: EngineAdmission,
    demand: _Demand,
    *,
    routers: Sequence[RouterState],
    listed: Sequence[RouterState],
    sharers: int,
    history: History,
) -> EngineAdmission:
    """One engine with its grants; what no revision speaks of is divided alike, as routers did without one."""
    names = [router.name for router in listed]
    totals = {item.name: item.cap for item in engine.classes}
    wanted = {name: demand.caps(engine, name, total, names) for name, total in totals.items()}
    wanted[POT] = demand.pot(engine, wanted, names)
    totals[POT] = engine.protected_blocks
    bounds = {router.name: in_force(history, engine.name, router) for router in routers}
    parts: dict[str, Row] = {name: {} for name in names}
    for name, total in totals.items():
        if any(name in row for row in demand.last.engines.get(engine.name, {}).values()):
            holdings = {
                router: Holding(
                    in_force=bound.get(name, 0) if bound is not None else None,
                    part=demand.last.parts(engine.name, router).get(name, 0),
                    used=demand.used(engine.name, router, name),
                )
                for router, bound in bounds.items()
            }
            row = stage(total, wanted[name], holdings)
        else:
            row = dict.fromkeys(names, total // sharers)
        for router, part in row.items():
            parts[router][name] = part
    return engine.model_copy(update={"grants": [line(parts[name], demand.names) for name in names]})
