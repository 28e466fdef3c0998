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
    """Hard: classes ahead of their share wait for the others. Soft: drift is only reported.
    Validated; its effect comes with a later version."""
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
    """When caps contract under KV pressure and how they recover.

    Validated; its effect comes with a later version.
    """

    enabled: bool = True
    """False: caps follow demand alone."""
    kv_usage_percent: int = Field(default=95, ge=1, le=100)
    """KV usage from which pressure is confirmed, in percent."""
    hit_rate_drop_percent: int = Field(default=20, ge=1, le=100)
    """Fall of the prefix hit rate below its recent healthy level that signals pressure, in percent."""
    decrease_percent: int = Field(default=20, ge=1, le=90)
    """One contraction, in percent of the caps."""
    increase_percent: int = Field(default=5, ge=1, le=100)
    """One recovery step, in percent of the full caps."""


class AdmissionSpec(ApiModel):
    """Which sessions may enter the engines."""

    policy: AdmissionPolicy = AdmissionPolicy.MISA_T
    """MISA-T: caps by block-seconds; MISA: by blocks; Session: one for all; Static: by share; None: none."""
    safety: float = Field(default=0.95, gt=0, le=1)
    """Part of an engine's KV blocks that admitted sessions may fill (1 - epsilon)."""
    window_seconds: int = Field(default=300, ge=10, le=86_400)
    """Time over which footprint and residency are estimated, in seconds."""
    floor: int = Field(default=1, ge=1, le=1024)
    """Sessions of every class that may enter an engine whatever the demand, where they fit."""
    lending: bool = True
    """A class with no waiting session lends its unused quota.
    Validated; its effect comes with a later version."""
    park_idle_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Idle time after which a session stops holding its place, in seconds. Default: computed.
    Validated; its effect comes with a later version."""
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


class RouterSpec(ApiModel):
    """The router in front of the engines."""

    replicas: int = Field(default=1, ge=1, le=1)
    """Router pods. This version supports 1: sessions and queues live in one router."""
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
