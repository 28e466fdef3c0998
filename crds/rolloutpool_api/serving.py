"""Spec: mixture, admission and the router."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rolloutpool_api.base import ApiModel
from rolloutpool_api.engine import PodOverlay, ResourceSpec


class Enforcement(StrEnum):
    """What drift beyond the tolerance leads to."""

    HARD = "Hard"
    SOFT = "Soft"


class MixtureSpec(ApiModel):
    """How closely the consumed mixture must follow the shares."""

    tolerance_percentage_points: float = Field(default=3.0, gt=0, le=100)
    """Drift (total variation distance) that is still fine, in percentage points."""
    enforcement: Enforcement = Enforcement.HARD
    """Hard: classes ahead of their share wait for the others. Soft: they may use what the others leave."""
    window_samples: int = Field(default=1000, ge=10, le=100_000)
    """Consumed samples over which drift is measured."""


class AdmissionPolicy(StrEnum):
    """Which sessions may enter the engines."""

    MISA_T = "MISA-T"
    MISA = "MISA"
    SESSION = "Session"
    STATIC = "Static"
    NONE = "None"


class PressureSpec(ApiModel):
    """When caps contract under KV pressure and how they recover."""

    enabled: bool = True
    """False: caps follow demand alone."""
    kv_usage_percent: int = Field(default=95, ge=1, le=100)
    """KV usage of an engine that confirms pressure, in percent. Preemptions confirm it too."""
    hit_rate_drop_percent: int = Field(default=20, ge=1, le=100)
    """Fall of the prefix hit rate below its recent healthy level that signals pressure, in percent of it."""
    decrease_percent: int = Field(default=10, ge=1, le=90)
    """One contraction, in percent of what the sessions may fill."""
    increase_percent: int = Field(default=2, ge=1, le=100)
    """One recovery step, in percent of the protected blocks."""
    max_percent: int = Field(default=50, ge=1, le=90)
    """Furthest contraction, in percent of the protected blocks."""


class AdmissionSpec(ApiModel):
    """Which sessions may enter the engines.

    The switches from `timeAveragedFootprint` to `groups` extend policy MISA-T beyond its paper; with all of
    them false (and lending and pressure) it is the paper's. The other policies ignore them.
    """

    policy: AdmissionPolicy = AdmissionPolicy.MISA_T
    """MISA-T: caps by block-seconds; MISA: by blocks; Session: one for all; Static: by share; None: none."""
    safety: float = Field(default=0.95, gt=0, le=1)
    """Confidence that admitted sessions fit an engine's KV blocks (1 - epsilon). Without chanceConstraint:
    part of the blocks that they may fill."""
    window_seconds: int = Field(default=300, ge=10, le=86_400)
    """Time over which footprint and residency are estimated, in seconds."""
    prior_weight: float = Field(default=8.0, gt=0, le=10_000)
    """How many observed sessions the priors of a class count for."""
    floor: int = Field(default=1, ge=1, le=1024)
    """Sessions of every class that may enter an engine whatever the demand, where they fit."""
    time_averaged_footprint: bool = True
    """A session counts with the blocks that it holds on average for itself alone; false: with its peak."""
    censoring: bool = True
    """Footprint and residency are estimated from running sessions too; false: from finished ones alone."""
    chance_constraint: bool = True
    """Sessions enter while the forecast of what all residents hold stays within an engine's blocks with
    probability `safety`, and caps bind while other classes wait; false: caps alone, with a fixed reserve."""
    feasible_floors: bool = True
    """Floors that do not fit an engine together are given in turns; false: every class keeps its floor."""
    lending: bool = True
    """A class may exceed its cap while no other class waits."""
    mixture_debt: bool = True
    """The class furthest behind its share enters next; false: the session that waits longest."""
    parking: bool = True
    """A session whose tool gap costs more to hold than to recompute stops counting as resident."""
    park_idle_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Idle time after which a session is parked, in seconds. Default: computed from the profile."""
    groups: bool = True
    """Samples of one prompt enter together where they fit."""
    starvation_seconds: int = Field(default=120, ge=1, le=86_400)
    """A class that waits this long without an entry goes first, and room is kept for it, in seconds."""
    pressure: PressureSpec = PressureSpec()
    """When caps contract under KV pressure."""


class ServiceType(StrEnum):
    """Kinds of Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class RouterService(ApiModel):
    """The Service that trainers use."""

    type: ServiceType = ServiceType.CLUSTER_IP
    """Kind of Service."""
    port: int = Field(default=80, ge=1, le=65_535)
    """Port of the Service."""
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=32)] = {}
    """Annotations of the Service."""


MAX_ROUTER_REPLICAS = 8
"""Most routers of a pool: the status tells what each may use of every engine."""


class RouterSpec(ApiModel):
    """The routers in front of the engines."""

    replicas: int = Field(default=1, ge=1, le=MAX_ROUTER_REPLICAS)
    """Router pods. Each session belongs to one of them and they share the caps; more than one lets sessions
    go on while a router is lost or replaced."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Router image. Default: the one that the operator was installed with."""
    image_pull_policy: Annotated[str, Field(pattern="^(Always|IfNotPresent|Never)$")] | None = None
    """When the image is pulled. Default: as the operator was installed."""
    resources: ResourceSpec = ResourceSpec(
        requests={"cpu": "250m", "memory": "128Mi"}, limits={"memory": "1Gi"}
    )
    """CPU and memory of a router pod."""
    service: RouterService = RouterService()
    """The Service that trainers use."""
    pod_template: PodOverlay | None = None
    """Strategic-merge overlay on the router's pod template (metadata and spec)."""
    trainers: list[PodOverlay] = Field(default=[], max_length=16)
    """Who may reach the router, as NetworkPolicy peers (podSelector, namespaceSelector, ipBlock).
    Default: every pod of the pool's namespace."""
