"""The replicas to choose from: (role, parallelism) with the load each carries within KV and SLOs.

A candidate's capacity is the largest load at which all of this holds: its batch or queue can carry it, the
sessions' KV fits, and every class's p95 TTFT and ITL meet its SLO. All of these get worse with load, so the
capacity is found by bisection.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rolloutpool_api.planning import PlanningMode, Role
from rolloutpool_sim.profile import ParallelismProfile, PerformanceProfile

from .inputs import EngineLimits, Parallelism, PlannerInputs
from .mix import Mix, mix_of
from .performance import (
    MAX_PREFILL_UTILIZATION,
    AggregatedModel,
    DecodeModel,
    DecodePace,
    LoadState,
    PrefillModel,
    RoleModel,
)

BISECTIONS = 40
"""Halvings of the load interval: the capacity is exact to about 1e-12 of the highest load."""

IDLE_LOAD = 1e-9
"""Part of the highest load that counts as no load: what is not met here cannot be met at all."""

SLO_SLACK = 1e-9
"""Relative rounding error that is no breach of an SLO."""


@dataclass(frozen=True, kw_only=True)
class Breach:
    """The first limit that a load breaks, in words with numbers."""

    what: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One replica of a role and parallelism: `capacity` in samples per second and what limits it."""

    role: Role
    parallelism: Parallelism
    model: RoleModel
    capacity: float
    limited_by: str

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.parallelism.gpus

    @property
    def label(self) -> str:
        """Role and parallelism, e.g. "prefill TP2"."""
        return f"{self.role} {self.parallelism}"


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A role and parallelism that cannot serve the mix at all, and why (`what`: "kv", "ttft", "itl")."""

    role: Role
    parallelism: Parallelism
    what: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """What can be chosen, what cannot, and the mix that both were judged by; in a fixed order."""

    mix: Mix
    usable: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]

    def of(self, role: Role) -> tuple[Candidate, ...]:
        """The usable candidates of a role."""
        return tuple(c for c in self.usable if c.role is role)


def breach(model: RoleModel, state: LoadState) -> Breach | None:
    """The first limit that `state` breaks, or None if it is within all of them."""
    kv = model.limits.kv_fill * model.engine.kv_capacity_tokens
    if state.kv_tokens > kv * (1 + SLO_SLACK):
        return Breach(what="kv", text=f"KV capacity ({kv:.0f} tokens at {model.limits.kv_fill:.0%} fill)")
    for c, ttft in zip(model.mix.classes, state.ttft_p95, strict=False):
        slo = c.workload.ttft_slo_seconds
        if slo is not None and ttft > slo * (1 + SLO_SLACK):
            return Breach(what="ttft", text=f"TTFT p95 SLO {slo:.3g} s of {c.workload.name}")
    for c in model.mix.classes:
        slo = c.workload.itl_slo_seconds
        if slo is not None and state.itl_p95 is not None and state.itl_p95 > slo * (1 + SLO_SLACK):
            return Breach(what="itl", text=f"ITL p95 SLO {slo * 1e3:.3g} ms of {c.workload.name}")
    if state.prefill_utilization > MAX_PREFILL_UTILIZATION * (1 + SLO_SLACK):
        return Breach(what="queue", text=f"prefill queue at {MAX_PREFILL_UTILIZATION:.0%}")
    return None


def capacity(model: RoleModel) -> tuple[float, str]:
    """Largest load within all limits, and the limit met there; 0 if even an idle replica breaks one."""
    low, high = 0.0, model.highest_load()
    broken = breach(model, model.state(high))
    if broken is None:
        return high, "compute (largest useful batch)"
    if breach(model, model.state(high * IDLE_LOAD)) is not None:
        return 0.0, broken.text
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        found = breach(model, model.state(middle))
        if found is None:
            low = middle
        else:
            high, broken = middle, found
    return low, broken.text


def why_impossible(model: RoleModel) -> Breach | None:
    """Why this replica cannot serve the mix even when idle, with numbers; None if it can."""
    longest = model.mix.longest_session()
    kv = model.engine.kv_capacity_tokens
    if kv < longest.longest_session_tokens:
        needed = longest.longest_session_tokens
        text = f"its KV holds {kv} tokens, a long {longest.workload.name} session has {needed}"
        return Breach(what="kv", text=text)
    length = model.limits.max_model_len
    if length is not None and not model.engine.fits(length):
        return Breach(what="kv", text=f"its KV holds {kv} tokens, less than the model length of {length}")
    state = model.state(model.highest_load() * IDLE_LOAD)
    found = breach(model, state)
    if found is None:
        return None
    if found.what == "ttft":
        best = "/".join(f"{seconds:.3g}" for seconds in state.ttft_p95)
        names = "/".join(c.workload.name for c in model.mix.classes)
        return Breach(what="ttft", text=f"{found.text} is out of reach: idle it takes {best} s ({names})")
    itl = (state.itl_p95 or 0.0) * 1e3
    return Breach(what=found.what, text=f"{found.text} is out of reach: idle it takes {itl:.3g} ms")


def engines(inputs: PlannerInputs, profile: PerformanceProfile) -> tuple[ParallelismProfile, ...]:
    """The profile's entries that the inputs allow, smallest first."""
    allowed = inputs.allowed_parallelism
    known = (
        p
        for p in profile.parallelism
        if allowed is None or Parallelism(p.tensor_parallel, p.pipeline_parallel) in allowed
    )
    return tuple(sorted(known, key=lambda p: (p.gpus, p.tensor_parallel)))


