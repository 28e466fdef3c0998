"""Scenario files: a whole experiment on one pool, described once and readable by others.

YAML in camelCase; unknown fields are refused; times are in seconds of the virtual clock, which starts at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from rolloutpool_api.base import ApiModel
from rolloutpool_api.serving import AdmissionSpec, MixtureSpec
from rolloutpool_api.workloads import ClassName, Priors
from rolloutpool_sim.fleet.events import Event
from rolloutpool_sim.fleet.workload import Workload
from rolloutpool_sim.profile import ProfileError, load_builtin

SHARES_SLACK = 1e-3
"""How far the shares may sum from 1, for rounding; as the CRD allows."""


class ScenarioError(ValueError):
    """A scenario that cannot be run; the message has one line per wrong field."""


class Offload(ApiModel):
    """CPU memory as second KV tier of each engine, as in vLLM's native offloading."""

    blocks: int = Field(ge=1, le=100_000_000)
    """Blocks that one engine's second tier holds."""
    seconds_per_block: float = Field(default=8.4e-5, ge=0, le=1)
    """Time to load one block back, in seconds. Default: 2 MiB (16 tokens of an 8B model) at 25 GB/s."""


class Fleet(ApiModel):
    """Engines and routers. All engines are alike; they are named engine-0, engine-1, ..."""

    engines: int = Field(default=16, ge=1, le=256)
    """Engines, each aggregated (prefill and decode)."""
    routers: int = Field(default=1, ge=1, le=8)
    """Router replicas; each session belongs to one."""
    profile: Annotated[str, Field(min_length=1, max_length=63)] = "emulated-8b-h100"
    """Built-in performance profile."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """Tensor parallelism of each engine; must be one of the profile's."""
    kv_tokens: Annotated[int, Field(ge=16, le=10**10)] | None = None
    """Tokens that one engine's KV cache holds. Default: the profile's."""
    block_size: int = Field(default=16, ge=1, le=1024)
    """KV block size, in tokens."""
    max_num_seqs: int = Field(default=256, ge=1, le=65_536)
    """Most sequences of one engine's batch."""
    max_num_batched_tokens: int = Field(default=8192, ge=1, le=1_000_000)
    """Most tokens of one engine step."""
    max_model_len: int = Field(default=65_536, ge=16, le=16_777_216)
    """Longest prompt plus output, in tokens; a session that would exceed it ends before."""
    offload: Offload | None = None
    """Second KV tier. Default: none."""

    def engine_names(self) -> tuple[str, ...]:
        """Names of the engines, by index."""
        return tuple(f"engine-{index}" for index in range(self.engines))

    def capacity_tokens(self) -> int:
        """Tokens that one engine's KV cache holds. Raises ProfileError."""
        return self.kv_tokens or load_builtin(self.profile).at(self.tensor_parallel).kv_capacity_tokens


class Refill(StrEnum):
    """Which class an asynchronous trainer submits next."""

    PER_CLASS = "PerClass"
    """Each class keeps its share of the outstanding samples open."""
    MIXTURE = "Mixture"
    """The next class follows the shares of all submitted samples, whichever class finished."""


class TrainerMode(StrEnum):
    """When a trainer submits."""

    ASYNC = "Async"
    """At once for each finished group."""
    SYNC = "Sync"
    """A batch in the mixture; the next when all of it has finished."""


