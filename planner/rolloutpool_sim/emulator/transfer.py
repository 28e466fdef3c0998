"""The decode side of KV transfer: fetches the KV of prompts that another emulator has prefilled.

NIXL reads remote GPU memory through a side channel; here a `POST` to the prefill emulator's own port stands
for it. While a request waits for its turn, heartbeats keep the remote blocks; when its transfer begins the
prefill emulator is told how long it lasts, and frees its blocks then. A request that ends before lets the
remote blocks go at once.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from rolloutpool_sim.emulator.driver import Driver
from rolloutpool_sim.engine import Load

PULL_PATH = "/emulator/kv/pull"
HEARTBEAT_PATH = "/emulator/kv/heartbeat"
_HEARTBEATS_PER_LEASE = 6  # as NIXL's connector
_TIMEOUT = aiohttp.ClientTimeout(total=10)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a prompt's KV is: the fields of `kv_transfer_params` that a reader needs."""

    host: str
    port: int
    engine_id: str
    request_id: str

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "Remote":
        """Read the fields of a prefill's `kv_transfer_params`.

        Raises ValueError if the port is not a number.
        """
        return cls(
            str(params["remote_host"]),
            int(params["remote_port"]),
            str(params["remote_engine_id"]),
            str(params["remote_request_id"]),
        )

    def url(self, path: str) -> str:
        """URL of an endpoint of the prefill emulator."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{path}"


class KvReader:
    """Fetches remote KV for the sequences of one driver. Holds one small task for each that waits."""

    def __init__(self, lease_seconds: float, time_scale: float) -> None:
        self.driver: Driver | None = None
        self._heartbeat_seconds = lease_seconds / _HEARTBEATS_PER_LEASE / time_scale
        self._time_scale = time_scale
        self._remotes: dict[str, Remote] = {}
        self._heartbeats: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    def watch(self, request_id: str, remote: Remote) -> None:
        """Keep the remote KV of a queued sequence until it is fetched or dropped."""
        self._remotes[request_id] = remote
        self._heartbeats[request_id] = self._spawn(self._beat(remote))

    def fetch(self, load: Load) -> None:
        """Begin the transfer that the engine has reserved blocks for."""
        remote = self._take(load.request_id)
        if remote is not None:
            self._spawn(self._fetch(load, remote))

    def drop(self, request_id: str) -> None:
        """Let the remote KV of a sequence that ended before its transfer go; nothing if it was fetched."""
        remote = self._take(request_id)
        if remote is not None:
            self.release(remote)

    def release(self, remote: Remote) -> None:
        """Tell the prefill emulator that it may free its blocks at once."""
        self._spawn(self._post_release(remote))

    async def close(self) -> None:
        """Stop all tasks and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _take(self, request_id: str) -> Remote | None:
        heartbeat = self._heartbeats.pop(request_id, None)
        if heartbeat is not None:
            heartbeat.cancel()
        return self._remotes.pop(request_id, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _beat(self, remote: Remote) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            await self._post(remote, HEARTBEAT_PATH, seconds=0.0)

    async def _post_release(self, remote: Remote) -> None:
        await self._post(remote, PULL_PATH, seconds=0.0)

    async def _fetch(self, load: Load, remote: Remote) -> None:
        assert self.driver is not None
        loop = asyncio.get_running_loop()
        done_at = loop.time() + load.seconds / self._time_scale
        ok = await self._post(remote, PULL_PATH, seconds=load.seconds)
        if not ok:
            log.warning("the KV of %s is not at %s:%d any more", load.request_id, remote.host, remote.port)
            self.driver.finish_load(load.request_id, ok=False)
            return
        await asyncio.sleep(max(done_at - loop.time(), 0.0))
        self.driver.finish_load(load.request_id, ok=True)

    async def _post(self, remote: Remote, path: str, *, seconds: float) -> bool:
        """Tell the prefill emulator; False if it cannot be reached or has not got the KV."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        body = {"engine_id": remote.engine_id, "request_id": remote.request_id, "seconds": seconds}
        try:
            async with self._session.post(remote.url(path), json=body) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