def roles(mode: PlanningMode) -> tuple[Role, ...]:
    """Roles that a mode may use, in the order in which ties are broken."""
    if mode is PlanningMode.AGGREGATED:
        return (Role.AGGREGATED,)
    if mode is PlanningMode.DISAGGREGATED:
        return (Role.PREFILL, Role.DECODE)
    return (Role.AGGREGATED, Role.PREFILL, Role.DECODE)


def model_of(
    role: Role, engine: ParallelismProfile, mix: Mix, limits: EngineLimits, pace: DecodePace
) -> RoleModel:
    """The load model of one replica."""
    if role is Role.PREFILL:
        return PrefillModel(engine=engine, mix=mix, limits=limits, pace=pace)
    if role is Role.DECODE:
        return DecodeModel(engine=engine, mix=mix, limits=limits)
    return AggregatedModel(engine=engine, mix=mix, limits=limits)


def pace_of(mix: Mix, limits: EngineLimits, known: Sequence[ParallelismProfile]) -> DecodePace:
    """The decode engine with the most capacity per GPU and its ITL there: what prefill reckons with."""

    def rank(engine: ParallelismProfile) -> tuple[float, int]:
        return capacity(DecodeModel(engine=engine, mix=mix, limits=limits))[0] / engine.gpus, -engine.gpus

    best = max(known, key=rank)
    model = DecodeModel(engine=best, mix=mix, limits=limits)
    return DecodePace(itl=model.state(capacity(model)[0]).itl_mean, engine=best)


def candidates(inputs: PlannerInputs, profile: PerformanceProfile) -> Candidates:
    """Evaluate every role that the mode may use in every allowed parallelism, smallest replicas first."""
    mix = mix_of(inputs)
    usable, rejected = [], []
    for model_role, parallelism, model in _models(inputs, profile, mix):
        problem = why_impossible(model)
        if problem is not None:
            rejected.append(
                Rejected(role=model_role, parallelism=parallelism, what=problem.what, reason=problem.text)
            )
            continue
        load, limit = capacity(model)
        usable.append(
            Candidate(role=model_role, parallelism=parallelism, model=model, capacity=load, limited_by=limit)
        )
    return Candidates(mix=mix, usable=tuple(usable), rejected=tuple(rejected))


def _models(
    inputs: PlannerInputs, profile: PerformanceProfile, mix: Mix
) -> Iterator[tuple[Role, Parallelism, RoleModel]]:
    known = engines(inputs, profile)
    if not known:
        return
    pace = pace_of(mix, inputs.limits, known)
    for role in roles(inputs.mode):
        for engine in known:
            parallelism = Parallelism(engine.tensor_parallel, engine.pipeline_parallel)
            yield role, parallelism, model_of(role, engine, mix, inputs.limits, pace)


def reference(found: Candidates) -> Candidate | None:
    """Where sessions live at the most capacity per GPU: aggregated if there is any, else decode."""
    homes = found.of(Role.AGGREGATED) or found.of(Role.DECODE)
    return max(homes, key=lambda c: (c.capacity / c.gpus, -c.gpus), default=None)


def demanded_rate(inputs: PlannerInputs, found: Candidates) -> float | None:
    """The demand in samples per second; None if there is none, or nothing could serve it.

    Requests count turns. Open sessions follow Little's law: their number over the residency of a session on
    the reference replica at its capacity, the slowest pace that keeps the SLOs.
    """
    if inputs.demand is None:
        return None
    if inputs.demand.requests_per_second is not None:
        return inputs.demand.requests_per_second / found.mix.requests_per_sample
    home = reference(found)
    if home is None or inputs.demand.concurrent_sessions is None:
        return None
    state = home.model.state(home.capacity)
    residency = found.mix.residency_seconds(ttft=state.ttft_mean, itl=state.itl_mean)
    return inputs.demand.concurrent_sessions / residency if math.isfinite(residency) else None
