"""Several routers over real sockets: a request is served by the router that its session belongs to."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rolloutpool_router.bodies import WINDOW_BYTES
from rolloutpool_router.core.ownership import ranking, session_key
from rolloutpool_router.headers import FORWARDED
from rolloutpool_router.listed_routers import watch_listed
from rolloutpool_router.testing import FakeEngine, RunningRouter, pool_object, running_router, until
from rolloutpool_router.wire.testing import RawClient, RawEngine
from rolloutpool_testkit.connects import hold_connects

NAMES = ("r0", "r1", "r2")
CAPS = {"rlvr": 90, "rlhf": 90, "agentic": 90}
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
HISTORY = BODY | {"messages": [*BODY["messages"], {"role": "assistant", "content": "hi"}, *BODY["messages"]]}
RLVR = {"X-Rollout-Class": "rlvr"}


@dataclass(frozen=True)
class Fleet:
    """Routers of one pool, each with its own file."""

    engine: FakeEngine
    routers: Mapping[str, RunningRouter]
    more: Mapping[str, FakeEngine] = field(default_factory=dict)
    """Other engines, by name."""

    def tell(self, *listed: str, to: tuple[str, ...] = NAMES, revision: int = 2, cap: int = 30) -> None:
        """Write an object that lists these routers, with a cap for each of them and each class."""
        engines = {"e0": self.engine.url} | {name: engine.url for name, engine in self.more.items()}
        pool = pool_object(engines, caps=CAPS, revision=revision, policy="MISA")
        pool["spec"]["router"] = {"replicas": len(NAMES)}
        admission = pool["status"]["admission"]
        admission["classes"] = [
            {"name": name, "cap": cap, "active": 0, "waiting": 0} for name, cap in CAPS.items()
        ]
        admission["routers"] = [{"name": name, "url": self.routers[name].url} for name in listed]
        for engine in admission["engines"]:
            engine["grants"] = [f"333 {cap} {cap} {cap}"] * len(listed)
        for name in to:
            self.routers[name].write(pool)

    async def told(self, *listed: str, revision: int = 2, cap: int = 30) -> None:
        """The same, once all have read it."""
        self.tell(*listed, revision=revision, cap=cap)
        await until(lambda: all(applied(router) == revision for router in self.routers.values()))

    def resident(self, name: str, session: str) -> bool:
        return self.routers[name].router.gate.controller.table.get(session) is not None

    def home(self, session: str) -> tuple[str, str]:
        """The one router that has a session, and its engine."""
        tables = {name: router.router.gate.controller.table for name, router in self.routers.items()}
        found = [(name, known.engine) for name, table in tables.items() if (known := table.get(session))]
        assert len(found) == 1, found
        return found[0]


def applied(router: RunningRouter) -> int:
    view = router.router.gate.controller.view
    return view.revision if view is not None else 0


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@asynccontextmanager
async def running_fleet(
    tmp_path: Path, engine: FakeEngine, *, more: Mapping[str, FakeEngine] | None = None
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        pool = pool_object({"e0": engine.url}, caps=CAPS, policy="MISA")
        routers = {
            name: await stack.enter_async_context(running_router(tmp_path / f"{name}.json", pool, name=name))
            for name in NAMES
        }
        fleet = Fleet(engine, routers, more or {})
        await fleet.told(*NAMES)
        yield fleet


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with FakeEngine().running() as engine, running_fleet(tmp_path, engine) as found:
        yield found


def order(session: str) -> tuple[str, ...]:
    return ranking(session_key(session), NAMES)


async def post(
    client: aiohttp.ClientSession,
    router: RunningRouter,
    session: str | None = None,
    *,
    body: Mapping[str, Any] = BODY,
    headers: Mapping[str, str] = RLVR,
) -> tuple[int, str]:
    """Status, and the router that served."""
    named = {"X-Session-ID": session} if session else {}
    async with client.post(router.url + CHAT, json=body, headers={**named, **headers}) as answer:
        await answer.read()
        return answer.status, answer.headers.get("X-RolloutPool-Router", "")


async def test_a_session_is_served_by_its_router_wherever_it_comes(
    client: aiohttp.ClientSession, fleet: Fleet
) -> None:
    for number in range(9):
        session = f"agent-{number}"
        for router in fleet.routers.values():
            assert await post(client, router, session, headers={}) == (200, order(session)[0])
        assert [fleet.resident(name, session) for name in order(session)] == [True, False, False]
    assert len(fleet.engine.seen) == 27
    assert not any(FORWARDED in seen.headers for seen in fleet.engine.seen)
    counted = sum(
        router.router.metrics.forwards.labels("passed_on").value for router in fleet.routers.values()
    )
    assert counted == 18


async def test_samples_of_one_prompt_meet_at_one_router(client: aiohttp.ClientSession, fleet: Fleet) -> None:
    answers = [await post(client, router) for router in fleet.routers.values() for _ in range(2)]
    assert len(set(answers)) == 1
    others = {
        await post(
            client,
            fleet.routers["r0"],
            body=BODY | {"messages": [{"role": "user", "content": f"prompt {number}"}]},
        )
        for number in range(30)
    }
    assert {name for _, name in others} == set(NAMES)
    assert all(seen.headers["X-Session-ID"].startswith("single-") for seen in fleet.engine.seen)


async def test_the_class_of_a_session_is_known_where_it_lives(
    client: aiohttp.ClientSession, fleet: Fleet
) -> None:
    owner, other, _ = order("s1")
    assert await post(client, fleet.routers[other], "s1", headers={"X-Rollout-Class": "agentic"}) == (
        200,
        owner,
    )
    assert await post(client, fleet.routers[other], "s1", headers={}) == (200, owner)
    status, _ = await post(client, fleet.routers[other], "s1", headers={"X-Rollout-Class": "rlhf"})
    assert status == 400


async def test_a_stream_passes_through_as_it_comes(client: aiohttp.ClientSession, fleet: Fleet) -> None:
    more = asyncio.Event()

    async def stream(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Engine": "yes"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await more.wait()
        await response.write(b"data: 2\n\n")
        return response

    fleet.engine.answer = stream
    _, other, _ = order("s1")
    headers = RLVR | {"X-Session-ID": "s1", "X-Request-Id": "id-1"}
    async with client.post(fleet.routers[other].url + CHAT, json=BODY, headers=headers) as answer:
        assert await answer.content.readany() == b"data: 1\n\n"
        more.set()
        assert await answer.content.read() == b"data: 2\n\n"
        assert answer.headers["X-Engine"] == "yes"
    assert fleet.engine.seen[0].headers["X-Request-Id"] == "id-1"
    assert fleet.engine.seen[0].headers["X-Session-ID"] == "s1"


async def test_what_the_owner_refuses_is_refused(client: aiohttp.ClientSession, fleet: Fleet) -> None:
    async def refuse(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long"}}, status=400)

    fleet.engine.answer = refuse
    owner, other, _ = order("s1")
    assert await post(client, fleet.routers[other], "s1") == (400, owner)
    assert len(fleet.engine.seen) == 1


async def test_a_client_that_hangs_up_stops_its_generation(
    client: aiohttp.ClientSession, fleet: Fleet
) -> None:
    fleet.engine.go.clear()
    owner, other, _ = order("s1")
    task = asyncio.create_task(post(client, fleet.routers[other], "s1"))
    await until(lambda: fleet.engine.in_flight == 1)
    task.cancel()
    await until(lambda: fleet.engine.aborted == 1 and not fleet.resident(owner, "s1"))
    await until(lambda: all(not router.router.open_requests for router in fleet.routers.values()))


async def test_a_marked_request_is_served_where_it_comes(client: aiohttp.ClientSession, fleet: Fleet) -> None:
    _, other, _ = order("s1")
    assert await post(client, fleet.routers[other], "s1", headers={**RLVR, FORWARDED: "x"}) == (200, other)


async def test_routers_that_disagree_do_not_send_a_request_in_circles(
    client: aiohttp.ClientSession, fleet: Fleet
) -> None:
    fleet.tell("r1", to=("r0",), revision=3)
    fleet.tell("r0", to=("r1",), revision=3)
    await until(lambda: applied(fleet.routers["r0"]) == applied(fleet.routers["r1"]) == 3)
    for one, other in (("r0", "r1"), ("r1", "r0")):
        session = f"agent-{one}"
        assert await post(client, fleet.routers[one], session, body=HISTORY, headers={}) == (200, other)


async def test_a_session_ends_wherever_the_client_says_so(
    client: aiohttp.ClientSession, fleet: Fleet
) -> None:
    owner, other, last = order("agent-1")
    await post(client, fleet.routers[owner], "agent-1", headers={})
    assert fleet.resident(owner, "agent-1")
    url = f"{fleet.routers[last].url}/finish_session"
    async with client.post(url, params={"session_id": "agent-1"}) as answer:
        assert await answer.json() == {"finished": True}
    assert not fleet.resident(owner, "agent-1")
    async with client.post(
        f"{fleet.routers[other].url}/finish_session", json={"session_id": "agent-1"}
    ) as answer:
        assert await answer.json() == {"finished": False}


async def test_a_lost_router_is_passed_over_and_its_sessions_are_adopted(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with FakeEngine().running() as engine, AsyncExitStack() as stack:
        pool = pool_object({"e0": engine.url}, caps=CAPS, policy="MISA")
        ends = {name: AsyncExitStack() for name in NAMES}
        routers = {}
        for name, end in ends.items():
            await stack.enter_async_context(end)
            routers[name] = await end.enter_async_context(
                running_router(tmp_path / f"{name}.json", pool, name=name)
            )
        fleet = Fleet(engine, routers)
        await fleet.told(*NAMES)
        owner, second, last = order("agent-1")
        assert await post(client, routers[last], "agent-1", headers={}) == (200, owner)
        await ends[owner].aclose()

        assert await post(client, routers[last], "agent-1", body=HISTORY, headers={}) == (200, second)
        assert await post(client, routers[second], "agent-1", body=HISTORY, headers={}) == (200, second)
        assert routers[second].router.gate.controller.classes["agentic"].counters.adopted == 1
        assert await post(client, routers[last], "agent-new", headers={}) == (
            200,
            next(n for n in order("agent-new") if n != owner),
        )

        remaining = tuple(name for name in NAMES if name != owner)
        fleet.tell(*remaining, to=remaining, revision=3)
        await until(lambda: all(applied(routers[name]) == 3 for name in remaining))
        assert await post(client, routers[last], "agent-1", body=HISTORY, headers={}) == (200, second)
        assert not fleet.resident(last, "agent-1")


async def test_a_router_that_shuts_down_passes_on_what_waits_and_what_comes(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with FakeEngine().running() as engine, AsyncExitStack() as stack:
        pool = pool_object({"e0": engine.url}, caps=CAPS, policy="MISA")
        ends = {name: AsyncExitStack() for name in NAMES}
        routers = {}
        for name, end in ends.items():
            await stack.enter_async_context(end)
            routers[name] = await end.enter_async_context(
                running_router(tmp_path / f"{name}.json", pool, name=name, grace_seconds=0.5)
            )
        fleet = Fleet(engine, routers)
        await fleet.told(*NAMES, cap=3)
        engine.go.clear()
        mine = [f"s{number}" for number in range(99) if order(f"s{number}")[0] == "r0"][:6]
        tasks = [asyncio.create_task(post(client, routers["r0"], name)) for name in mine]
        through = asyncio.create_task(post(client, routers["r1"], mine[0] + "x"))
        await until(lambda: engine.in_flight >= 4 and routers["r0"].router.gate.waiting == 3)

        closing = asyncio.create_task(ends["r0"].aclose())
        await until(lambda: routers["r0"].router.draining and not routers["r0"].router.gate.waiting)
        late = asyncio.create_task(post(client, routers["r0"], "late"))
        await until(lambda: engine.in_flight + sum(r.router.gate.waiting for r in routers.values()) >= 8)
        engine.go.set()
        answers = await asyncio.gather(*tasks, late, through)
        await closing

        assert {status for status, _ in answers} == {200}
        assert all(name == "r0" for _, name in answers[:3])
        assert all(name in ("r1", "r2") for _, name in answers[3:7])
        assert len(engine.seen) == 8


async def test_a_request_that_looks_for_another_engine_is_handed_over(
    client: aiohttp.ClientSession, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had entered, its engine did not take it, and its router shuts down while none is up."""
    leaving = fleet.routers["r0"].router
    session = next(f"s{number}" for number in range(99) if order(f"s{number}")[0] == "r0")
    held = hold_connects(monkeypatch, leaving.upstream, fleet.engine.url, fail=True)
    asking = asyncio.create_task(post(client, fleet.routers["r0"], session))
    await until(lambda: held.begun and fleet.resident("r0", session))
    held.go.set()
    await until(lambda: leaving.gate.waiting == 1)
    assert fleet.resident("r0", session), "it waits with its permit"
    leaving.draining = True
    leaving.turn_away()
    assert await asking == (200, order(session)[1])
    assert len(fleet.engine.seen) == 1
    assert not fleet.resident("r0", session)
    assert leaving.open_requests == 0


