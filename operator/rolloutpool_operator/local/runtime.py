"""A whole local pool: the operator's work queue and admission loop over local adapters."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any

from rolloutpool_api.v1alpha1 import RolloutPool, parse_pool
from rolloutpool_operator.admission_loop import AdmissionLoop
from rolloutpool_operator.core.observed import PoolKey
from rolloutpool_operator.local.folder import make_token
from rolloutpool_operator.local.manifest import InvalidManifest, changed_immutable, parse_manifest
from rolloutpool_operator.local.options import LocalOptions, with_given_engines
from rolloutpool_operator.local.platform import Listener, LocalPlatform
from rolloutpool_operator.local.store import PoolStore
from rolloutpool_operator.memory import Memories
from rolloutpool_operator.platform import PlatformError
from rolloutpool_operator.reader import HttpReader
from rolloutpool_operator.reconcile import reconcile_once
from rolloutpool_operator.workqueue import WorkQueue

MANIFEST_PERIOD_SECONDS = 1.0
"""Between two looks at the manifest."""
STOP_SECONDS = 10.0
"""Longest time that processes have to end when the pool ends."""


class LocalPool:
    """Runs one pool on this machine."""

    def __init__(self, options: LocalOptions, *, listener: Listener) -> None:
        """Read the manifest and prepare the pool; nothing runs yet.

        Args:
            options: what to do; the state folder must be locked by the caller.
            listener: told of every status and event.

        Raises:
            InvalidManifest: the manifest is not valid.
            OSError: it cannot be read.
        """
        self._options = options
        self._seen_text = options.manifest.read_text(errors="replace")
        manifest, self._pool = _read(self._seen_text, options)
        self._make_token()
        self._store = PoolStore(options.folder, clock=time.time)
        self._store.put_manifest(manifest)
        self._queue: WorkQueue[PoolKey] = WorkQueue(self._reconcile, expected=(PlatformError,))
        self.platform = LocalPlatform(
            options, self._store, listener=listener, mark_dirty=lambda: self._queue.add(self.platform.key)
        )
        self._memories = Memories()

    async def run(self, stop: asyncio.Event) -> None:
        """Run the pool until `stop` is set; no process is left when this returns."""
        async with HttpReader() as reader:
            admission = AdmissionLoop(
                self.platform, self._memories, reader, clock=time.time, on_conflict=self._queue.add
            )
            try:
                await _first_of(
                    stop.wait(),
                    self._queue.run(),
                    admission.run(),
                    self.platform.prober.run(),
                    self._watch_manifest(),
                )
            finally:
                await self.platform.supervisor.stop(within=STOP_SECONDS)

    async def _reconcile(self, key: PoolKey) -> float | None:
        return await reconcile_once(self.platform, key, self._memories.of(key), clock=time.time)

    async def _watch_manifest(self) -> None:
        self._queue.add(self.platform.key)
        while True:
            await asyncio.sleep(MANIFEST_PERIOD_SECONDS)
            with contextlib.suppress(FileNotFoundError):  # an editor is just replacing it
                self._take_manifest(self._options.manifest.read_text(errors="replace"))

    def _take_manifest(self, text: str) -> None:
        if text == self._seen_text:
            return
        self._seen_text = text
        path = self._options.manifest
        try:
            manifest, pool = _read(text, self._options)
            if problem := changed_immutable(self._pool, pool):
                raise InvalidManifest(problem)
        except InvalidManifest as error:
            self.platform.note("Warning", "InvalidManifest", f"{path} is ignored until corrected: {error}")
            return
        self._pool = pool
        self._make_token()
        if self._store.put_manifest(manifest):
            generation = self._store.body["metadata"]["generation"]
            self.platform.note("Normal", "SpecChanged", f"{path} changed: generation {generation}")
            self._queue.add(self.platform.key)

    def _make_token(self) -> None:
        if self._pool.spec.engine.rl.enabled:
            make_token(self._options.folder)


def _read(text: str, options: LocalOptions) -> tuple[dict[str, Any], RolloutPool]:
    manifest, _ = parse_manifest(text)
    manifest = with_given_engines(manifest, options.engines)
    return manifest, parse_pool(manifest)


async def _first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all until one ends, then cancel the others; what failed is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
