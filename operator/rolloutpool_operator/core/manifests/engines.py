"""Engines: one StatefulSet per plan group, and the headless Service that names their pods."""

from __future__ import annotations

import math
from typing import Any

from rolloutpool_api import labels
from rolloutpool_api.status import PlanGroup
from rolloutpool_operator.core import engine_args
from rolloutpool_operator.core.children import Child, sealed
from rolloutpool_operator.core.manifests import context
from rolloutpool_operator.core.manifests.context import Context

MODEL_CACHE = "/model-cache"
HOME = "/home/engine"
STARTUP_PERIOD_SECONDS = 2
LIVENESS_PERIOD_SECONDS = 10
READINESS_FAILURES = 3


def build_engine_service(ctx: Context) -> Child:
    """The headless Service that gives every engine a name of its own, ready or not."""
    name = labels.engine_service_name(ctx.name)
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": ctx.metadata(name, labels.ENGINE),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels.selector(ctx.name, labels.ENGINE),
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
                for name, port in _served_ports(ctx).items()
            ],
        },
    }
    return sealed("Service", name, body)


def build_engine_set(ctx: Context, group: PlanGroup) -> Child:
    """The StatefulSet of one plan group."""
    group_name = labels.group_name(group.role, group.tensor_parallel, group.pipeline_parallel)
    name = labels.engine_set_name(ctx.name, group_name)
    selector = labels.selector(ctx.name, labels.ENGINE) | {labels.GROUP_NAME: group_name}
    extra = {labels.ROLE: group.role.value, labels.GROUP_NAME: group_name}
    template = context.overlaid(_pod_template(ctx, group, extra), ctx.spec.engine.pod_template, selector)
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": ctx.metadata(name, labels.ENGINE, extra),
        "spec": {
            "replicas": group.replicas,
            "serviceName": labels.engine_service_name(ctx.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": selector},
            "template": template,
        },
    }
    return sealed("StatefulSet", name, body)


def _pod_template(ctx: Context, group: PlanGroup, extra: dict[str, str]) -> dict[str, Any]:
    own = labels.child_labels(ctx.name, labels.ENGINE) | extra
    own[labels.REVISION] = engine_args.engine_revision(ctx.spec)
    gpus = ctx.spec.gpus
    product = {labels.GPU_PRODUCT: gpus.product} if gpus.product else {}
    selector = {**gpus.node_selector, **product}
    always = {"key": gpus.resource_name, "operator": "Exists", "effect": "NoSchedule"}
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": ctx.spec.engine.termination_grace_seconds,
        "securityContext": context.pod_security(),
        "tolerations": [always, *gpus.tolerations],
        "containers": [_container(ctx, group)],
        "volumes": _volumes(ctx),
    }
    if selector:
        spec["nodeSelector"] = selector
    return {"metadata": {"labels": own}, "spec": spec}


def _container(ctx: Context, group: PlanGroup) -> dict[str, Any]:
    engine = ctx.spec.engine
    ports = [
        {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in _served_ports(ctx).items()
    ]
    if engine_args.transfers_kv(group.role):
        ports.append({"name": "nixl", "containerPort": labels.NIXL_PORT, "protocol": "TCP"})
    gpus = {ctx.spec.gpus.resource_name: str(group.tensor_parallel * group.pipeline_parallel)}
    return {
        "name": "engine",
        "image": engine.image,
        "imagePullPolicy": engine.image_pull_policy,
        "args": list(engine_args.engine_args(ctx.spec, group)),
        "env": _env(ctx, group),
        "ports": ports,
        "resources": context.resources(engine.resources.to_wire(), gpus),
        "securityContext": context.container_security(),
        "volumeMounts": _mounts(ctx),
        **_probes(ctx),
    }


def _served_ports(ctx: Context) -> dict[str, int]:
    """Ports that routers use, by name."""
    events = ctx.spec.engine.kv_events
    kv_ports = {"kv-events": events.port, "kv-replay": events.replay_port} if events.enabled else {}
    return {"http": labels.ENGINE_PORT, **kv_ports}


def _env(ctx: Context, group: PlanGroup) -> list[dict[str, Any]]:
    engine = ctx.spec.engine
    # Libraries ask for the user's name, and the uid has no entry in the image's /etc/passwd.
    literal = {"HOME": HOME, "USER": "engine"}
    literal |= engine_args.engine_env(ctx.spec, group, model_cache=MODEL_CACHE)
    entries: dict[str, dict[str, Any]] = {name: {"value": value} for name, value in literal.items()}
    if engine_args.transfers_kv(group.role):
        pod_ip = {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}
        entries.setdefault("VLLM_NIXL_SIDE_CHANNEL_HOST", pod_ip)
    if engine.token_secret_ref:
        token = engine.token_secret_ref.to_wire()
        entries.setdefault("HF_TOKEN", {"valueFrom": {"secretKeyRef": token}})
    for item in engine.env:
        if item.value_from is not None:
            entries[item.name] = {"valueFrom": item.value_from}
    return [{"name": name, **entry} for name, entry in entries.items()]


def _probes(ctx: Context) -> dict[str, Any]:
    probes = ctx.spec.engine.probes
    return {
        # A port that answers is not yet a model that is loaded.
        "startupProbe": context.http_probe(
            "/v1/models",
            period=STARTUP_PERIOD_SECONDS,
            failures=math.ceil(probes.startup_seconds / STARTUP_PERIOD_SECONDS),
        ),
        "readinessProbe": context.http_probe(
            "/v1/models", period=probes.readiness_period_seconds, failures=READINESS_FAILURES
        ),
        "livenessProbe": context.http_probe(
            "/health",
            period=LIVENESS_PERIOD_SECONDS,
            failures=math.ceil(probes.liveness_failure_seconds / LIVENESS_PERIOD_SECONDS),
        ),
    }


def _volumes(ctx: Context) -> list[dict[str, Any]]:
    engine = ctx.spec.engine
    cache: dict[str, Any] = {"emptyDir": {}}
    if engine.model_cache.claim_name:
        cache = {"persistentVolumeClaim": {"claimName": engine.model_cache.claim_name}}
    elif engine.model_cache.empty_dir and engine.model_cache.empty_dir.size_limit:
        cache = {"emptyDir": {"sizeLimit": engine.model_cache.empty_dir.size_limit}}
    volumes = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": engine.shm_size}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "home", "emptyDir": {}},
        {"name": "model-cache", **cache},
    ]
    if volume := engine_args.model_volume(ctx.spec):
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": volume[0], "readOnly": True}})
    return volumes


def _mounts(ctx: Context) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "home", "mountPath": HOME},
        {"name": "model-cache", "mountPath": MODEL_CACHE},
    ]
    if engine_args.model_volume(ctx.spec):
        mounts.append({"name": "model", "mountPath": engine_args.MODEL_MOUNT, "readOnly": True})
    return mounts
