"""Settings, the metrics reader, handlers, health, rights."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import kopf
import pytest
from aiohttp import web

from rolloutpool_api import labels
from rolloutpool_api.moments import micro_time, rfc3339, unix_seconds
from rolloutpool_operator.core.events import PoolEvent
from rolloutpool_operator.core.liveness import WatchAudit
from rolloutpool_operator.core.observed import PoolKey
from rolloutpool_operator.core.rbac import CLUSTER, DISCOVERY, NAMESPACED, OPERATOR_NAMESPACE
from rolloutpool_operator.core.watched import CHILDREN, POD
from rolloutpool_operator.handlers import Endless, Watches, make_kopf_settings, make_registry
from rolloutpool_operator.health import make_app, start_server
from rolloutpool_operator.kubernetes_api import path
from rolloutpool_operator.memory import Memories, PoolMemory
from rolloutpool_operator.metrics import Metrics
from rolloutpool_operator.reader import HttpReader, ReadError, parse_metrics
from rolloutpool_operator.settings import InvalidSettings, Settings, read_settings


def test_settings_from_the_environment() -> None:
    found = read_settings(
        {
            "ROLLOUTPOOL_NAMESPACES": "a, b",
            "ROLLOUTPOOL_NETWORK_POLICIES": "false",
            "ROLLOUTPOOL_PORT": "81",
            "PATH": "x",
        }
    )
    assert (found.watched_namespaces, found.network_policies, found.port) == (("a", "b"), False, 81)
    assert not found.install.network_policies


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"ROLLOUTPOOL_ROUTERIMAGE": "x"}, "unknown settings ROLLOUTPOOL_ROUTERIMAGE; known are"),
        ({"ROLLOUTPOOL_PORT": "many"}, "ROLLOUTPOOL_PORT"),
        ({"ROLLOUTPOOL_LOG_LEVEL": "loud"}, "ROLLOUTPOOL_LOG_LEVEL"),
    ],
)
def test_wrong_settings_name_the_variable(environ: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        read_settings(environ)


@pytest.mark.parametrize(
    ("namespaces", "own", "expected"),
    [("", "system", "system"), ("a,b", "system", "a"), ("a,system", "system", "system"), ("a", "", "")],
)
def test_the_heartbeat_is_where_a_watch_sees_it(namespaces: str, own: str, expected: str) -> None:
    assert Settings(namespaces=namespaces, operator_namespace=own).heartbeat_namespace == expected


INFO = 'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="100"%s} 1.0\n'


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param(INFO % (0, ""), 1600, id="blocks"),
        pytest.param(INFO % (0, ',kv_cache_size_tokens="1500"'), 1500, id="tokens win"),
        pytest.param(INFO % (0, "") + INFO % (1, ""), 3200, id="data-parallel ranks add up"),
        pytest.param(
            "# HELP x y\nother 1\n" + INFO % (0, "") + "broken{ 1\n", 1600, id="other lines are not read"
        ),
    ],
)
def test_capacity(text: str, tokens: int) -> None:
    assert parse_metrics(text).kv_tokens == tokens


@pytest.mark.parametrize(
    "text",
    [
        "",
        "other 1\n",
        "vllm:cache_config_info{ 1",
        'vllm:cache_config_info{num_gpu_blocks="x"} 1',
        INFO % (0, ',kv_cache_size_tokens="0"'),
        INFO % (0, "") + "vllm:num_preemptions_total NaN\n",
        INFO % (0, "") + "vllm:prefix_cache_hits_total +Inf\n",
    ],
)
def test_no_capacity(text: str) -> None:
    with pytest.raises(ReadError):
        parse_metrics(text)


@pytest.fixture
async def server() -> AsyncIterator[str]:
    async def snapshot(request: web.Request) -> web.Response:
        return web.json_response({"router": "r", "takenAt": 1})

    async def bad(request: web.Request) -> web.Response:
        return web.Response(text="[]")

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=INFO % (0, ""))

    app = web.Application()
    app.add_routes(
        [
            web.get("/admission/snapshot", snapshot),
            web.get("/bad/admission/snapshot", bad),
            web.get("/metrics", metrics),
        ]
    )
    runner = await start_server(app, host="127.0.0.1", port=0)
    yield "http://{}:{}".format(*runner.addresses[0][:2])
    await runner.cleanup()


async def test_http_reader(server: str) -> None:
    async with HttpReader() as reader:
        assert (await reader.snapshot(server)).router == "r"
        assert (await reader.metrics(server)).kv_tokens == 1600
        for url, words in [
            (f"{server}/bad", "malformed"),
            (f"{server}/none", "404"),
            ("http://127.0.0.1:9", "127"),
        ]:
            with pytest.raises(ReadError, match=words):
                await reader.snapshot(url)


async def test_an_answer_that_drips_is_given_up() -> None:
    """The client's own timeout is one of each read, which such an answer never reaches."""

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"#")
            await asyncio.sleep(0.01)

    app = web.Application()
    app.add_routes([web.get("/metrics", drip)])
    runner = await start_server(app, host="127.0.0.1", port=0)
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    async with HttpReader(timeout_seconds=0.2) as reader:
        with pytest.raises(ReadError, match="TimeoutError"):
            await reader.metrics(url)
    await runner.cleanup()


