"""Facts from Kubernetes' raw objects: nodes and their GPUs, engines, routers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolloutpool_api import labels
from rolloutpool_api.planning import Role
from rolloutpool_operator.core import reasons
from rolloutpool_operator.core.observed import ChildFacts, EngineFacts, NodeFacts, PoolKey, RouterFacts

Raw = Mapping[str, Any]

FINISHED = ("Succeeded", "Failed")
SAME = {"ErrImagePull": "ImagePullBackOff"}
"""Reasons between which the kubelet alternates: one word for both, or a condition would flap."""


def labels_of(body: Raw) -> Mapping[str, str]:
    """An object's labels."""
    found: Mapping[str, str] = (body.get("metadata") or {}).get("labels") or {}
    return found


def controlled_by(body: Raw, uid: str) -> bool:
    """Whether the object's controller is the one with this uid."""
    owners = (body.get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("uid") == uid for owner in owners)


def child_facts(api_version: str, kind: str, body: Raw) -> ChildFacts:
    """A child as seen; its kind is given because items of lists do not carry theirs."""
    meta = body["metadata"]
    return ChildFacts(
        kind=kind,
        name=meta["name"],
        uid=meta.get("uid", ""),
        body={**body, "apiVersion": api_version, "kind": kind},
        deleting=bool(meta.get("deletionTimestamp")),
    )


def node_facts(
    nodes: Iterable[Raw], pods: Iterable[Raw], *, resource: str, pool: PoolKey
) -> tuple[NodeFacts, ...]:
    """Nodes and their free GPUs: allocatable less what pods request that are not this pool's engines.

    Args:
        nodes: Node objects.
        pods: pods of all namespaces that may be read.
        resource: extended resource that a GPU is.
        pool: whose engines do not count, since a new plan may move them.
    """
    held: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for pod in pods:
        if (pod.get("status") or {}).get("phase") not in FINISHED:
            counter = own if _is_engine_of(pod, pool) else held
            counter[pod["spec"].get("nodeName", "")] += requested(pod, resource)
    by_name = sorted(nodes, key=lambda node: str(node["metadata"]["name"]))
    return tuple(_node(node, resource, held, own) for node in by_name)


def requested(pod: Raw, resource: str) -> int:
    """Units of an extended resource that a pod holds: containers together, or one init container."""
    spec = pod["spec"]
    together = sum(_limit(container, resource) for container in spec.get("containers", ()))
    return max([together, *(_limit(container, resource) for container in spec.get("initContainers") or ())])


def holds_devices(pod: Raw) -> bool:
    """Whether a pod asks for any extended resource, such as a GPU."""
    spec = pod["spec"]
    containers = [*spec.get("containers", ()), *(spec.get("initContainers") or ())]
    return any("/" in name for container in containers for name in _amounts(container))


def engine_facts(key: PoolKey, sets: Iterable[ChildFacts], pods: Sequence[Raw]) -> tuple[EngineFacts, ...]:
    """Engines of the pool's StatefulSets, those included whose pod is not there now, in a stable order."""
    found = {pod["metadata"]["name"]: pod for pod in pods}
    engines = []
    for child in sorted(sets, key=lambda item: item.name):
        group, role = labels_of(child.body).get(labels.GROUP_NAME), labels_of(child.body).get(labels.ROLE)
        if child.deleting or not group or role not in {item.value for item in Role}:
            continue
        for ordinal in range(int(child.body["spec"].get("replicas", 1))):
            name = f"{child.name}-{ordinal}"
            engines.append(_engine(key, name, group, Role(role), found.get(name)))
    return tuple(engines)


def router_facts(pods: Iterable[Raw]) -> tuple[RouterFacts, ...]:
    """Routers: pods that have not ended. One that is about to go counts until then: it serves what it has."""
    return tuple(
        RouterFacts(
            name=pod["metadata"]["name"],
            ready=is_ready(pod),
            url=pod_url(pod, labels.ROUTER_PORT),
            reason=trouble(pod)[0],
            message=trouble(pod)[1],
        )
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
        if (pod.get("status") or {}).get("phase") not in FINISHED
    )


