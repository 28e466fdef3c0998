"""The engines' pods as Kubernetes' EndpointSlices tell them: which are ready, and which are about to go.

EndpointSlice (discovery.k8s.io/v1): `conditions.serving` is the pod's readiness, also for a Service that
publishes addresses of pods that are not ready; `conditions.terminating`: it has been told to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pod:
    """One engine's pod."""

    serving: bool
    """Its readiness probe succeeds."""
    terminating: bool
    """It is about to go."""


def pods_of(slices: Iterable[Raw]) -> dict[str, Pod]:
    """Pods by name. One of several entries (two address families, an old pod and its successor) is enough."""
    pods: dict[str, Pod] = {}
    for piece in slices:
        for endpoint in _list(piece.get("endpoints")):
            name = _name(endpoint)
            if name is not None:
                pods[name] = _joined(pods.get(name), _pod(endpoint))
    return pods


def _name(endpoint: Raw) -> str | None:
    target = endpoint.get("targetRef")
    name = target.get("name") if isinstance(target, Mapping) else endpoint.get("hostname")
    return name if isinstance(name, str) else None


def _pod(endpoint: Raw) -> Pod:
    """One entry; a condition that is not told means that all is well."""
    told = endpoint.get("conditions")
    conditions = told if isinstance(told, Mapping) else {}
    serving = conditions.get("serving")
    if serving is None:
        serving = conditions.get("ready")
    return Pod(serving=serving is not False, terminating=conditions.get("terminating") is True)


def _joined(one: Pod | None, other: Pod) -> Pod:
    if one is None or one.terminating > other.terminating:
        return other
    if other.terminating > one.terminating:
        return one
    return Pod(serving=one.serving or other.serving, terminating=one.terminating)


def _list(value: Any) -> list[Raw]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
