"""Pools on Kubernetes: gathers objects, applies children server-side, writes status and Events."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolloutpool_api import labels
from rolloutpool_api.moments import rfc3339
from rolloutpool_api.status import PlanGroup
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_operator.cluster_gpus import ClusterGpus
from rolloutpool_operator.core.children import Action, Child, DeleteChild
from rolloutpool_operator.core.cluster_facts import (
    child_facts,
    controlled_by,
    engine_facts,
    labels_of,
    router_facts,
)
from rolloutpool_operator.core.desired import build_children
from rolloutpool_operator.core.events import PoolEvent
from rolloutpool_operator.core.manifests.context import Install, context_of
from rolloutpool_operator.core.manifests.router import router_url, weights_url
from rolloutpool_operator.core.observed import Observed, PoolKey, ProfileFacts, read_pool
from rolloutpool_operator.core.watched import BY_KIND, CHILDREN, CONFIG_MAP, EVENT, POD, POOL, Kind
from rolloutpool_operator.kubernetes_api import ApiError, KubernetesApi
from rolloutpool_operator.platform import (
    Clock,
    Failure,
    Outcome,
    PlatformError,
    PoolGone,
    Report,
    StatusConflict,
)

logger = logging.getLogger(__name__)

Versions = Mapping[tuple[str, str], str]
"""Resource version by kind and uid."""


class KubernetesPlatform:
    """See `platform.Platform`."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        install: Install,
        gpus: ClusterGpus,
        clock: Clock,
        on_read: Callable[[PoolKey, Versions], None] = lambda key, versions: None,
        on_write: Callable[[PoolKey, str, str], None] = lambda key, uid, version: None,
    ) -> None:
        """Make the platform.

        Args:
            api: requests.
            install: what manifests take from the operator's settings.
            gpus: nodes and what is free on them.
            clock: Unix seconds, for Events.
            on_read: told of every gathered object's version, which the watches must deliver too.
            on_write: told of a pool's uid and its version after a status write.
        """
        self._api = api
        self._install = install
        self._gpus = gpus
        self._clock = clock
        self._on_read = on_read
        self._on_write = on_write

    async def gather(self, key: PoolKey) -> Observed | None:
        """See Platform."""
        try:
            body = await self._api.get(POOL, key.namespace, key.name)
            if body is None:
                return None
            return await self._observe(key, body)
        except ApiError as error:
            raise PlatformError(str(error)) from error

    def build(self, observed: Observed, groups: Sequence[PlanGroup]) -> tuple[Child, ...]:
        """See Platform."""
        if observed.pool is None:
            return ()
        return build_children(context_of(observed.pool, self._install), groups)

    async def apply(self, observed: Observed, actions: Sequence[Action]) -> Outcome:
        """See Platform."""
        done: list[Action] = []
        failed: list[Failure] = []
        for action in actions:
            try:
                await self._act(observed, action)
                done.append(action)
            except (ApiError, PlatformError) as error:
                failed.append(Failure(action=action, message=str(error)))
        return Outcome(done=tuple(done), failed=tuple(failed))

    async def report(self, report: Report) -> str:
        """See Platform."""
        version = report.resource_version
        if report.patch:
            version = await self._patch(report)
            self._on_write(report.key, report.uid, version)
        for event in report.events:
            await self._post(report, event)
        return version

    async def _observe(self, key: PoolKey, body: Mapping[str, Any]) -> Observed:
        pool, invalid = read_pool(body)
        uid = str(body["metadata"]["uid"])
        selector = f"{labels.POOL}={key.name}"
        pods, nodes, profile, *lists = await asyncio.gather(
            self._api.objects(POD, key.namespace, selector=selector),
            self._nodes(key, pool),
            self._profile(key, pool),
            *(self._api.objects(kind, key.namespace, selector=selector) for kind in CHILDREN),
        )
        children = [
            child_facts(kind.api_version, kind.kind, item)
            for kind, items in zip(CHILDREN, lists, strict=True)
            for item in items
            if controlled_by(item, uid)
        ]
        self._on_read(key, _versions(body, pods, zip(CHILDREN, lists, strict=True)))
        sets = [child for child in children if child.kind == "StatefulSet"]
        return Observed(
            key=key,
            body=body,
            pool=pool,
            invalid=invalid,
            nodes=nodes[0],
            nodes_note=nodes[1],
            children=tuple(children),
            engines=engine_facts(key, sets, _of_component(pods, labels.ENGINE)),
            routers=router_facts(_of_component(pods, labels.ROUTER)),
            profile=profile,
            router_url=router_url(context_of(pool, self._install)) if pool else "",
            weights_url=weights_url(context_of(pool, self._install)) if pool else "",
        )

    async def _nodes(self, key: PoolKey, pool: RolloutPool | None) -> Any:
        if pool is None:
            return None, ""
        return await self._gpus.facts(key, pool.spec.gpus.resource_name)

    async def _profile(self, key: PoolKey, pool: RolloutPool | None) -> ProfileFacts:
        reference = pool.spec.planning.profile.config_map_ref if pool else None
        if reference is None:
            return ProfileFacts()
        where = f"ConfigMap {reference.name} (spec.planning.profile.configMapRef)"
        try:
            found = await self._api.get(CONFIG_MAP, key.namespace, reference.name)
        except ApiError as error:
            if error.status != 403:
                raise
            return ProfileFacts(error=f"{where} may not be read: {error}")
        if found is None:
            return ProfileFacts(error=f"{where} does not exist: create it, or name a built-in profile")
        text = (found.get("data") or {}).get(reference.key)
        if text is None:
            return ProfileFacts(error=f"{where} has no key {reference.key}")
        return ProfileFacts(text=text)

    async def _act(self, observed: Observed, action: Action) -> None:
        namespace = observed.key.namespace
        if isinstance(action, DeleteChild):
            logger.info("%s: delete %s %s (%s)", observed.key, action.kind, action.name, action.reason)
            await self._api.delete(BY_KIND[action.kind], namespace, action.name, action.uid)
            return
        child = action.child
        if action.before is None:
            await self._refuse_foreign(observed, child)
        logger.info("%s: apply %s %s (%s)", observed.key, child.kind, child.name, action.reason)
        await self._api.apply(BY_KIND[child.kind], child.body)

    async def _refuse_foreign(self, observed: Observed, child: Child) -> None:
        """Never take over an object that somebody else made, or that an earlier pool left behind."""
        found = await self._api.get(BY_KIND[child.kind], observed.key.namespace, child.name)
        if found is not None and not controlled_by(found, observed.uid):
            raise PlatformError(
                f"{child.kind} {child.name} exists and does not belong to this pool: delete or rename it"
            )

    async def _patch(self, report: Report) -> str:
        try:
            body = await self._api.patch_pool_status(
                report.key.namespace, report.key.name, report.patch, resource_version=report.resource_version
            )
        except ApiError as error:
            if error.status == 409:
                raise StatusConflict(str(error)) from error
            if error.status == 404:
                raise PoolGone(str(error)) from error
            raise PlatformError(str(error)) from error
        return str(body["metadata"]["resourceVersion"])

    async def _post(self, report: Report, event: PoolEvent) -> None:
        """Events are for people: one that cannot be posted is logged and no failure."""
        logger.info("%s: %s: %s", report.key, event.reason, event.message)
        try:
            await self._api.create(
                EVENT, report.key.namespace, event_body(report, event, rfc3339(self._clock()))
            )
        except ApiError as error:
            logger.warning("%s: Event %s not posted: %s", report.key, event.reason, error)


def event_body(report: Report, event: PoolEvent, now: str) -> dict[str, Any]:
    """An Event about a pool."""
    namespace, name = report.key
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": labels.API_VERSION,
            "kind": labels.KIND,
            "namespace": namespace,
            "name": name,
            "uid": report.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:1024],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": labels.FIELD_MANAGER},
        "reportingComponent": labels.FIELD_MANAGER,
    }


def _of_component(pods: Sequence[Mapping[str, Any]], component: str) -> list[Mapping[str, Any]]:
    return [pod for pod in pods if labels_of(pod).get(labels.COMPONENT) == component]


def _versions(
    pool: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], lists: Any
) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    groups: list[tuple[Kind, Sequence[Mapping[str, Any]]]] = [(POOL, [pool]), (POD, pods), *lists]
    for kind, items in groups:
        for item in items:
            meta = item["metadata"]
            found[kind.kind, meta["uid"]] = meta["resourceVersion"]
    return found
