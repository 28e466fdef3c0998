"""The RolloutPool object of a scenario: the spec and status that routers and operator see on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rolloutpool_api.engine import EngineSpec, ModelSpec
from rolloutpool_api.planning import GpuSpec, Role
from rolloutpool_api.serving import RouterSpec
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import AdmissionStatus, Endpoints, EngineEndpoint, RolloutPoolStatus
from rolloutpool_api.v1alpha1 import Metadata, RolloutPool
from rolloutpool_api.workloads import Overload, Priors, TokenPrior, WorkloadSpec
from rolloutpool_sim.fleet.sampling import ClassSource, Sample

if TYPE_CHECKING:
    from random import Random

    from rolloutpool_sim.fleet.sampling import Randoms
    from rolloutpool_sim.fleet.scenario import Scenario
    from rolloutpool_sim.fleet.workload import Workload

LONGEST_GAP_SECONDS = 86_400.0
"""Longest mean tool gap that a spec's priors can tell, in seconds."""
TYPICAL_GROUPS = 128
"""Groups that are drawn to find out what a class's sessions look like."""
IDLE_SECONDS = 3600.0
"""Idle time of classes with several turns, in seconds: the trainer ends each session itself."""
MAX_WAITING = 100_000
"""Requests of a class that may wait: the most that the API allows."""


def typical_samples(
    workload: Workload, *, max_model_len: int, randoms: Randoms, output_factor: float = 1.0
) -> list[Sample]:
    """Some samples of a class as it is; those of the run are others."""

    def apart(name: str) -> Random:
        return randoms(f"typical/{name}")

    source = ClassSource(workload, max_model_len=max_model_len, randoms=apart)
    source.grow_outputs(output_factor)
    return [sample for _ in range(TYPICAL_GROUPS) for sample in source.next_group()]


def true_priors(workload: Workload, samples: Sequence[Sample]) -> Priors:
    """What someone who knew the class's distributions would write as its priors."""
    turns = [turn for sample in samples for turn in sample.turns]
    later = [turn for sample in samples for turn in sample.turns[1:]]
    return Priors(
        prompt_tokens=_tokens(sample.group.prompt_tokens for sample in samples),
        output_tokens=_tokens(turn.output_tokens for turn in turns),
        turn_tokens=round(_mean([turn.added_tokens for turn in later])),
        turns=max(1, round(len(turns) / len(samples))),
        tool_gap_seconds=min(_mean([turn.gap_seconds for turn in later]), LONGEST_GAP_SECONDS),
        samples_per_prompt=workload.group_size,
    )


def pool_spec(scenario: Scenario, randoms: Randoms) -> RolloutPoolSpec:
    """The spec of a scenario's pool."""
    fleet = scenario.fleet
    given = {} if scenario.priors == "FromWorkloads" else scenario.priors
    workloads = []
    for workload in scenario.workloads:
        priors = given.get(workload.name)
        if priors is None:
            samples = typical_samples(workload, max_model_len=fleet.max_model_len, randoms=randoms)
            priors = true_priors(workload, samples)
        workloads.append(
            WorkloadSpec(
                name=workload.name,
                share=workload.share,
                priors=priors,
                overload=Overload(max_waiting=MAX_WAITING),
                session_idle_seconds=_idle_seconds(workload),
            )
        )
    return RolloutPoolSpec(
        model=ModelSpec(name="simulated", max_model_len=fleet.max_model_len),
        workloads=workloads,
        gpus=GpuSpec(budget=fleet.engines * fleet.tensor_parallel),
        engine=EngineSpec(block_size=fleet.block_size),
        admission=scenario.admission,
        mixture=scenario.mixture,
        router=RouterSpec(replicas=fleet.routers),
    )


def pool_object(
    spec: RolloutPoolSpec,
    *,
    engines: Sequence[str],
    ready: Sequence[bool],
    admission: AdmissionStatus | None = None,
) -> RolloutPool:
    """The object with these engines and caps in its status."""
    admin = [
        EngineEndpoint(name=name, role=Role.AGGREGATED, url=f"http://{name}", ready=up)
        for name, up in zip(engines, ready, strict=True)
    ]
    return RolloutPool(
        metadata=Metadata(name="simulated", uid="simulated", generation=1),
        spec=spec,
        status=RolloutPoolStatus(endpoints=Endpoints(admin=admin), admission=admission),
    )


def _idle_seconds(workload: Workload) -> float | None:
    if workload.session_idle_seconds is not None:
        return workload.session_idle_seconds
    return 0.0 if workload.single_turn else IDLE_SECONDS


def _tokens(counts: Iterable[int]) -> TokenPrior:
    ordered = sorted(counts)
    p50, p95 = (ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.95))
    return TokenPrior(p50=max(1, p50), p95=max(1, p95))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
