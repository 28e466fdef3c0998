"""Routers under abuse: what must hold after it, and a session beside it that must not notice."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from rolloutpool_router.app import build_router
from rolloutpool_router.server import serving
from rolloutpool_router.testing import (
    FILE_PERIOD_SECONDS,
    FakeEngine,
    RunningRouter,
    chat_answer,
    pool_object,
    until,
    write_pool,
)
from rolloutpool_router.watch_file import watch_file
from rolloutpool_router.wire.server import Limits
from rolloutpool_router.wire.testing import HOST, RawClient, raw_client

CHAT = "/v1/chat/completions"
CAPS = {"rlvr": 500, "rlhf": 500, "agentic": 500}
BLOCKS = 1_000_000
"""Of each engine: caps are what binds."""
BYSTANDER = "agent-bystander"
PATIENCE_SECONDS = 60.0


def request(
    body: bytes | Mapping[str, Any] = b"{}",
    *,
    session: str = "",
    class_name: str = "rlvr",
    length: int | None = None,
    more: str = "",
) -> bytes:
    """A chat request as bytes; `length`: the Content-Length, where it is not the body's."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = f"X-Session-ID: {session}\r\n" if session else ""
    kind = f"X-Rollout-Class: {class_name}\r\n" if class_name else ""
    size = len(data) if length is None else length
    head = f"POST {CHAT} HTTP/1.1\r\nHost: r\r\n{kind}{named}{more}Content-Length: {size}\r\n\r\n"
    return head.encode() + data


