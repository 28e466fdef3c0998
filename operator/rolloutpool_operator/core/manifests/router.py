"""The routers: Deployment, Service, and the right to read their own pool and where engines are.

Routers reach one another by the addresses of their pods, which the status lists.
"""

from __future__ import annotations

from typing import Any

from rolloutpool_api import labels
from rolloutpool_operator.core.children import Child, sealed
from rolloutpool_operator.core.manifests import context
from rolloutpool_operator.core.manifests.context import Context

GRACE_SECONDS = 120
"""Seconds that a stopping router has to finish the answers that it streams."""
GRACE_MARGIN_SECONDS = 10
"""The router ends this long before its pod is killed."""
MIN_READY_SECONDS = 10
"""How long a new router serves before the next old one goes, where there are several, in seconds: as long as
it may take until it has its part of the caps."""

WEIGHTS = "weights"
"""Name of the port for weight synchronisation."""
WEIGHTS_TOKEN = "weights-token"
"""Name of the volume with its token."""
TOKEN_MOUNT = "/var/run/rolloutpool/weights"
TOKEN_FILE = "token"
GROUP_READABLE = 0o440


def build_router(ctx: Context) -> tuple[Child, ...]:
    """Every object of the routers, in the order in which they need each other."""
    several = ctx.spec.router.replicas > 1
    return (
        _service_account(ctx),
        _role(ctx),
        _role_binding(ctx),
        _service(ctx),
        *([_weights_service(ctx)] if ctx.spec.engine.rl.enabled else []),
        *([_disruption_budget(ctx)] if several else []),
        _deployment(ctx),
    )


def router_url(ctx: Context) -> str:
    """What trainers use as base URL, without /v1."""
    return f"http://{labels.router_name(ctx.name)}.{ctx.namespace}.svc:{ctx.spec.router.service.port}"


def weights_url(ctx: Context) -> str:
    """Where trainers synchronise weights with all engines at once; empty where that is off."""
    if not ctx.spec.engine.rl.enabled:
        return ""
    return f"http://{labels.weights_service_name(ctx.name)}.{ctx.namespace}.svc:{ctx.spec.engine.rl.port}"


def _child(ctx: Context, api_version: str, kind: str, content: dict[str, Any]) -> Child:
    name = labels.router_name(ctx.name)
    head = {"apiVersion": api_version, "kind": kind, "metadata": ctx.metadata(name, labels.ROUTER)}
    return sealed(kind, name, head | content)


def _service_account(ctx: Context) -> Child:
    return _child(ctx, "v1", "ServiceAccount", {})


def _role(ctx: Context) -> Child:
    """Its own pool, and which engines' pods are ready or about to go; slices have names that nobody knows."""
    read = ["get", "list", "watch"]
    pool = {
        "apiGroups": [labels.GROUP],
        "resources": [labels.PLURAL],
        "resourceNames": [ctx.name],
        "verbs": read,
    }
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read}
    return _child(ctx, "rbac.authorization.k8s.io/v1", "Role", {"rules": [pool, slices]})


def _role_binding(ctx: Context) -> Child:
    name = labels.router_name(ctx.name)
    content = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": ctx.namespace}],
    }
    return _child(ctx, "rbac.authorization.k8s.io/v1", "RoleBinding", content)


def _service(ctx: Context) -> Child:
    service = ctx.spec.router.service
    name = labels.router_name(ctx.name)
    metadata = ctx.metadata(name, labels.ROUTER)
    if service.annotations:
        metadata["annotations"] = dict(service.annotations)
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": service.type.value,
            "selector": labels.selector(ctx.name, labels.ROUTER),
            "ports": [{"name": "http", "port": service.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }
    return sealed("Service", name, body)


def _weights_service(ctx: Context) -> Child:
    """A Service of its own, inside the cluster whatever kind the other is: who calls it may stop the pool."""
    name = labels.weights_service_name(ctx.name)
    port = {"name": WEIGHTS, "port": ctx.spec.engine.rl.port, "targetPort": WEIGHTS, "protocol": "TCP"}
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": ctx.metadata(name, labels.ROUTER),
        "spec": {
            "type": "ClusterIP",
            "selector": labels.selector(ctx.name, labels.ROUTER),
            "ports": [port],
        },
    }
    return sealed("Service", name, body)


