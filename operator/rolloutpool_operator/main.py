"""The operator's process: `python3 -m rolloutpool_operator.main`, configured by ROLLOUTPOOL_* variables."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import kopf
import kubernetes.config

from rolloutpool_operator.admission_loop import AdmissionLoop
from rolloutpool_operator.cluster_gpus import ClusterGpus
from rolloutpool_operator.core.liveness import WatchAudit
from rolloutpool_operator.core.observed import PoolKey
from rolloutpool_operator.core.watched import POOL
from rolloutpool_operator.handlers import Watches, make_kopf_settings, make_registry
from rolloutpool_operator.health import make_app, start_server
from rolloutpool_operator.heartbeat import Heartbeat
from rolloutpool_operator.kubernetes_api import KubernetesApi, load_client
from rolloutpool_operator.kubernetes_platform import KubernetesPlatform, Versions
from rolloutpool_operator.memory import Memories
from rolloutpool_operator.metrics import Metrics
from rolloutpool_operator.platform import PlatformError, StatusConflict
from rolloutpool_operator.reader import HttpReader
from rolloutpool_operator.reconcile import reconcile_once
from rolloutpool_operator.settings import InvalidSettings, Settings, read_settings
from rolloutpool_operator.workqueue import WorkQueue

CONFLICT_SECONDS = 0.5
"""After how many seconds a pool that changed under a reconcile is gathered again."""

logger = logging.getLogger(__name__)


class Operator:
    """Everything of one operator process, wired together."""

    def __init__(self, settings: Settings) -> None:
        """Wire the parts; nothing runs yet.

        Raises:
            kubernetes.config.ConfigException: where no API server is configured.
        """
        self._settings = settings
        self._metrics = Metrics()
        self._audit = WatchAudit(limit_seconds=settings.deaf_seconds)
        client = load_client(in_cluster="KUBERNETES_SERVICE_HOST" in os.environ)
        self._api = KubernetesApi(client, on_answer=self._answered)
        self._gpus = ClusterGpus(self._api, monotonic=time.monotonic, watch_nodes=settings.watch_nodes)
        self._platform = KubernetesPlatform(
            self._api,
            install=settings.install,
            gpus=self._gpus,
            clock=time.time,
            on_read=self._read,
            on_write=self._written,
        )
        self._memories = Memories()
        self._queue: WorkQueue[PoolKey] = WorkQueue(
            self._reconcile,
            workers=settings.workers,
            resync=settings.resync_seconds,
            expected=(PlatformError,),
        )

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        async with HttpReader() as reader, self._health():
            loop = AdmissionLoop(
                self._platform,
                self._memories,
                reader,
                time.time,
                period=self._settings.admission_seconds,
                on_conflict=self._queue.add,
            )
            background = [self._queue.run(), loop.run()]
            if self._settings.heartbeat_namespace:
                background.append(self._heartbeat().run())
            tasks = [asyncio.ensure_future(part) for part in background]
            watching = asyncio.ensure_future(self._watch())
            done, _ = await asyncio.wait([watching, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in [watching, *tasks]:
                task.cancel()
            await asyncio.gather(watching, *tasks, return_exceptions=True)
            self._api.close()
            for task in done:
                task.result()

    async def _watch(self) -> None:
        watches = Watches(
            audit=self._audit,
            metrics=self._metrics,
            add=self._queue.add,
            every=self._all_pools,
            foreign=self._foreign,
        )
        namespaces = self._settings.watched_namespaces
        await kopf.operator(
            registry=make_registry(
                watches,
                nodes=self._settings.watch_nodes,
                heartbeat=bool(self._settings.heartbeat_namespace),
            ),
            settings=make_kopf_settings(self._settings),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=list(namespaces),
        )

    async def _reconcile(self, key: PoolKey) -> float | None:
        memory = self._memories.of(key)
        self._metrics.pools.set(len(self._memories.items()))
        with self._metrics.seconds.time():
            try:
                again = await reconcile_once(self._platform, key, memory, clock=time.time)
            except StatusConflict as error:
                self._metrics.reconciles.labels(outcome="conflict").inc()
                logger.debug("%s: %s", key, error)
                return CONFLICT_SECONDS
            except BaseException:
                self._metrics.reconciles.labels(outcome="error").inc()
                raise
        self._metrics.reconciles.labels(outcome="done").inc()
        if memory.gone:
            self._forget(key)
        return again

    def _foreign(self, key: PoolKey, status: Mapping[str, Any] | None) -> bool:
        memory = self._memories.find(key)
        return memory is not None and memory.is_foreign(status)

    def _all_pools(self) -> None:
        self._gpus.invalidate()
        for key in self._queue.keys:
            self._queue.add(key)

    def _forget(self, key: PoolKey) -> None:
        self._queue.forget(key)
        self._memories.forget(key)
        self._audit.forget(str(key))
        self._metrics.pools.set(len(self._memories.items()))

    def _read(self, key: PoolKey, versions: Versions) -> None:
        self._audit.expect(str(key), versions, time.monotonic())

    def _written(self, key: PoolKey, uid: str, version: str) -> None:
        self._metrics.status_writes.inc()
        self._audit.expect_one(str(key), POOL.kind, uid, version, time.monotonic())

    def _answered(self, answered: bool) -> None:
        if answered:
            self._audit.api_answered(time.monotonic())
        else:
            self._audit.api_failed(time.monotonic())

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self._api,
            self._audit,
            namespace=self._settings.heartbeat_namespace,
            identity=self._settings.identity,
            period=self._settings.heartbeat_seconds,
            monotonic=time.monotonic,
        )

    @contextlib.asynccontextmanager
    async def _health(self) -> AsyncIterator[None]:
        app = make_app(self._audit, self._metrics, monotonic=time.monotonic)
        runner = await start_server(app, host=self._settings.host, port=self._settings.port)
        try:
            yield
        finally:
            await runner.cleanup()


def main() -> int:
    """Run the operator; returns the exit code."""
    try:
        settings = read_settings(os.environ)
    except InvalidSettings as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # One line per request is for debugging alone.
    for noisy in ("httpx", "kopf"):
        logging.getLogger(noisy).setLevel(logging.WARNING if settings.log_level == "info" else logging.NOTSET)
    try:
        asyncio.run(Operator(settings).run())
    except kubernetes.config.ConfigException as error:
        sys.stderr.write(f"no Kubernetes API is configured (in a pod, or by KUBECONFIG): {error}\n")
        return 2
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        sys.stderr.write(f"cannot serve on {where} (ROLLOUTPOOL_HOST, ROLLOUTPOOL_PORT): {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