def engine_url(key: PoolKey, pod: str) -> str:
    """An engine's address in the cluster; stays the same when its pod is made anew."""
    service = labels.engine_service_name(key.name)
    return f"http://{pod}.{service}.{key.namespace}.svc:{labels.ENGINE_PORT}"


def pod_url(pod: Raw, port: int) -> str:
    """A pod's own address; empty while it has none."""
    address = (pod.get("status") or {}).get("podIP", "")
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}" if address else ""


def is_ready(pod: Raw) -> bool:
    """Whether a pod serves."""
    return condition(pod, "Ready").get("status") == "True" and not pod["metadata"].get("deletionTimestamp")


def condition(body: Raw, kind: str) -> Raw:
    """A condition of an object; empty where it has none of the kind."""
    found = (body.get("status") or {}).get("conditions") or ()
    return next((item for item in found if item.get("type") == kind), {})


def trouble(pod: Raw) -> tuple[str, str]:
    """Why a pod does not serve: reason and message; both empty where nothing is wrong.

    The scheduler's word first, then what containers wait for or died of; a container that is just being
    created is no trouble.
    """
    if pod["metadata"].get("deletionTimestamp"):
        return reasons.TERMINATING, "the pod is being deleted"
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return reasons.UNSCHEDULABLE, str(scheduled.get("message", ""))
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        died = (container.get("lastState") or {}).get("terminated") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            reason = SAME.get(waiting["reason"], waiting["reason"])
            return str(reason), _died(str(waiting.get("message", "")), died)
        if died and not container.get("ready"):
            return str(died.get("reason") or "Restarted"), _died("the container was restarted", died)
    return "", ""


def _died(message: str, died: Raw) -> str:
    if not died:
        return message
    return f"{message}; last exit: {died.get('reason', 'unknown')}, code {died.get('exitCode', '?')}"


def _engine(key: PoolKey, name: str, group: str, role: Role, pod: Raw | None) -> EngineFacts:
    reason, message = trouble(pod) if pod else (reasons.POD_MISSING, "the pod does not exist yet")
    return EngineFacts(
        name=name,
        group=group,
        role=role,
        ready=pod is not None and is_ready(pod),
        draining=pod is not None and bool(pod["metadata"].get("deletionTimestamp")),
        revision=labels_of(pod).get(labels.REVISION, "") if pod else "",
        url=engine_url(key, name),
        scrape_url=pod_url(pod, labels.ENGINE_PORT) if pod else "",
        reason=reason,
        message=message,
    )


def _is_engine_of(pod: Raw, pool: PoolKey) -> bool:
    found = labels_of(pod)
    here = pod["metadata"].get("namespace") == pool.namespace
    return here and found.get(labels.POOL) == pool.name and found.get(labels.COMPONENT) == labels.ENGINE


def _node(node: Raw, resource: str, held: Mapping[str, int], own: Mapping[str, int]) -> NodeFacts:
    name = node["metadata"]["name"]
    allocatable = int(((node.get("status") or {}).get("allocatable") or {}).get(resource, 0))
    spec = node.get("spec") or {}
    return NodeFacts(
        name=name,
        gpus_allocatable=allocatable,
        gpus_free=max(0, allocatable - held.get(name, 0)),
        gpus_own=own.get(name, 0),
        product=labels_of(node).get(labels.GPU_PRODUCT, ""),
        labels=labels_of(node),
        taints=tuple(spec.get("taints") or ()),
        schedulable=not spec.get("unschedulable") and condition(node, "Ready").get("status") != "False",
    )


def _limit(container: Raw, resource: str) -> int:
    return int(_amounts(container).get(resource, 0))


def _amounts(container: Raw) -> Mapping[str, Any]:
    """Limits of a container; for extended resources they equal the requests."""
    found: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
    return found
