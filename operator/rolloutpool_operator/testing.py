"""Fakes for tests of the operator's shell: a platform in memory, a reader of made-up answers, a clock."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_api import labels
from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.status import PlanGroup
from rolloutpool_operator.core.children import Action, ApplyChild, Child
from rolloutpool_operator.core.cluster_facts import child_facts, engine_facts
from rolloutpool_operator.core.desired import build_children
from rolloutpool_operator.core.events import PoolEvent
from rolloutpool_operator.core.manifests.context import Install, context_of
from rolloutpool_operator.core.manifests.router import router_url, weights_url
from rolloutpool_operator.core.observed import (
    NodeFacts,
    Observed,
    PoolKey,
    ProfileFacts,
    RouterFacts,
    read_pool,
)
from rolloutpool_operator.platform import Failure, Outcome, PoolGone, Report, StatusConflict
from rolloutpool_operator.reader import EngineMetrics, ReadError
from rolloutpool_router.core.pressure import NO_TOTALS, EngineTotals


class FakeClock:
    """A clock that moves when told to."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Unix seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class FakePlatform:
    """One pool on a cluster in memory; `settle` plays scheduler and kubelet."""

    def __init__(self, body: Mapping[str, Any], *, nodes: tuple[NodeFacts, ...] | None = None) -> None:
        self._versions = itertools.count(1)
        self.install = Install()
        self.nodes = nodes
        self.profile = ProfileFacts()
        self.body: dict[str, Any] | None = None
        self.children: dict[tuple[str, str], dict[str, Any]] = {}
        self.ready: set[str] = set()
        """Names of pods that are ready."""
        self.refuse: dict[tuple[str, str], str] = {}
        """Children that cannot be applied, and why."""
        self.actions: list[Action] = []
        self.patches: list[Mapping[str, Any]] = []
        self.events: list[PoolEvent] = []
        self.put(body)

    @property
    def key(self) -> PoolKey:
        """The pool's key."""
        meta = (self.body or {})["metadata"]
        return PoolKey(meta["namespace"], meta["name"])

    def put(self, body: Mapping[str, Any]) -> None:
        """Create the pool or change its spec, as the API server does."""
        meta = dict(body["metadata"])
        before = self.body["metadata"] if self.body else {}
        meta |= {
            "namespace": meta.get("namespace", "rl"),
            "uid": before.get("uid", "pool-uid"),
            "generation": before.get("generation", 0) + 1,
            "resourceVersion": str(next(self._versions)),
        }
        status = self.body.get("status", {}) if self.body else {}
        self.body = {**body, "metadata": meta, "status": status}

    def settle(self) -> None:
        """Let every pod of the router and of engine sets become ready."""
        self.ready = {engine.name for engine in self._engines()}
        if ("Deployment", labels.router_name(self.key.name)) in self.children:
            self.ready.add("router")

    async def gather(self, key: PoolKey) -> Observed | None:
        """See Platform."""
        if self.body is None:
            return None
        pool, invalid = read_pool(self.body)
        routers = (
            (RouterFacts(name="router", ready=True, url="http://router"),) if "router" in self.ready else ()
        )
        return Observed(
            key=key,
            body=self.body,
            pool=pool,
            invalid=invalid,
            nodes=self.nodes,
            children=tuple(
                child_facts(str(body["apiVersion"]), kind, body) for (kind, _), body in self.children.items()
            ),
            engines=tuple(self._engines()),
            routers=routers,
            profile=self.profile,
            router_url=router_url(context_of(pool, self.install)) if pool else "",
            weights_url=weights_url(context_of(pool, self.install)) if pool else "",
        )

    def build(self, observed: Observed, groups: Sequence[PlanGroup]) -> tuple[Child, ...]:
        """See Platform."""
        if observed.pool is None:
            return ()
        return build_children(context_of(observed.pool, self.install), groups)

    async def apply(self, observed: Observed, actions: Sequence[Action]) -> Outcome:
        """See Platform."""
        done: list[Action] = []
        failed: list[Failure] = []
        for action in actions:
            if isinstance(action, ApplyChild):
                key = (action.child.kind, action.child.name)
                if key in self.refuse:
                    failed.append(Failure(action=action, message=self.refuse[key]))
                    continue
                self.children[key] = self._stored(action.child)
            else:
                del self.children[action.kind, action.name]
            done.append(action)
        self.actions += done
        return Outcome(done=tuple(done), failed=tuple(failed))

    async def report(self, report: Report) -> str:
        """See Platform."""
        if self.body is None:
            raise PoolGone("the pool is gone")
        if report.patch:
            if report.resource_version != self.body["metadata"]["resourceVersion"]:
                raise StatusConflict("the object has been modified")
            status = merged(self.body.get("status", {}), report.patch)
            meta = {**self.body["metadata"], "resourceVersion": str(next(self._versions))}
            self.body = {**self.body, "metadata": meta, "status": status}
            self.patches.append(report.patch)
        self.events += report.events
        return str(self.body["metadata"]["resourceVersion"])

    def _stored(self, child: Child) -> dict[str, Any]:
        meta = {**child.body["metadata"], "uid": f"{child.kind}/{child.name}"}
        return {**child.body, "metadata": meta}

    def _engines(self) -> Any:
        sets = [
            child_facts("apps/v1", kind, body)
            for (kind, _), body in self.children.items()
            if kind == "StatefulSet"
        ]
        pods = []
        for item in sets:
            for ordinal in range(item.body["spec"]["replicas"]):
                name = f"{item.name}-{ordinal}"
                ready = "True" if name in self.ready else "False"
                pods.append(
                    {
                        "metadata": {"name": name, **item.body["spec"]["template"]["metadata"]},
                        "spec": {},
                        "status": {"podIP": name, "conditions": [{"type": "Ready", "status": ready}]},
                    }
                )
        return engine_facts(self.key, sets, pods)


class FakeReader:
    """Answers as set; what is not set does not answer."""

    def __init__(self) -> None:
        self.snapshots: dict[str, AdmissionSnapshot] = {}
        """By router URL."""
        self.kv_tokens: dict[str, int] = {}
        """By engine URL."""
        self.totals: dict[str, EngineTotals] = {}
        """By engine URL; an engine without has just started."""

    async def snapshot(self, url: str) -> AdmissionSnapshot:
        """See Reader."""
        if url not in self.snapshots:
            raise ReadError(f"{url}: no answer")
        return self.snapshots[url]

    async def metrics(self, url: str) -> EngineMetrics:
        """See Reader."""
        if url not in self.kv_tokens:
            raise ReadError(f"{url}: no answer")
        return EngineMetrics(kv_tokens=self.kv_tokens[url], totals=self.totals.get(url, NO_TOTALS))


def merged(old: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(old) if isinstance(old, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found