LONG_BODY = json.dumps(BODY | {"more": "x" * 3 * WINDOW_BYTES}).encode()
"""It is passed on before all of it has come."""


@asynccontextmanager
async def second_of_two(
    folder: Path, engine: FakeEngine, owner_url: str
) -> AsyncIterator[tuple[RunningRouter, str]]:
    """A router, and a session that belongs to another one at `owner_url`."""
    pool = pool_object({"e0": engine.url}, caps=CAPS, policy="MISA")
    async with running_router(folder / "pool.json", pool, name="r1") as router:
        pool["spec"]["router"] = {"replicas": 2}
        admission = pool["status"]["admission"] | {"revision": 2}
        admission["routers"] = [{"name": "r0", "url": owner_url}, {"name": "r1", "url": router.url}]
        admission["engines"][0]["grants"] = ["333 30 30 30"] * 2
        pool["status"]["admission"] = admission
        router.write(pool)
        await until(lambda: applied(router) == 2)
        names = (f"s{number}" for number in range(99))
        yield router, next(name for name in names if ranking(session_key(name), ("r0", "r1"))[0] == "r0")


def long_request(session: str) -> dict[str, Any]:
    """Of a body beyond the window, whose length is told."""
    return {"data": io.BytesIO(LONG_BODY), "headers": RLVR | {"X-Session-ID": session}}