def _disruption_budget(ctx: Context) -> Child:
    """One router at a time may be evicted: its sessions are adopted by the others."""
    content = {
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": labels.selector(ctx.name, labels.ROUTER)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        }
    }
    return _child(ctx, "policy/v1", "PodDisruptionBudget", content)


def _deployment(ctx: Context) -> Child:
    selector = labels.selector(ctx.name, labels.ROUTER)
    template = context.overlaid(_pod_template(ctx), ctx.spec.router.pod_template, selector)
    several = ctx.spec.router.replicas > 1
    content = {
        "spec": {
            "replicas": ctx.spec.router.replicas,
            **({"minReadySeconds": MIN_READY_SECONDS} if several else {}),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": selector},
            "template": template,
        }
    }
    return _child(ctx, "apps/v1", "Deployment", content)


def _pod_template(ctx: Context) -> dict[str, Any]:
    return {
        "metadata": {"labels": labels.child_labels(ctx.name, labels.ROUTER)},
        "spec": {
            "serviceAccountName": labels.router_name(ctx.name),
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": context.pod_security(),
            "containers": [_container(ctx)],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *_token_volume(ctx)],
            **({"topologySpreadConstraints": [_spread(ctx)]} if ctx.spec.router.replicas > 1 else {}),
        },
    }


def _spread(ctx: Context) -> dict[str, Any]:
    """On different nodes where there are any: a node that is lost takes one router with it."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels.selector(ctx.name, labels.ROUTER)},
    }


def _container(ctx: Context) -> dict[str, Any]:
    router = ctx.spec.router
    pod_name = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}
    return {
        "name": "router",
        "image": router.image or ctx.install.router_image,
        "imagePullPolicy": router.image_pull_policy or ctx.install.router_pull_policy,
        "command": ["python3", "-m", "rolloutpool_router.main"],
        "args": _arguments(ctx),
        "env": [{"name": "POD_NAME", "valueFrom": pod_name}],
        "ports": _ports(ctx),
        "resources": context.resources(router.resources.to_wire()),
        "securityContext": context.container_security() | {"readOnlyRootFilesystem": True},
        "volumeMounts": _mounts(ctx),
        "startupProbe": context.http_probe("/health", period=1, failures=60),
        "readinessProbe": context.http_probe("/readyz", period=2, failures=3),
        "livenessProbe": context.http_probe("/health", period=10, failures=3),
    }


def _ports(ctx: Context) -> list[dict[str, Any]]:
    ports = [{"name": "http", "containerPort": labels.ROUTER_PORT, "protocol": "TCP"}]
    if ctx.spec.engine.rl.enabled:
        ports.append({"name": WEIGHTS, "containerPort": ctx.spec.engine.rl.port, "protocol": "TCP"})
    return ports


def _mounts(ctx: Context) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]
    if _token_volume(ctx):
        mounts.append({"name": WEIGHTS_TOKEN, "mountPath": TOKEN_MOUNT, "readOnly": True})
    return mounts


def _token_volume(ctx: Context) -> list[dict[str, Any]]:
    """The token as a file, which follows its Secret without a restart; without the Secret requests go on."""
    ref = ctx.spec.engine.rl.token_secret_ref
    if not ctx.spec.engine.rl.enabled or ref is None:
        return []
    secret = {
        "secretName": ref.name,
        "items": [{"key": ref.key, "path": TOKEN_FILE}],
        "defaultMode": GROUP_READABLE,
        "optional": True,
    }
    return [{"name": WEIGHTS_TOKEN, "secret": secret}]


def _arguments(ctx: Context) -> list[str]:
    return [
        *("--pool", ctx.name),
        *("--namespace", ctx.namespace),
        *("--host", "0.0.0.0"),
        *("--port", str(labels.ROUTER_PORT)),
        *("--name", "$(POD_NAME)"),
        *("--grace-seconds", str(GRACE_SECONDS - GRACE_MARGIN_SECONDS)),
        *(weights_arguments(ctx.spec.engine.rl.port) if ctx.spec.engine.rl.enabled else ()),
    ]


def weights_arguments(port: int, token_file: str = f"{TOKEN_MOUNT}/{TOKEN_FILE}") -> tuple[str, ...]:
    """Arguments with which a router serves weight synchronisation."""
    return ("--weights-port", str(port), "--weights-token-file", token_file)
