"""Arguments and environment of one engine: the same for a pod and for a local process."""

from __future__ import annotations

import json

from rolloutpool_api import labels
from rolloutpool_api.engine import KvConnector
from rolloutpool_api.planning import Role
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import PlanGroup
from rolloutpool_operator.core.children import content_hash
from rolloutpool_operator.core.merging import quantity

VOLUME_SCHEME = "pvc://"
"""Prefix of a model source that names a volume: pvc://CLAIM/PATH."""
MODEL_MOUNT = "/models"
"""Where the claim of a pvc:// source is mounted."""
SHUTDOWN_MARGIN_SECONDS = 5
"""The engine stops waiting for its requests this long before its pod is killed."""
KEEP_ALIVE_SECONDS = 120
"""The engine keeps idle connections for longer than clients do (90 s), so that none meets a reset."""
ANY_HOST = "0.0.0.0"
"""Listen on all addresses."""
KV_EVENTS_BUFFER_STEPS = 1000
"""Steps whose KV events an engine keeps to repeat them, as many as its socket takes at once: a router that
missed more begins anew."""
CONNECTORS = {KvConnector.NIXL: "NixlConnector"}
"""vLLM's names of the KV connectors."""


def engine_args(
    spec: RolloutPoolSpec,
    group: PlanGroup,
    *,
    host: str = ANY_HOST,
    port: int = labels.ENGINE_PORT,
    kv_ports: tuple[int, int] | None = None,
) -> tuple[str, ...]:
    """Arguments after `vllm serve` for an engine of a group; the model comes first, the user's come last.

    Args:
        spec: the pool's spec.
        group: the engine's group.
        host: address that it listens on.
        port: port of its API.
        kv_ports: its ports for KV events and for repeating them; None: those of the spec.
    """
    return (
        model_argument(spec),
        "--served-model-name",
        *served_names(spec),
        *_flag("--host", host),
        *_flag("--port", port),
        *_flag("--tensor-parallel-size", group.tensor_parallel),
        *_flag("--pipeline-parallel-size", group.pipeline_parallel if group.pipeline_parallel > 1 else None),
        *_flag("--block-size", spec.engine.block_size),
        *_model_flags(spec),
        *_flag("--kv-transfer-config", kv_transfer_config(spec, group.role)),
        *_flag("--kv-offloading-size", kv_offloading_gib(spec, group.role)),
        *_flag("--kv-events-config", kv_events_config(spec, host, kv_ports)),
        *_flag("--weight-transfer-config", '{"backend":"nccl"}' if spec.engine.rl.enabled else None),
        *_flag("--shutdown-timeout", shutdown_seconds(spec)),
        # Tells the router what of a session's history was still cached (core/retention.py).
        "--enable-prompt-tokens-details",
        # Without it vLLM answers 403 to /inference/v1/generate and to renderings, which trainers use.
        "--enable-scale-out",
        *spec.engine.extra_args,
    )


def engine_env(
    spec: RolloutPoolSpec,
    group: PlanGroup,
    *,
    model_cache: str,
    side_channel_host: str | None = None,
    side_channel_port: int = labels.NIXL_PORT,
) -> dict[str, str]:
    """Literal environment variables of an engine; the user's win, those with `valueFrom` are left out.

    Args:
        spec: the pool's spec.
        group: the engine's group.
        model_cache: folder for downloaded weights.
        side_channel_host: address at which other engines find this one for KV transfer; None where it is
            known only at run time.
        side_channel_port: port of the same.
    """
    env = {
        "HF_HOME": model_cache,
        # Prefix hashes must be equal on all replicas.
        "PYTHONHASHSEED": "0",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_SECONDS),
    }
    if transfers_kv(group.role):
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(side_channel_port)
        if side_channel_host is not None:
            env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = side_channel_host
    if spec.engine.rl.enabled:
        env["VLLM_SERVER_DEV_MODE"] = "1"
    return env | {item.name: item.value for item in spec.engine.env if item.value is not None}


