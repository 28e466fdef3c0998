"""Spec: the model and the vLLM engines that serve it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from rolloutpool_api import cel
from rolloutpool_api.base import PRESERVE, ApiModel, map_list, rules
from rolloutpool_api.labels import KV_EVENTS_PORT, KV_REPLAY_PORT, WEIGHTS_PORT

Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$", max_length=32)]
"""A Kubernetes quantity, e.g. 500m, 8Gi."""
ResourceMap = Annotated[dict[str, Quantity], Field(max_length=16)]
PodOverlay = Annotated[dict[str, Any], Field(json_schema_extra=PRESERVE)]
"""A piece of a PodTemplateSpec."""


class ModelSpec(ApiModel):
    """What is served."""

    model_config = ConfigDict(json_schema_extra=rules(cel.MODEL))

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", max_length=128)]
    """The served name: what trainers send as `model`. Immutable."""
    source: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Where the weights are: a hub id, a path in the image, or pvc://CLAIM/PATH. Default: the name."""
    revision: Annotated[str, Field(max_length=128)] | None = None
    """Hub revision of the weights: branch, tag or commit."""
    tokenizer: Annotated[str, Field(max_length=512)] | None = None
    """Hub id or path of the tokenizer, where it is not the model's own."""
    dtype: Annotated[str, Field(max_length=32)] | None = None
    """Weight type passed to vLLM, e.g. bfloat16. Default: the model's own."""
    quantization: Annotated[str, Field(max_length=32)] | None = None
    """Quantization method passed to vLLM, e.g. fp8. Default: none."""
    max_model_len: Annotated[int, Field(ge=16, le=16_777_216)] | None = None
    """Longest prompt plus output, in tokens. Default: the model's own."""


class EnvVar(ApiModel):
    """One environment variable of the engine container."""

    model_config = ConfigDict(json_schema_extra=rules(cel.ENV))

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
    """Variable name."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Literal value."""
    value_from: PodOverlay | None = None
    """Source of the value, as in a pod (secretKeyRef, configMapKeyRef, fieldRef)."""


class EmptyDirCache(ApiModel):
    """A cache that lives as long as its pod."""

    size_limit: Quantity | None = None
    """Largest size, in bytes (quantity). Default: the node's disk."""


class ModelCache(ApiModel):
    """Where downloaded weights are kept."""

    model_config = ConfigDict(json_schema_extra=rules(cel.MODEL_CACHE))

    claim_name: Annotated[str, Field(max_length=253)] | None = None
    """A PersistentVolumeClaim shared by all engines (ReadWriteMany)."""
    empty_dir: EmptyDirCache | None = None
    """A folder of the pod; each start downloads anew."""


class SecretKeyRef(ApiModel):
    """One key of a Secret in the pool's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253)] = "token"
    """Key in the Secret."""


class ProbeSpec(ApiModel):
    """Times of the engine's probes."""

    startup_seconds: int = Field(default=3600, ge=10, le=86_400)
    """How long an engine may take to load its model, in seconds."""
    readiness_period_seconds: int = Field(default=5, ge=1, le=300)
    """Seconds between readiness probes of /v1/models."""
    liveness_failure_seconds: int = Field(default=60, ge=10, le=3600)
    """Seconds without an answer from /health before an engine is restarted."""


class KvConnector(StrEnum):
    """How KV blocks move from prefill to decode engines."""

    NIXL = "Nixl"


class KvTransfer(ApiModel):
    """KV transfer between prefill and decode engines."""

    connector: KvConnector = KvConnector.NIXL
    """vLLM KV connector."""


class KvOffload(ApiModel):
    """CPU memory as a second KV tier."""

    size: Quantity
    """CPU memory for KV blocks of one engine, in bytes (quantity)."""


class KvEvents(ApiModel):
    """What engines tell the routers of their prefix caches, as it changes."""

    model_config = ConfigDict(json_schema_extra=rules(cel.KV_EVENTS))

    enabled: bool = False
    """True: engines publish the KV blocks that they store and evict, and routers place prompts of token ids
    by what engines really hold. It costs a router 1 to 7 microseconds a block."""
    port: int = Field(default=KV_EVENTS_PORT, ge=1024, le=65_535)
    """Port of each engine that publishes them (ZeroMQ)."""
    replay_port: int = Field(default=KV_REPLAY_PORT, ge=1024, le=65_535)
    """Port of each engine that repeats past ones (ZeroMQ)."""


class RlSpec(ApiModel):
    """Weight synchronisation: the trainer pauses the pool and puts new weights into its engines."""

    model_config = ConfigDict(json_schema_extra=rules(cel.RL))

    enabled: bool = False
    """True: engines serve vLLM's development endpoints (pause, update_weights), and the router passes them on
    to all engines, on a port of its own; keep the NetworkPolicy on."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret with the token that the router asks of the trainer. Needed where enabled."""
    port: int = Field(default=WEIGHTS_PORT, ge=1024, le=65_535)
    """Port of the router, and of its Service NAME-router-weights, for weight synchronisation."""
    max_pause_seconds: int = Field(default=3600, ge=10, le=86_400)
    """Longest pause, in seconds; after it the trainer is taken for gone, and the router resumes engines."""


class ResourceSpec(ApiModel):
    """CPU and memory of a container."""

    requests: ResourceMap | None = None
    """What the scheduler reserves, e.g. cpu: 500m, memory: 1Gi."""
    limits: ResourceMap | None = None
    """What the container may use."""


class EngineSpec(ApiModel):
    """How the vLLM engines are run."""

    model_config = ConfigDict(json_schema_extra=rules(cel.ENGINE))

    image: Annotated[str, Field(min_length=1, max_length=512)] = "vllm/vllm-openai:v0.32.0"
    """Engine image; its entrypoint takes the arguments of `vllm serve`."""
    image_pull_policy: Annotated[str, Field(pattern="^(Always|IfNotPresent|Never)$")] = "IfNotPresent"
    """When the image is pulled: Always, IfNotPresent or Never."""
    extra_args: list[Annotated[str, Field(max_length=1024)]] = Field(default=[], max_length=64)
    """Further arguments of `vllm serve`, e.g. --max-num-seqs=256."""
    env: list[EnvVar] = Field(default=[], max_length=64, json_schema_extra=map_list("name"))
    """Further environment variables."""
    block_size: int = Field(default=16, ge=1, le=1024)
    """KV block size, in tokens."""
    shm_size: Quantity = "8Gi"
    """Size of /dev/shm, in bytes (quantity); counts towards the memory limit."""
    resources: ResourceSpec = ResourceSpec()
    """CPU and memory of an engine; its GPUs come from the plan."""
    model_cache: ModelCache = ModelCache()
    """Where downloaded weights are kept."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret with the hub token (HF_TOKEN)."""
    probes: ProbeSpec = ProbeSpec()
    """Times of the probes."""
    termination_grace_seconds: int = Field(default=120, ge=1, le=86_400)
    """Seconds that a stopping engine has to finish its requests."""
    pod_template: PodOverlay | None = None
    """Strategic-merge overlay on the engine's pod template (metadata and spec)."""
    kv_transfer: KvTransfer = KvTransfer()
    """KV transfer between prefill and decode engines."""
    kv_offload: KvOffload | None = None
    """CPU memory as a second KV tier of engines that both prefill and decode (vLLM's offloading is a KV
    connector of its own, so prefill and decode engines that transfer KV have none)."""
    kv_events: KvEvents = KvEvents()
    """What engines tell the routers of their prefix caches."""
    rl: RlSpec = RlSpec()
    """Weight synchronisation."""
