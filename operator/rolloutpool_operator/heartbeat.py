"""The heartbeat: a Lease that the operator renews and must see through its own watch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from rolloutpool_api.moments import micro_time
from rolloutpool_operator.core.liveness import WatchAudit
from rolloutpool_operator.core.watched import HEARTBEAT, LEASE, LEASES
from rolloutpool_operator.kubernetes_api import ApiError, Body, KubernetesApi

SCOPE = "the heartbeat"
logger = logging.getLogger(__name__)


class Heartbeat:
    """Renews the Lease every `period` seconds."""

    def __init__(
        self,
        api: KubernetesApi,
        audit: WatchAudit,
        *,
        namespace: str,
        identity: str,
        period: float,
        monotonic: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make the heartbeat.

        Args:
            api: requests.
            audit: told of every renewal.
            namespace: the operator's own namespace.
            identity: name of the Lease: one per process, so that two operators do not hear each other.
            period: seconds between renewals.
            monotonic: clock of the audit.
            clock: Unix seconds.
        """
        self._api = api
        self._audit = audit
        self._namespace = namespace
        self._identity = identity
        self._period = period
        self._monotonic = monotonic
        self._clock = clock

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await self.renew()
            await asyncio.sleep(self._period)

    async def renew(self) -> None:
        """Renew once; an API server that refuses or is away is no reason to stop."""
        try:
            meta = (await self._api.apply(LEASES, self._body()))["metadata"]
        except ApiError as error:
            logger.warning("heartbeat not renewed: %s", error)
            return
        self._audit.expect_one(SCOPE, LEASE, meta["uid"], meta["resourceVersion"], self._monotonic())

    def _body(self) -> Body:
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASE,
            "metadata": {
                "name": self._identity,
                "namespace": self._namespace,
                "labels": {HEARTBEAT: "true"},
            },
            "spec": {"holderIdentity": self._identity, "renewTime": micro_time(self._clock())},
        }
