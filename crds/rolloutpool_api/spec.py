"""The spec of a RolloutPool: what the user asks for."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from rolloutpool_api import cel
from rolloutpool_api.base import ApiModel, map_list, rules
from rolloutpool_api.engine import EngineSpec, ModelSpec
from rolloutpool_api.planning import GpuSpec, PlanningSpec, SloSpec
from rolloutpool_api.serving import AdmissionSpec, MixtureSpec, RouterSpec
from rolloutpool_api.workloads import WorkloadSpec


class RolloutPoolSpec(ApiModel):
    """One model, one target mixture, one GPU budget, and the SLOs to keep."""

    model_config = ConfigDict(json_schema_extra=rules(cel.SPEC))

    model: ModelSpec
    """The model that every engine of the pool serves."""
    workloads: list[WorkloadSpec] = Field(min_length=1, max_length=16, json_schema_extra=map_list("name"))
    """The rollout classes and the share of the trainer's batch that each must have."""
    gpus: GpuSpec
    """The GPUs that the pool may use."""
    engine: EngineSpec = EngineSpec()
    """How the vLLM engines are run."""
    mixture: MixtureSpec = MixtureSpec()
    """How closely the consumed mixture must follow the shares."""
    slo: SloSpec | None = None
    """Latency objectives (95th percentiles) and the demand they hold for."""
    planning: PlanningSpec = PlanningSpec()
    """How replicas are chosen."""
    admission: AdmissionSpec = AdmissionSpec()
    """Which sessions may enter the engines."""
    router: RouterSpec = RouterSpec()
    """The router in front of the engines."""
    paused: bool = False
    """True: the operator observes and reports, and changes nothing; engines and router go on."""
