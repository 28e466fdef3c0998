"""What was seen of one pool: the frozen facts that every decision starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from rolloutpool_api.planning import Role
from rolloutpool_api.status import RolloutPoolStatus
from rolloutpool_api.v1alpha1 import InvalidPool, RolloutPool, parse_pool


class PoolKey(NamedTuple):
    """Which pool."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """One node that engines may be placed on."""

    name: str
    gpus_allocatable: int
    """GPUs that the node offers."""
    gpus_free: int
    """Allocatable GPUs less those requested by pods that are not this pool's engines."""
    gpus_own: int = 0
    """GPUs that this pool's engines hold there."""
    product: str = ""
    """GPU product label, empty where the node has none."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    schedulable: bool = True
    """False: cordoned or not ready."""


@dataclass(frozen=True, kw_only=True)
class ChildFacts:
    """One child that exists and belongs to the pool."""

    kind: str
    name: str
    uid: str
    body: Mapping[str, Any]
    """The live object."""
    deleting: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """One engine: a StatefulSet's pod, there or still to come, or a local process."""

    name: str
    group: str
    role: Role
    ready: bool
    revision: str = ""
    """Engine revision that it runs (`engine_args.engine_revision`), empty while it is not there."""
    url: str
    """Base URL that routers and trainers use."""
    scrape_url: str = ""
    """Base URL that the operator reads metrics from; empty while there is none."""
    draining: bool = False
    """Its pod is about to go."""
    kv_ports: tuple[int, int] | None = None
    """Its ports for KV events and for repeating them; None: those of the spec."""
    reason: str = ""
    """Why it is not ready, in one word (e.g. ImagePullBackOff, Unschedulable)."""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class RouterFacts:
    """One router pod or process, also one that is about to go."""

    name: str
    """As it calls itself (`--name`)."""
    ready: bool
    url: str
    """Its own base URL, for the operator and for the other routers; empty while there is none."""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class ProfileFacts:
    """The user's performance profile, where the spec names one."""

    text: str | None = None
    """YAML of spec.planning.profile.configMapRef; None for a built-in profile."""
    error: str = ""
    """Why the profile could not be read."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything that was gathered about one pool at one time."""

    key: PoolKey
    body: Mapping[str, Any]
    """The object as stored: metadata, spec, status."""
    pool: RolloutPool | None
    """The object as read; None where the spec is invalid."""
    invalid: str = ""
    """What is wrong with the spec, one line per field."""
    nodes: tuple[NodeFacts, ...] | None = None
    """Nodes of the cluster; None where they may not be read."""
    nodes_note: str = ""
    """What the GPU count leaves out, for the plan's message."""
    children: tuple[ChildFacts, ...] = ()
    engines: tuple[EngineFacts, ...] = ()
    routers: tuple[RouterFacts, ...] = ()
    profile: ProfileFacts = ProfileFacts()
    router_url: str = ""
    """What trainers use as base URL, without /v1."""
    weights_url: str = ""
    """Where trainers synchronise weights with all engines at once; empty: nowhere."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The object's metadata."""
        found: Mapping[str, Any] = self.body.get("metadata") or {}
        return found

    @property
    def uid(self) -> str:
        """Identity of the object, also across a deletion and a new object of the same name."""
        return str(self.metadata.get("uid", ""))

    @property
    def generation(self) -> int:
        """Generation of the spec."""
        return int(self.metadata.get("generation") or 0)

    @property
    def resource_version(self) -> str:
        """Version of the stored object, for optimistic concurrency."""
        return str(self.metadata.get("resourceVersion", ""))

    @property
    def deleting(self) -> bool:
        """Whether the object is about to go."""
        return bool(self.metadata.get("deletionTimestamp"))

    @property
    def status(self) -> RolloutPoolStatus:
        """The stored status; an empty one where it cannot be read."""
        return read_status(self.body)


def read_pool(body: Mapping[str, Any]) -> tuple[RolloutPool | None, str]:
    """Read spec and metadata; the status is left out, so a broken status never makes a spec invalid.

    Returns:
        The pool and no message, or None and what is wrong.
    """
    try:
        return parse_pool({name: value for name, value in body.items() if name != "status"}), ""
    except InvalidPool as error:
        return None, str(error)


def read_status(body: Mapping[str, Any]) -> RolloutPoolStatus:
    """Read the stored status; one that no longer fits the model counts as empty."""
    try:
        return RolloutPoolStatus.model_validate(body.get("status") or {})
    except ValidationError:
        return RolloutPoolStatus()