def served_names(spec: RolloutPoolSpec) -> tuple[str, ...]:
    """Names that engines answer to: the model's, and those by which workloads know their requests.

    Where engines take adapters (`--enable-lora` among the user's arguments), names of workloads are taken for
    adapters and left out: vLLM looks a name up among its own first, so it would never ask the adapter.
    """
    flags = (argument.partition("=")[0].replace("_", "-") for argument in spec.engine.extra_args)
    if "--enable-lora" in flags:
        return (spec.model.name,)
    matched = (name for workload in spec.workloads for name in workload.match.models)
    return tuple(dict.fromkeys((spec.model.name, *matched)))


def engine_revision(spec: RolloutPoolSpec) -> str:
    """Hash of model and engine: prefill and decode must share it to understand each other's KV."""
    # Of the weight synchronisation engines know no more than that it is on; the rest is the router's. What
    # they publish about their KV changes nothing about it.
    engine = spec.engine.to_wire() | {"rl": {"enabled": spec.engine.rl.enabled}}
    del engine["kvEvents"]
    content = {"model": spec.model.to_wire(), "engine": engine}
    return content_hash(content)[:10]


def transfers_kv(role: Role) -> bool:
    """Whether engines of this role exchange KV blocks with others."""
    return role is not Role.AGGREGATED


def kv_transfer_config(spec: RolloutPoolSpec, role: Role) -> str | None:
    """vLLM's --kv-transfer-config for a role; None where nothing is transferred.

    Both sides take kv_both, so that a role is no property of the engine; KV that cannot be loaded is
    computed anew rather than failing the request.
    """
    if not transfers_kv(role):
        return None
    config = {
        "kv_connector": CONNECTORS[spec.engine.kv_transfer.connector],
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }
    return json.dumps(config, separators=(",", ":"))


def kv_events_config(spec: RolloutPoolSpec, host: str, ports: tuple[int, int] | None) -> str | None:
    """vLLM's --kv-events-config; None where engines publish none."""
    events = spec.engine.kv_events
    if not events.enabled:
        return None
    port, replay_port = ports or (events.port, events.replay_port)
    # vLLM listens where the address has a star, and connects to others.
    listen = "*" if host == ANY_HOST else host
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://{listen}:{port}",
        "replay_endpoint": f"tcp://{listen}:{replay_port}",
        "buffer_steps": KV_EVENTS_BUFFER_STEPS,
    }
    return json.dumps(config, separators=(",", ":"))


def kv_offloading_gib(spec: RolloutPoolSpec, role: Role) -> str | None:
    """CPU memory for KV blocks of an engine, in GiB; None for none.

    vLLM's offloading is a KV connector of its own, so engines that transfer KV have none.
    """
    offload = spec.engine.kv_offload
    if offload is None or transfers_kv(role):
        return None
    size = quantity(offload.size)
    return f"{float(size) / 2**30:.6g}" if size else None


def model_argument(spec: RolloutPoolSpec) -> str:
    """What the engine loads: a hub id or a path; a path under `MODEL_MOUNT` for a volume."""
    source = spec.model.source or spec.model.name
    if volume := model_volume(spec):
        return f"{MODEL_MOUNT}/{volume[1]}"
    return source


def model_volume(spec: RolloutPoolSpec) -> tuple[str, str] | None:
    """Claim and path of a pvc:// model source; None for other sources."""
    source = spec.model.source or ""
    if not source.startswith(VOLUME_SCHEME):
        return None
    claim, _, path = source.removeprefix(VOLUME_SCHEME).partition("/")
    return claim, path.strip("/")


def shutdown_seconds(spec: RolloutPoolSpec) -> int:
    """Seconds that a stopping engine waits for its running requests."""
    return max(1, spec.engine.termination_grace_seconds - SHUTDOWN_MARGIN_SECONDS)


def _model_flags(spec: RolloutPoolSpec) -> tuple[str, ...]:
    model = spec.model
    return (
        *_flag("--max-model-len", model.max_model_len),
        *_flag("--revision", model.revision),
        *_flag("--tokenizer", model.tokenizer),
        *_flag("--dtype", model.dtype),
        *_flag("--quantization", model.quantization),
    )


def _flag(name: str, value: str | int | None) -> tuple[str, ...]:
    return () if value is None else (name, str(value))