def prompt(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat's body."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def held(text: str = "hello") -> dict[str, Any]:
    """A chat's body that the good engine does not answer before `Arena.go` is set."""
    return prompt(text, user="held")


@dataclass(frozen=True)
class Arena:
    """A router that is abused, and an engine that serves well."""

    running: RunningRouter
    good: FakeEngine
    port: int
    go: asyncio.Event
    """The good engine answers `held` prompts once this is set."""

    @property
    def residents(self) -> int:
        """Permits that are held."""
        return len(self.running.router.gate.controller.table)

    async def is_clean(self, *, residents: int = 0) -> None:
        """Wait until nothing is left of any request, and `residents` sessions are resident and idle.

        Raises:
            TimeoutError: something was lost, or is held for ever.
        """
        router = self.running.router
        controller = router.gate.controller

        def clean() -> bool:
            queued = sum(state.queue.requests for state in controller.classes.values())
            in_flight = sum(session.in_flight for session in controller.table)
            waiting = router.gate.waiting + router.pause.waiting + controller.stalled.requests + queued
            held = router.open_requests + router.budget.held
            return (waiting, in_flight, held, self.residents) == (0, 0, 0, residents)

        await until(clean, timeout=PATIENCE_SECONDS)


def pool_of(
    engines: Mapping[str, str],
    *,
    caps: Mapping[str, int] = CAPS,
    workloads: list[dict[str, Any]] | None = None,
    lending: bool = True,
    revision: int = 1,
) -> dict[str, Any]:
    """A pool in which caps alone bind: pots are ample, and no class waits for the mixture."""
    admission = {"lending": lending}
    pool = pool_object(
        engines, caps=caps, workloads=workloads, admission=admission, blocks=BLOCKS, revision=revision
    )
    pool["spec"]["mixture"] = {"enforcement": "Soft"}
    return pool


@asynccontextmanager
async def arena(
    folder: Path,
    engines: Mapping[str, str] | None = None,
    *,
    caps: Mapping[str, int] = CAPS,
    workloads: list[dict[str, Any]] | None = None,
    rooms: Mapping[str, str] | None = None,
    lending: bool = True,
    limits: Limits | None = None,
) -> AsyncIterator[Arena]:
    """Abuse a router within the block. At its end nothing may be left, and a session beside is unharmed.

    Args:
        folder: for the pool's file.
        engines: URLs by name of engines beside the good one, which is called good.
        caps: by class, on each engine.
        workloads: the classes, where they are not the usual three.
        rooms: the one engine that has room for a class, by class; the other classes have room on all.
        lending: whether classes may use room beyond their caps.
        limits: of connections; None: the usual.
    """
    go = asyncio.Event()

    async def answer(http_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body.get("user") == "held":
            await go.wait()
        return await chat_answer(http_request, body)

    async with FakeEngine(answer=answer).running() as good:
        make = partial(pool_of, caps=caps, workloads=workloads, lending=lending and not rooms)
        pool = make({"good": good.url})
        async with _running(folder / "pool.json", pool, limits) as (running, port):
            place = Arena(running, good, port, go)
            async with _bystander(port):
                if engines:
                    both = {"good": good.url, **engines}
                    running.write(_with_rooms(make(both, revision=2), rooms or {}))
                    fleet = running.router.gate.controller.fleet
                    await until(lambda: len(fleet.engines) == len(both))
                yield place
            await finish(place, BYSTANDER)
            await place.is_clean()


@asynccontextmanager
async def _running(
    path: Path, pool: Mapping[str, Any], limits: Limits | None
) -> AsyncIterator[tuple[RunningRouter, int]]:
    write_pool(path, pool)
    router = build_router("router-0", rng=Random(1))
    watch = partial(watch_file, path, router.feed, period_seconds=FILE_PERIOD_SECONDS)
    async with serving(router, watch, host=HOST, port=0, grace_seconds=0, limits=limits) as port:
        await until(lambda: router.gate.controller.view is not None)
        yield RunningRouter(f"http://{HOST}:{port}", router, path), port


def _with_rooms(pool: dict[str, Any], rooms: Mapping[str, str]) -> dict[str, Any]:
    for engine in pool["status"]["admission"]["engines"]:
        name = engine["name"]
        engine["classes"] = [
            each if rooms.get(each["name"], name) == name else {**each, "cap": 0}
            for each in engine["classes"]
        ]
    return pool


@asynccontextmanager
async def _bystander(port: int) -> AsyncIterator[None]:
    """A session that takes turns all the time, on the engine that was alone when it began."""
    turns = 0
    first, over = asyncio.Event(), asyncio.Event()

    async def take_turns(client: RawClient) -> None:
        nonlocal turns
        while not over.is_set():
            await client.send(request(prompt(), session=BYSTANDER, class_name="agentic"))
            status, body = await client.answer()
            assert status == 200, body
            turns += 1
            first.set()
            await asyncio.sleep(0.005)

    async with raw_client(port) as client:
        task = asyncio.create_task(take_turns(client))
        await asyncio.wait({task, asyncio.create_task(first.wait())}, return_when=asyncio.FIRST_COMPLETED)
        try:
            yield
            before = turns
            await until(lambda: task.done() or turns > before)
        finally:
            over.set()
            await task


async def ask(place: Arena, data: bytes) -> tuple[int, dict[str, Any]]:
    """One request on a connection of its own: status and JSON of the answer."""
    async with raw_client(place.port) as client:
        await client.send(data)
        status, body = await client.answer()
        return status, json.loads(body)


async def finish(place: Arena, *sessions: str) -> None:
    """End sessions that are there."""
    async with raw_client(place.port) as client:
        for session in sessions:
            head = (
                f"POST /finish_session?session_id={session} HTTP/1.1\r\nHost: r\r\nContent-Length: 0\r\n\r\n"
            )
            await client.send(head.encode())
            status, body = await client.answer()
            assert (status, json.loads(body)) == (200, {"finished": True})


@asynccontextmanager
async def crowd(port: int, clients: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Many clients in a process of their own, each with a `held` request under way; killed at the end."""
    code = f"from rolloutpool_testkit.abuse import be_a_crowd; be_a_crowd({port}, {clients})"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS) == b"ready\n"
        yield process
    finally:
        process.kill()
        await process.wait()


def be_a_crowd(port: int, clients: int) -> None:
    """Connect and send, one after the other, and wait to be killed: the kernel resets all at once then."""
    allow_files(clients + 100)
    kept = []
    for number in range(clients):
        each = socket.create_connection((HOST, port))
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.sendall(request(held(f"question {number}"), session=f"crowd-{number}"))
        kept.append(each)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


def rss_bytes() -> int:
    """Memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def allow_files(wanted: int) -> None:
    """Let this process open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard == resource.RLIM_INFINITY or hard >= wanted
    assert enough, f"this needs {wanted} open files and the limit is {hard}: raise it (ulimit -Hn)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