async def test_a_long_body_whose_owner_is_gone_is_served_here(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as engine,
        second_of_two(tmp_path, engine, "http://127.0.0.1:9") as (router, session),
    ):
        async with client.post(router.url + CHAT, **long_request(session)) as answer:
            assert (answer.status, answer.headers["X-RolloutPool-Router"]) == (200, "r1")
        assert engine.seen[0].raw == LONG_BODY


async def test_a_long_body_whose_owner_goes_half_way_is_told(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async def goes(caller: RawClient) -> None:
        await caller.until(b"\r\n\r\n")
        await caller.exactly(WINDOW_BYTES + 1_000_000)  # more than what was held back
        caller.reset()

    async with (
        FakeEngine().running() as engine,
        RawEngine(goes).running() as owner,
        second_of_two(tmp_path, engine, f"http://127.0.0.1:{owner.port}") as (router, session),
    ):
        async with client.post(router.url + CHAT, **long_request(session)) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (502, "router_lost")
        assert engine.seen == []
        assert router.router.open_requests == 0


async def test_a_session_that_moves_to_a_new_router_keeps_its_engine(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        FakeEngine().running() as first,
        FakeEngine().running() as second,
        running_fleet(tmp_path, first, more={"e1": second}) as fleet,
    ):
        await fleet.told("r0", "r1", revision=3)
        moving = [f"agent-{n}" for n in range(60) if order(f"agent-{n}")[0] == "r2"]
        staying = [f"agent-{n}" for n in range(9) if order(f"agent-{n}")[0] != "r2"]
        for session in (*moving, *staying):
            await post(client, fleet.routers["r0"], session, headers={})
        homes = {session: fleet.home(session) for session in (*moving, *staying)}
        assert {engine for _, engine in homes.values()} == {"e0", "e1"}

        await fleet.told("r0", "r1", "r2", revision=4)
        for session in homes:
            assert await post(client, fleet.routers["r1"], session, body=HISTORY, headers={}) == (
                200,
                order(session)[0],
            )
        for session in moving:
            assert fleet.home(session) == ("r2", homes[session][1])
        for session in staying:
            assert fleet.home(session) == homes[session]
        classes = [router.router.gate.controller.classes["agentic"] for router in fleet.routers.values()]
        assert sum(state.counters.adopted for state in classes) == len(moving)
        assert sum(state.counters.finished for state in classes) == 0


async def test_a_router_that_is_not_listed_passes_everything_on(
    client: aiohttp.ClientSession, fleet: Fleet
) -> None:
    await fleet.told("r1", "r2", revision=3)
    for number in range(6):
        _, served = await post(client, fleet.routers["r0"], f"s{number}")
        assert served in ("r1", "r2")
    text = (await fleet.routers["r0"].router.metrics.exposition()).decode()
    assert "rolloutpool_router_listed 0.0" in text


async def test_a_router_that_finds_no_listed_one_goes_on_by_itself(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with FakeEngine().running() as engine, FakeEngine().running() as old:
        pool = pool_object({"e0": engine.url}, caps={"rlvr": 1}, policy="MISA")
        pool["status"]["admission"]["routers"] = [{"name": "old", "url": old.url}]
        await old.stop()
        async with running_router(tmp_path / "pool.json", pool, name="new") as running:
            router = running.router
            waiting = asyncio.create_task(post(client, running, "s1"))
            await until(lambda: router.gate.waiting == 1)
            assert not engine.seen

            watching = asyncio.create_task(
                watch_listed(
                    router.feed,
                    router.forwarding.peers,
                    router.upstream,
                    router.clock,
                    period_seconds=0.02,
                    after_seconds=0.1,
                )
            )
            assert await waiting == (200, "new")
            async with client.get(f"{running.url}/admission/snapshot") as answer:
                assert (await answer.json())["appliedRevision"] == 0

            pool["status"]["admission"] |= {"revision": 2, "routers": [{"name": "new", "url": running.url}]}
            running.write(pool)
            await until(lambda: not router.forwarding.peers.deserted)
            assert await post(client, running, "s2") == (200, "new")
            watching.cancel()
