"""What the router knows of its pool, as one frozen value made from the object, and which objects it accepts.

The object's status is the channel through which the operator sets the caps. A status is applied only if its
`admission.revision` is newer than the one in force; an object that is older, or that cannot be read, changes
nothing, so the last good caps stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rolloutpool_api.planning import Role
from rolloutpool_api.serving import AdmissionPolicy
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import AdmissionStatus
from rolloutpool_api.urls import is_http_url
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_api.workloads import WorkloadSpec
from rolloutpool_router.core.caps import CapInputs, ClassDemand, compute_caps
from rolloutpool_router.core.demand import SessionCost, prior_cost
from rolloutpool_router.core.policy import PolicyRules, rules_of


@dataclass(frozen=True)
class Engine:
    """One engine of the pool."""

    name: str
    role: Role
    url: str
    """Base URL, without a path."""
    ready: bool
    """Whether the operator saw it serve."""
    revision: str
    """Revision of its group: prefill and decode pair only within one."""
    capacity_blocks: int = 0
    """KV blocks that it has; 0 while unknown."""
    protected_blocks: int = 0
    """KV blocks that admitted sessions may fill; 0 while unknown."""
    offload_blocks: int = 0
    """KV blocks that its CPU memory holds beside."""
    pressure: int = 0
    """How far the operator contracted them, in percent."""
    caps: Mapping[str, int] = field(default_factory=dict)
    """Sessions that may be resident, by class."""
    draining: bool = False
    """It is about to go: no new sessions."""
    kv_events_port: int | None = None
    """Port of its KV events; None: as the spec says."""
    kv_replay_port: int | None = None
    """Port that repeats them; None: as the spec says."""

    @property
    def holds_sessions(self) -> bool:
        """Whether sessions stay here: prefill engines only pass through."""
        return self.role is not Role.PREFILL


@dataclass(frozen=True)
class PoolView:
    """The pool as last accepted."""

    name: str
    uid: str
    generation: int
    spec: RolloutPoolSpec
    workloads: Mapping[str, WorkloadSpec]
    """Classes of the spec, by name."""
    models: tuple[str, ...]
    """Model names that requests may ask for: the served one, then adapters named in match rules."""
    engines: Mapping[str, Engine]
    """Engines listed in status.endpoints, by name."""
    admission: AdmissionStatus | None
    """The caps in force as the operator wrote them; None before the first."""
    costs: Mapping[str, SessionCost]
    """Expected footprint (blocks) and residency (seconds) of a session, by class."""

    @property
    def revision(self) -> int:
        """status.admission.revision in force, 0 while none is."""
        return self.admission.revision if self.admission is not None else 0

    @cached_property
    def rules(self) -> PolicyRules:
        """What the policy in force and its switches demand."""
        return rules_of(self.spec, self.policy)

    @cached_property
    def longest_tokens(self) -> float:
        """Most tokens of one sequence, as far as known: an engine takes none that its KV cannot hold."""
        held = max((engine.capacity_blocks for engine in self.engines.values()), default=0)
        return min(self.spec.model.max_model_len or math.inf, held * self.spec.engine.block_size or math.inf)

    @cached_property
    def path_prefixes(self) -> Mapping[str, str]:
        """Class by path prefix of requests, the longest first, so that /math/hard is not taken for /math."""
        prefixes = {w.match.path_prefix: w.name for w in self.workloads.values() if w.match.path_prefix}
        return dict(sorted(prefixes.items(), key=lambda item: -len(item[0])))

    @property
    def park_seconds(self) -> float | None:
        """Idle time after which a session is parked, in seconds; None: never."""
        if not self.rules.parking:
            return None
        told = self.admission.park_idle_seconds if self.admission is not None else 0
        return self.spec.admission.park_idle_seconds or told or None

    @property
    def class_blind(self) -> bool:
        """Whether each cap bounds the sessions of all classes together."""
        return self.policy is AdmissionPolicy.SESSION

    @cached_property
    def policy(self) -> AdmissionPolicy:
        """The policy that the caps in force came from."""
        return self.admission.policy if self.admission is not None else self.spec.admission.policy

    @cached_property
    def capless(self) -> frozenset[str]:
        """Classes without a cap on any engine, over all routers."""
        told = {known.name: known.cap for known in self.admission.classes} if self.admission else {}
        return frozenset(
            name
            for name in self.workloads
            if not (told[name] if name in told else any(e.caps.get(name) for e in self.engines.values()))
        )

    @cached_property
    def overdue_seconds(self) -> float:
        """Seconds without an entry after which a waiting class goes before all others; inf: never."""
        return self.spec.admission.starvation_seconds if self.rules.rescue else math.inf

    @cached_property
    def tolerated_samples(self) -> float:
        """Drift from the mixture that is fine, in samples."""
        mixture = self.spec.mixture
        return mixture.tolerance_percentage_points / 100 * mixture.window_samples

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """The target mixture: share by class."""
        return {name: workload.share for name, workload in self.workloads.items()}

    @cached_property
    def idle_seconds(self) -> Mapping[str, float]:
        """Seconds without a request after which a session has ended, by class."""
        return {name: workload.idle_seconds() for name, workload in self.workloads.items()}


@dataclass(frozen=True)
class Ignored:
    """An object that changed nothing."""

    reason: str


def accept(
    old: PoolView | None, pool: RolloutPool, capacities: Mapping[str, int] | None = None
) -> PoolView | Ignored:
    """The view after an object was read.

    Args:
        old: the view so far.
        pool: the object as read now.
        capacities: KV blocks by engine, where known from the engines themselves; used until a status says.
    """
    known = capacities or {}
    if (unusable := _unusable_url(pool)) is not None:
        return Ignored(unusable)
    if old is None or old.uid != pool.metadata.uid:
        return build_view(pool, pool.status.admission, known)
    if pool.metadata.generation < old.generation:
        return Ignored(f"generation {pool.metadata.generation} is older than {old.generation}")
    new_spec = pool.metadata.generation > old.generation
    admission = pool.status.admission
    if admission is not None and admission.revision < old.revision and not new_spec:
        return Ignored(f"admission.revision {admission.revision} is older than {old.revision}")
    if old.engines and not pool.status.endpoints.admin and not new_spec:
        return Ignored("status.endpoints lists no engine any more: those known stay")
    if admission is None or admission.revision < old.revision:
        admission = old.admission or admission
    return build_view(pool, admission, known)


def _unusable_url(pool: RolloutPool) -> str | None:
    """Which engine or router no request could be sent to; None where all URLs are fine."""
    routers = pool.status.admission.routers if pool.status.admission is not None else ()
    for listed in (*pool.status.endpoints.admin, *routers):
        if not is_http_url(listed.url):
            return f"{listed.name} has the URL {listed.url!r}, which is not http://HOST:PORT"
    return None


def build_view(
    pool: RolloutPool, admission: AdmissionStatus | None, capacities: Mapping[str, int]
) -> PoolView:
    """The view of an object with these caps; engines and classes that they leave out get caps from priors."""
    spec = pool.spec
    workloads = {workload.name: workload for workload in spec.workloads}
    costs = _costs(spec, workloads, admission)
    adapters = (model for workload in spec.workloads for model in workload.match.models)
    return PoolView(
        name=pool.metadata.name,
        uid=pool.metadata.uid,
        generation=pool.metadata.generation,
        spec=spec,
        workloads=workloads,
        models=tuple(dict.fromkeys((spec.model.name, *adapters))),
        engines=_engines(pool, admission, capacities, workloads, costs),
        admission=admission,
        costs=costs,
    )


def _costs(
    spec: RolloutPoolSpec, workloads: Mapping[str, WorkloadSpec], admission: AdmissionStatus | None
) -> dict[str, SessionCost]:
    costs = {
        name: prior_cost(
            workload,
            block_size=spec.engine.block_size,
            slo=spec.slo,
            max_tokens=spec.model.max_model_len,
        )
        for name, workload in workloads.items()
    }
    for known in admission.classes if admission is not None else ():
        if known.name in costs and known.footprint_blocks > 0:
            residency = known.residency_seconds or costs[known.name].residency_seconds
            costs[known.name] = SessionCost(known.footprint_blocks, residency)
    return costs


def _engines(
    pool: RolloutPool,
    admission: AdmissionStatus | None,
    capacities: Mapping[str, int],
    workloads: Mapping[str, WorkloadSpec],
    costs: Mapping[str, SessionCost],
) -> dict[str, Engine]:
    told = {engine.name: engine for engine in admission.engines} if admission is not None else {}
    rules = rules_of(pool.spec, pool.spec.admission.policy)
    bootstrap: dict[int, dict[str, int]] = {}
    engines = {}
    for endpoint in pool.status.endpoints.admin:
        status = told.get(endpoint.name)
        capacity = status.capacity_blocks if status is not None else capacities.get(endpoint.name, 0)
        if capacity not in bootstrap:
            bootstrap[capacity] = bootstrap_caps(pool.spec, capacity, workloads, costs)
        caps = bootstrap[capacity]
        if status is not None:
            caps = caps | {entry.name: entry.cap for entry in status.classes}
        engines[endpoint.name] = Engine(
            name=endpoint.name,
            role=endpoint.role,
            url=endpoint.url.rstrip("/"),
            ready=endpoint.ready,
            revision=endpoint.revision,
            capacity_blocks=capacity,
            protected_blocks=status.protected_blocks
            if status is not None
            else rules.protected_blocks(capacity),
            pressure=status.pressure if status is not None else 0,
            offload_blocks=status.offload_blocks if status is not None else 0,
            caps=caps,
            draining=bool(endpoint.draining),
            kv_events_port=endpoint.kv_events_port,
            kv_replay_port=endpoint.kv_replay_port,
        )
    return engines


def bootstrap_caps(
    spec: RolloutPoolSpec,
    capacity_blocks: int,
    workloads: Mapping[str, WorkloadSpec],
    costs: Mapping[str, SessionCost],
) -> dict[str, int]:
    """Caps of an engine that no status speaks of yet, from priors; the floors while its size is unknown."""
    if capacity_blocks <= 0:
        return dict.fromkeys(workloads, spec.admission.floor)
    demands = tuple(
        ClassDemand(
            name=name,
            share=workload.share,
            sessions=0.0,
            footprint_blocks=costs[name].footprint_blocks,
            residency_seconds=costs[name].residency_seconds,
        )
        for name, workload in workloads.items()
    )
    rules = rules_of(spec, spec.admission.policy)
    inputs = CapInputs(
        rules.protected_blocks(capacity_blocks), spec.admission.floor, rules.feasible_floors, demands
    )
    return dict(compute_caps(spec.admission.policy, inputs).caps)