class Trainer(ApiModel):
    """Who asks for samples, in whole groups."""

    mode: TrainerMode = TrainerMode.ASYNC
    """When it submits."""
    refill: Refill = Refill.PER_CLASS
    """Which class it submits next, in mode Async."""
    outstanding: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Samples that it keeps open, waiting or running, in mode Async."""
    outstanding_per_engine: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """The same by engine, instead of `outstanding`."""
    batch: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Samples of one iteration. Default: those kept open."""
    batch_per_engine: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """The same by engine, instead of `batch`."""
    iterations: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Iterations of mode Sync after which the run ends, if its time has not ended it."""

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if self.outstanding is not None and self.outstanding_per_engine is not None:
            raise ValueError("give outstanding or outstandingPerEngine, not both")
        if self.batch is not None and self.batch_per_engine is not None:
            raise ValueError("give batch or batchPerEngine, not both")
        open_given = self.outstanding is not None or self.outstanding_per_engine is not None
        batch_given = self.batch is not None or self.batch_per_engine is not None
        if self.mode is TrainerMode.ASYNC and not open_given:
            raise ValueError("mode Async needs outstanding or outstandingPerEngine")
        if self.mode is TrainerMode.SYNC and not batch_given:
            raise ValueError("mode Sync needs batch or batchPerEngine")
        return self

    def open_samples(self, engines: int) -> int:
        """Samples that it keeps open (Async), in samples."""
        return self.outstanding or max(1, round((self.outstanding_per_engine or 0) * engines))

    def batch_samples(self, engines: int) -> int:
        """Samples of one iteration."""
        if self.batch is None and self.batch_per_engine is None:
            return self.open_samples(engines)
        return self.batch or max(1, round((self.batch_per_engine or 0) * engines))


class Span(ApiModel):
    """A span of time."""

    from_seconds: float = Field(alias="from", ge=0)
    """When it begins, in seconds."""
    to_seconds: float = Field(alias="to", ge=0)
    """When it ends, in seconds."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.to_seconds <= self.from_seconds:
            raise ValueError(f"to {self.to_seconds:g} is not after from {self.from_seconds:g}")
        return self


class Operator(ApiModel):
    """The admission loop and its delays."""

    period_seconds: float = Field(default=2.0, gt=0, le=3600)
    """Time between two looks at routers and engines, in seconds."""
    snapshot_delay_seconds: float = Field(default=0.2, ge=0, le=3600)
    """Age of a snapshot when caps are computed from it, in seconds."""
    status_delay_seconds: float = Field(default=0.3, ge=0, le=3600)
    """Time from computing caps to routers enforcing them, in seconds."""
    delay_factor: float = Field(default=1.0, gt=0, le=1000)
    """Multiplies the period and both delays."""
    away: tuple[Span, ...] = ()
    """When no operator runs."""
    frozen_from: Annotated[float, Field(ge=0)] | None = None
    """From when on the operator changes nothing any more, in seconds; 0: routers only ever see the spec."""


class Kv(StrEnum):
    """How much KV the engines have."""

    FINITE = "Finite"
    """As the fleet says."""
    UNLIMITED = "Unlimited"
    """More than any load fills: what could be had if KV were not scarce."""


class Gate(StrEnum):
    """Who decides which session enters."""

    ROUTER = "Router"
    """The project's admission controller."""
    PROGRAM = "Program"
    """For comparison: whole sessions paused and resumed by KV footprint alone (`program_gate`)."""


class ProgramGate(ApiModel):
    """Parameters of gate Program; see `program_gate` for their source."""

    admit_fraction: float = Field(default=0.85, gt=0, le=2)
    """A new session enters where the engine's sessions and itself fit this part of the KV capacity."""
    high_watermark: float = Field(default=0.95, gt=0, le=2)
    """Sessions are paused on an engine whose sessions fill more than this part."""
    low_watermark: float = Field(default=0.85, gt=0, le=2)
    """Down to this part sessions are paused, and up to it paused ones resume."""