async def test_health_is_what_the_audit_says() -> None:
    now, audit = [0.0], WatchAudit(limit_seconds=10.0)
    runner = await start_server(
        make_app(audit, Metrics(), monotonic=lambda: now[0]), host="127.0.0.1", port=0
    )
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/healthz")).status_code == 200
        audit.api_answered(0.0)
        audit.expect_one("rl/pool", "Pod", "u", "1", 0.0)
        now[0] = 11.0
        answer = await client.get("/healthz")
        assert (answer.status_code, "Pod is deaf" in answer.text) == (503, True)
        assert "rolloutpool_operator_watches_deliver 0.0" in (await client.get("/metrics")).text
    await runner.cleanup()


def make_watches() -> tuple[Watches, list[PoolKey | str], WatchAudit]:
    added: list[PoolKey | str] = []
    audit = WatchAudit(limit_seconds=1.0)
    watches = Watches(
        audit=audit,
        metrics=Metrics(),
        add=added.append,
        every=lambda: added.append("all"),
        foreign=lambda key, status: status == {"phase": "foreign"},
    )
    return watches, added, audit


def body(version: str, generation: int = 1) -> dict[str, object]:
    meta = {
        "name": "pool",
        "namespace": "rl",
        "uid": "u",
        "resourceVersion": version,
        "generation": generation,
    }
    return {"metadata": meta}


def test_events_mark_pools() -> None:
    watches, added, audit = make_watches()
    watches.deliver("RolloutPool", {"type": None, "object": body("1")})
    watches.deliver("RolloutPool", {"type": "MODIFIED", "object": body("2")})
    assert added == [PoolKey("rl", "pool")], "an own status write calls for nothing"
    audit.api_answered(0.0)
    audit.expect_one("rl/pool", "RolloutPool", "u", "2", 0.0)
    assert audit.verdict(100.0) == "", "but it counts as delivered"
    watches.deliver("RolloutPool", {"type": "MODIFIED", "object": body("3", 2)})
    watches.deliver("RolloutPool", {"type": "DELETED", "object": body("4", 2)})
    assert len(added) == 3
    watches.deliver("RolloutPool", {"type": "ADDED", "object": body("5")})
    damaged = {**body("6"), "status": {"phase": "foreign"}}
    watches.deliver("RolloutPool", {"type": "MODIFIED", "object": damaged})
    assert len(added) == 5, "a status of somebody else is to be put right"
    del added[3:]
    node = {"metadata": {"name": "n", "uid": "n"}, "spec": {}, "status": {}}
    watches.deliver("Node", {"type": "ADDED", "object": node})
    assert added[-1] == "all"
    watches.deliver(
        "Lease", {"type": "MODIFIED", "object": {"metadata": {"uid": "l", "resourceVersion": "9"}}}
    )
    assert len(added) == 4


def test_kopf_is_a_shell() -> None:
    settings = make_kopf_settings(Settings(namespaces="a"))
    assert isinstance(settings.watching.server_timeout, int), "the API server refuses 300.0"
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    assert {f"{kind.plural}" for kind in (POD, *CHILDREN)} <= {
        str(key.any_name or key.plural) for key in settings.watching.label_selectors
    }
    delays = iter(Endless())
    assert [next(delays) for _ in range(8)][-3:] == [8.0, 8.0, 8.0]
    watches, _, _ = make_watches()
    registry = make_registry(watches, nodes=True, heartbeat=True)
    assert isinstance(registry, kopf.OperatorRegistry)
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()


def test_paths() -> None:
    assert path(POD, None) == "/api/v1/pods"
    assert path(CHILDREN[0], "rl", "x") == "/apis/apps/v1/namespaces/rl/statefulsets/x"


def test_rights_hold_what_routers_are_given() -> None:
    for resource in (labels.PLURAL, "endpointslices"):
        granted = next(rule for rule in NAMESPACED if rule.resources == (resource,))
        assert set(granted.verbs) >= {"get", "list", "watch"}
    for rule in (*NAMESPACED, *CLUSTER, *OPERATOR_NAMESPACE, *DISCOVERY):
        assert "*" not in (*rule.resources, *rule.verbs, rule.group)
        assert rule.to_wire()["apiGroups"] == [rule.group]


def test_moments() -> None:
    assert rfc3339(1_800_000_000.9) == "2027-01-15T08:00:00Z"
    assert micro_time(1_800_000_000.25) == "2027-01-15T08:00:00.250000Z"
    assert unix_seconds("2027-01-15T08:00:00Z") == 1_800_000_000.0
    assert unix_seconds("soon") is None


def test_events_are_not_repeated() -> None:
    memory, event = PoolMemory(), PoolEvent("Normal", "Ready", "words")
    assert memory.untold((event,), 1000.0) == (event,)
    assert memory.untold((event,), 1100.0) == ()
    assert memory.untold((event,), 1301.0) == (event,)
    memory.untold(tuple(PoolEvent("Normal", "R", str(number)) for number in range(200)), 0.0)
    assert len(memory.told) == 64


async def test_memories() -> None:
    memories, key = Memories(), PoolKey("rl", "pool")
    assert memories.of(key) is memories.of(key)
    assert [found for found, _ in memories.items()] == [key]
    memories.forget(key)
    assert memories.items() == ()
    await asyncio.sleep(0)
