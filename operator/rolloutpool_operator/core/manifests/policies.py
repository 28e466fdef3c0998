"""NetworkPolicies: who may reach engines and routers. Egress is left open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolloutpool_api import labels
from rolloutpool_api.serving import ServiceType
from rolloutpool_operator.core.children import Child, sealed
from rolloutpool_operator.core.manifests.context import NAMESPACE_NAME, OPERATOR_SELECTOR, Context


def build_policies(ctx: Context) -> tuple[Child, ...]:
    """The pool's NetworkPolicies; none where the operator was installed without them."""
    if not ctx.install.network_policies:
        return ()
    return (
        _policy(ctx, labels.ENGINE, _engine_ingress(ctx)),
        _policy(ctx, labels.ROUTER, _router_ingress(ctx)),
    )


def _policy(ctx: Context, component: str, ingress: list[dict[str, Any]]) -> Child:
    name = (
        labels.router_name(ctx.name) if component == labels.ROUTER else labels.engine_service_name(ctx.name)
    )
    body = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": ctx.metadata(name, component),
        "spec": {
            "podSelector": {"matchLabels": labels.selector(ctx.name, component)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }
    return sealed("NetworkPolicy", name, body)


def _engine_ingress(ctx: Context) -> list[dict[str, Any]]:
    """Routers, operator and monitoring reach the API; engines of the pool reach all ports (KV transfer).

    Trainers that are declared reach it too where weights are synchronised engine by engine. KV events are for
    the routers alone: they tell token ids of prompts.
    """
    peers = [_pods(ctx, labels.ROUTER), *_installed(ctx)]
    if ctx.spec.engine.rl.enabled:
        peers += ctx.spec.router.trainers
    events = ctx.spec.engine.kv_events
    told = [_rule([_pods(ctx, labels.ROUTER)], events.port, events.replay_port)] if events.enabled else []
    return [_rule(peers, labels.ENGINE_PORT), *told, {"from": [_pods(ctx, labels.ENGINE)]}]


def _router_ingress(ctx: Context) -> list[dict[str, Any]]:
    """Trainers, operator, monitoring and the pool's other routers.

    Anybody where the Service is exposed and no trainer is declared. Weight synchronisation is for trainers
    alone.
    """
    requests = _request_ingress(ctx)
    rl = ctx.spec.engine.rl
    return (
        [*requests, _rule(ctx.spec.router.trainers or [{"podSelector": {}}], rl.port)]
        if rl.enabled
        else requests
    )


def _request_ingress(ctx: Context) -> list[dict[str, Any]]:
    router = ctx.spec.router
    if not router.trainers and router.service.type is not ServiceType.CLUSTER_IP:
        return [_rule([], labels.ROUTER_PORT)]
    if not router.trainers:
        return [_rule([{"podSelector": {}}, *_installed(ctx)], labels.ROUTER_PORT)]
    return [_rule([*router.trainers, *_installed(ctx), _pods(ctx, labels.ROUTER)], labels.ROUTER_PORT)]


def _rule(peers: Sequence[Any], *ports: int) -> dict[str, Any]:
    rule: dict[str, Any] = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}
    return {"from": list(peers), **rule} if peers else rule


def _pods(ctx: Context, component: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": labels.selector(ctx.name, component)}}


def _installed(ctx: Context) -> list[dict[str, Any]]:
    """The operator's pods and the monitoring system's namespace."""
    peers: list[dict[str, Any]] = []
    if ctx.install.operator_namespace:
        operator = {"podSelector": {"matchLabels": dict(OPERATOR_SELECTOR)}}
        peers.append(_namespace(ctx.install.operator_namespace) | operator)
    if ctx.install.monitoring_namespace:
        peers.append(_namespace(ctx.install.monitoring_namespace))
    return peers


def _namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: name}}}
