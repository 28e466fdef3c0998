"""Three router processes under load, one of them killed: no session is lost, and no engine gets too many."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from aiohttp import web

from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.status import AdmissionStatus
from rolloutpool_router.core.grants import History, seen, wrote
from rolloutpool_router.core.roster import Roster, alive, looked
from rolloutpool_router.core.sharing import share, shares_matter
from rolloutpool_router.testing import FakeEngine, chat_answer, pool_object, until, write_pool

CHAT = "/v1/chat/completions"
CAPS = {"rlvr": 7, "rlhf": 2, "agentic": 5}
ENGINES = 2
TURNS = 4


@dataclass
class RouterProcess:
    name: str
    url: str
    process: asyncio.subprocess.Process
    drain: asyncio.Task[None]


@asynccontextmanager
async def router_process(path: Path, name: str) -> AsyncIterator[RouterProcess]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rolloutpool_router.main", "--pool-file", str(path), "--name", name),
        *("--host", "127.0.0.1", "--port", "0", "--grace-seconds", "5"),
        stderr=asyncio.subprocess.PIPE,
    )
    stderr = process.stderr
    assert stderr is not None
    while (found := re.search(rb"listens on (127.0.0.1:\d+)", await stderr.readline())) is None:
        assert process.returncode is None

    async def drain() -> None:
        while await stderr.readline():
            pass

    task = asyncio.create_task(drain())
    try:
        yield RouterProcess(name, f"http://{found.group(1).decode()}", process, task)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await task


@dataclass
class Operator:
    """What the operator's admission loop does: reads the routers, shares the caps, writes the object."""

    path: Path
    pool: dict[str, Any]
    routers: list[RouterProcess]
    client: aiohttp.ClientSession
    roster: Roster | None = None
    history: History = ()
    stored: AdmissionStatus | None = None
    most_enforced: Counter[tuple[str, str]] = field(default_factory=Counter)

    async def look(self) -> None:
        loop = asyncio.get_running_loop()
        living = [router for router in self.routers if router.process.returncode is None]
        snapshots = {router.name: found for router in living if (found := await self.read(router))}
        self.roster = looked(
            self.roster, [(r.name, r.url, r.name in snapshots) for r in living], snapshots, now=loop.time()
        )
        if not snapshots:
            return
        self.history = seen(self.history, self.stored)
        fresh = AdmissionStatus.model_validate(
            self.pool["status"]["admission"]
            | {
                "revision": (self.stored.revision if self.stored else 0) + 1,
                "classes": [{"name": n, "cap": c, "active": 0, "waiting": 0} for n, c in CAPS.items()],
            }
        )
        fresh = share(fresh, routers=alive(self.roster, now=loop.time()), replicas=3, history=self.history)
        if shares_matter(fresh, self.stored):
            body = self.pool | {"status": self.pool["status"] | {"admission": fresh.to_wire()}}
            write_pool(self.path, body)
            self.stored, self.history = fresh, wrote(self.history, fresh)

    async def read(self, router: RouterProcess) -> AdmissionSnapshot | None:
        try:
            async with self.client.get(f"{router.url}/admission/snapshot") as answer:
                return AdmissionSnapshot.model_validate(await answer.json())
        except aiohttp.ClientError:
            return None

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(0.1)


@dataclass
class Trainer:
    """Runs sessions; a request that fails is sent again, to any router."""

    client: aiohttp.ClientSession
    routers: list[RouterProcess]
    rng: Random = field(default_factory=lambda: Random(1))
    done: Counter[str] = field(default_factory=Counter)
    failures: int = 0

    async def session(self, class_name: str, name: str, turns: int) -> None:
        messages: list[dict[str, str]] = [{"role": "user", "content": name}]
        headers = {"X-Session-ID": name, "X-Rollout-Class": class_name}
        for _ in range(turns):
            await self.send(CHAT, {"model": "m", "messages": messages}, headers)
            messages += [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "go on"}]
        await self.send("/finish_session", {}, headers)
        self.done[class_name] += 1

    async def send(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        while True:
            router = self.rng.choice([r for r in self.routers if r.process.returncode is None])
            try:
                async with self.client.post(router.url + path, json=body, headers=headers) as answer:
                    await answer.read()
                    if answer.status == 200:
                        return
                    assert answer.status in (502, 503), await answer.text()
            except aiohttp.ClientError:
                pass
            self.failures += 1
            await asyncio.sleep(0.01)


class Counting:
    """An engine that counts the requests of each class that it answers at the same time."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        name = request.headers["X-Rollout-Class"]
        self.now[name] += 1
        self.most[name] = max(self.most[name], self.now[name])
        try:
            await asyncio.sleep(0.02)
            return await chat_answer(request, body)
        finally:
            self.now[name] -= 1


async def test_a_router_is_killed_under_load(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    counting = [Counting() for _ in range(ENGINES)]
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
        FakeEngine(answer=counting[0].answer).running() as e0,
        FakeEngine(answer=counting[1].answer).running() as e1,
    ):
        pool = pool_object({"e0": e0.url, "e1": e1.url}, caps=CAPS, policy="MISA")
        pool["spec"]["router"] = {"replicas": 3}
        write_pool(path, pool | {"status": {"endpoints": pool["status"]["endpoints"]}})
        async with (
            router_process(path, "r0") as r0,
            router_process(path, "r1") as r1,
            router_process(path, "r2") as r2,
        ):
            routers = [r0, r1, r2]
            operator = Operator(path, pool, routers, client)
            await until_listed(operator, 3)
            working = asyncio.create_task(operator.run())
            trainer = Trainer(client, routers)
            rlvr = [asyncio.create_task(trainer.session("rlvr", f"s{n}", 1)) for n in range(150)]
            agentic = [asyncio.create_task(trainer.session("agentic", f"a{n}", TURNS)) for n in range(24)]

            await until(lambda: trainer.done["rlvr"] >= 40 and trainer.done["agentic"] >= 4, timeout=60)
            r1.process.kill()
            await asyncio.wait_for(asyncio.gather(*rlvr, *agentic), 60)

            assert trainer.done == {"rlvr": 150, "agentic": 24}
            assert all(found.most["rlvr"] <= CAPS["rlvr"] for found in counting)
            assert trainer.failures > 0
            assert not working.done()
            working.cancel()
            await until_listed(operator, 2)
            left = [snapshot for router in (r0, r2) if (snapshot := await operator.read(router))]
            assert sum(item.active + item.waiting for found in left for item in found.classes) == 0
            enforced = [item.grants for item in operator.stored.engines] if operator.stored else []
            assert [sum(int(line.split()[1]) for line in lines) for lines in enforced] == [CAPS["rlvr"]] * 2


async def until_listed(operator: Operator, routers: int) -> None:
    """Wait until so many routers are listed, each has applied that, and all caps are given out."""
    async with asyncio.timeout(60):
        while True:
            await operator.look()
            stored = operator.stored
            given = [sum(int(line.split()[1]) for line in e.grants) for e in stored.engines] if stored else []
            if stored and len(stored.routers) == routers and given == [CAPS["rlvr"]] * ENGINES:
                return
            await asyncio.sleep(0.05)