class Scenario(ApiModel):
    """One experiment."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Short name."""
    description: Annotated[str, Field(max_length=4000)] = ""
    """What it is for."""
    fleet: Fleet = Fleet()
    """Engines and routers."""
    workloads: tuple[Workload, ...] = Field(min_length=1, max_length=16)
    """The rollout classes."""
    trainer: Trainer
    """Who asks for samples."""
    operator: Operator = Operator()
    """The admission loop and its delays."""
    events: tuple[Event, ...] = Field(default=(), max_length=1000)
    """What happens when."""
    seconds: float = Field(default=3600.0, gt=0, le=1e7)
    """Length of the run, in seconds."""
    warmup_seconds: float = Field(default=600.0, ge=0)
    """Time at the start that results leave out, in seconds."""
    admission: AdmissionSpec = AdmissionSpec()
    """spec.admission of the pool."""
    mixture: MixtureSpec = MixtureSpec()
    """spec.mixture of the pool."""
    priors: Literal["FromWorkloads"] | dict[ClassName, Priors] = "FromWorkloads"
    """spec.workloads[].priors: those of the true distributions, or given by class. Classes that are left out
    get the true ones."""
    oracle: bool = False
    """The operator is told the true footprint and residency of each class at once, whatever happens."""
    kv: Kv = Kv.FINITE
    """How much KV the engines have."""
    gate: Gate = Gate.ROUTER
    """Who decides which session enters."""
    program_gate: ProgramGate = ProgramGate()
    """Parameters of gate Program."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [*self._class_problems(), *self._fleet_problems(), *self._time_problems()]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _class_problems(self) -> list[str]:
        names = [workload.name for workload in self.workloads]
        problems = []
        total = sum(workload.share for workload in self.workloads)
        if abs(total - 1) > SHARES_SLACK:
            problems.append(f"workloads: the shares sum to {total:g}: change workloads[].share to sum to 1")
        if len(set(names)) != len(names):
            problems.append("workloads: two classes have one name: change workloads[].name")
        known = f"name one of {', '.join(names)}"
        problems += [
            f"events.{index}: no class {event.class_name!r}: {known}"
            for index, event in enumerate(self.events)
            if event.class_name is not None and event.class_name not in names
        ]
        if self.priors != "FromWorkloads":
            problems += [
                f"priors.{name}: no class {name!r}: {known}" for name in self.priors if name not in names
            ]
        return problems

    def _fleet_problems(self) -> list[str]:
        engines = self.fleet.engine_names()
        problems = [
            f"events.{index}: no engine {event.engine!r}: the fleet has {engines[0]} (or 0) to {engines[-1]}"
            for index, event in enumerate(self.events)
            if event.engine is not None and event.engine not in (*engines, *range(len(engines)))
        ]
        if self.fleet.max_num_batched_tokens < self.fleet.max_num_seqs:
            problems.append(
                f"fleet.maxNumBatchedTokens: {self.fleet.max_num_batched_tokens} is below fleet.maxNumSeqs: "
                f"{self.fleet.max_num_seqs}: raise it, vLLM refuses this"
            )
        try:
            capacity = self.fleet.capacity_tokens()
        except ProfileError as error:
            return [*problems, f"fleet.profile: {error}"]
        usable = capacity // self.fleet.block_size * self.fleet.block_size
        if usable < self.fleet.max_model_len:
            problems.append(
                f"fleet.maxModelLen: {self.fleet.max_model_len} tokens do not fit the KV cache of {usable}: "
                "lower it, or raise fleet.kvTokens"
            )
        return problems

    def _time_problems(self) -> list[str]:
        problems = [
            f"events.{index}.at: {event.at:g} is not before the end at {self.seconds:g} seconds"
            for index, event in enumerate(self.events)
            if event.at >= self.seconds
        ]
        if self.warmup_seconds >= self.seconds:
            problems.append(f"warmupSeconds: {self.warmup_seconds:g} must be below seconds: {self.seconds:g}")
        return problems


def parse_scenario(data: Mapping[str, Any]) -> Scenario:
    """Read a scenario from its YAML or JSON form. Raises ScenarioError, one line per wrong field."""
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        lines = []
        for item in error.errors():
            path = ".".join(str(part) for part in item["loc"])
            words = item["msg"].removeprefix("Value error, ")
            lines.append(f"{path}: {words}" if path else words)
        raise ScenarioError("\n".join(lines)) from None


def load_scenario(text: str) -> Scenario:
    """Read a scenario from YAML text. Raises ScenarioError."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScenarioError(f"the scenario is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise ScenarioError("the scenario must be a mapping with name, workloads and trainer")
    return parse_scenario(data)
