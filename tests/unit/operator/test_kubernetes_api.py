"""Requests to the API server, and the platform on top of them, over real sockets to a small server."""

import json
from collections.abc import AsyncIterator
from typing import Any

import kubernetes.client
import pytest
from aiohttp import web

from rolloutpool_operator.cluster_gpus import ClusterGpus
from rolloutpool_operator.core.events import PoolEvent
from rolloutpool_operator.core.liveness import WatchAudit
from rolloutpool_operator.core.manifests.context import Install
from rolloutpool_operator.core.observed import PoolKey
from rolloutpool_operator.core.watched import CHILDREN, POD, POOL
from rolloutpool_operator.health import start_server
from rolloutpool_operator.heartbeat import Heartbeat
from rolloutpool_operator.kubernetes_api import ApiError, KubernetesApi
from rolloutpool_operator.kubernetes_platform import KubernetesPlatform
from rolloutpool_operator.platform import PlatformError, PoolGone, Report, StatusConflict
from rolloutpool_operator.testing import FakeClock
from rolloutpool_testkit.manifests import pool_manifest

KEY = PoolKey("rl", "pool")
POOL_PATH = "/apis/rolloutpool.dev/v1alpha1/namespaces/rl/rolloutpools/pool"
SETS = CHILDREN[0]


class ApiServer:
    """Answers GET from `objects` and `lists`, takes everything else, and remembers all requests."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.refuse: dict[str, int] = {}
        """Status by path."""
        self.requests: list[tuple[str, str, dict[str, str], Any, str]] = []

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        query = dict(request.query)
        self.requests.append(
            (request.method, request.path, query, json.loads(text or "null"), request.content_type)
        )
        if status := self.refuse.get(request.path):
            return web.json_response({"message": f"refused with {status}"}, status=status)
        if request.method != "GET":
            return web.json_response({"metadata": {"uid": "u", "resourceVersion": "8"}})
        if request.path in self.objects:
            return web.json_response(self.objects[request.path])
        if request.path.rsplit("/", 1)[1] in ("pool", "mine", "none", "pool-router", "pool-engines"):
            return web.json_response({"message": "not found"}, status=404)
        return web.json_response(self.page(request.path, query))

    def page(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        """Pages of two, whatever was asked for."""
        start = int(query.get("continue") or 0)
        items = self.lists.get(path, [])
        more = str(start + 2) if len(items) > start + 2 else ""
        return {"items": items[start : start + 2], "metadata": {"continue": more}}

    def made(self, method: str) -> list[tuple[str, str, dict[str, str], Any, str]]:
        return [item for item in self.requests if item[0] == method]


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[KubernetesApi]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = await start_server(app, host="127.0.0.1", port=0)
    configuration = kubernetes.client.Configuration()
    configuration.host = "http://{}:{}".format(*runner.addresses[0][:2])
    client = kubernetes.client.ApiClient(configuration)
    found = KubernetesApi(client)
    yield found
    found.close()
    client.rest_client.pool_manager.clear()
    await runner.cleanup()


@pytest.fixture
def platform(api: KubernetesApi) -> KubernetesPlatform:
    gpus = ClusterGpus(api, monotonic=lambda: 0.0, watch_nodes=True)
    return KubernetesPlatform(api, install=Install(), gpus=gpus, clock=FakeClock())


async def test_get_and_lists(server: ApiServer, api: KubernetesApi) -> None:
    server.objects[POOL_PATH] = {"kind": "RolloutPool"}
    server.lists["/api/v1/pods"] = [{"n": number} for number in range(5)]
    assert await api.get(POOL, "rl", "pool") == {"kind": "RolloutPool"}
    assert await api.get(POOL, "rl", "none") is None
    assert await api.objects(POD, None, selector="a=b") == [{"n": number} for number in range(5)]
    asked = [query for _, path, query, _, _ in server.requests if path == "/api/v1/pods"]
    assert [query.get("continue") for query in asked] == [None, "2", "4"]
    assert {query["labelSelector"] for query in asked} == {"a=b"}


async def test_apply_is_server_side_by_one_manager(server: ApiServer, api: KubernetesApi) -> None:
    body = {"metadata": {"name": "x", "namespace": "rl"}}
    await api.apply(SETS, body)
    _, path, query, sent, content_type = server.requests[0]
    assert path == "/apis/apps/v1/namespaces/rl/statefulsets/x"
    assert query == {"fieldManager": "rolloutpool-operator", "force": "true"}
    assert (sent, content_type) == (body, "application/apply-patch+yaml")


async def test_delete_spares_another_object_of_the_name(server: ApiServer, api: KubernetesApi) -> None:
    await api.delete(SETS, "rl", "x", "uid-1")
    assert server.requests[0][3]["preconditions"] == {"uid": "uid-1"}
    server.refuse["/apis/apps/v1/namespaces/rl/statefulsets/x"] = 409
    await api.delete(SETS, "rl", "x", "uid-1")
    server.refuse["/apis/apps/v1/namespaces/rl/statefulsets/x"] = 403
    with pytest.raises(ApiError, match="refused with 403"):
        await api.delete(SETS, "rl", "x", "uid-1")


async def test_a_server_that_does_not_answer(server: ApiServer) -> None:
    answers: list[bool] = []
    configuration = kubernetes.client.Configuration()
    configuration.host = "http://127.0.0.1:9"
    client = kubernetes.client.ApiClient(configuration)
    api = KubernetesApi(client, on_answer=answers.append)
    with pytest.raises(ApiError, match="does not answer"):
        await api.get(POOL, "rl", "pool")
    assert answers == [False]
    api.close()


def report(events: tuple[PoolEvent, ...] = ()) -> Report:
    return Report(key=KEY, uid="u", resource_version="7", patch={"phase": "Ready"}, events=events)


async def test_status_and_events(server: ApiServer, platform: KubernetesPlatform) -> None:
    assert await platform.report(report((PoolEvent("Warning", "Odd", "words"),))) == "8"
    patch, event = server.requests
    assert patch[1] == f"{POOL_PATH}/status"
    assert patch[3] == {"metadata": {"resourceVersion": "7"}, "status": {"phase": "Ready"}}
    assert (event[1], event[3]["reason"], event[3]["involvedObject"]["uid"]) == (
        "/api/v1/namespaces/rl/events",
        "Odd",
        "u",
    )


async def test_events_that_cannot_be_posted_are_no_failure(
    server: ApiServer, platform: KubernetesPlatform
) -> None:
    server.refuse["/api/v1/namespaces/rl/events"] = 403
    assert await platform.report(report((PoolEvent("Normal", "Odd", "words"),))) == "8"


@pytest.mark.parametrize(("status", "error"), [(409, StatusConflict), (404, PoolGone), (500, PlatformError)])
async def test_status_that_cannot_be_written(
    server: ApiServer, platform: KubernetesPlatform, status: int, error: type[Exception]
) -> None:
    server.refuse[f"{POOL_PATH}/status"] = status
    with pytest.raises(error):
        await platform.report(report())


def stored(**changes: Any) -> dict[str, Any]:
    body = pool_manifest("pool", **changes)
    body["metadata"] |= {"namespace": "rl", "uid": "u", "resourceVersion": "1", "generation": 1}
    return body


def owned(name: str, uid: str) -> dict[str, Any]:
    owners = [{"uid": uid, "controller": True}]
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1", "ownerReferences": owners}}


async def test_gather_sees_own_children_only(server: ApiServer, platform: KubernetesPlatform) -> None:
    server.objects[POOL_PATH] = stored()
    server.lists["/api/v1/namespaces/rl/services"] = [owned("mine", "u"), owned("not-mine", "another")]
    found = await platform.gather(KEY)
    assert found is not None
    assert [(child.kind, child.name) for child in found.children] == [("Service", "mine")]
    assert found.children[0].body["apiVersion"] == "v1"
    assert found.router_url == "http://pool-router.rl.svc:80"
    assert (found.nodes, found.nodes_note) == ((), "")


async def test_gather_without_a_pool_or_an_api(server: ApiServer, platform: KubernetesPlatform) -> None:
    assert await platform.gather(KEY) is None
    server.refuse[POOL_PATH] = 500
    with pytest.raises(PlatformError, match="refused with 500"):
        await platform.gather(KEY)


GPU_NODE = {"metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}


def holder(gpus: str) -> dict[str, Any]:
    container = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
    return {"metadata": {"namespace": "rl"}, "spec": {"nodeName": "n", "containers": [container]}}


async def test_without_rights_on_all_pods_those_of_the_namespace_count(
    server: ApiServer, platform: KubernetesPlatform
) -> None:
    server.objects[POOL_PATH] = stored()
    server.lists["/api/v1/nodes"] = [GPU_NODE]
    server.lists["/api/v1/namespaces/rl/pods"] = []
    server.refuse["/api/v1/pods"] = 403
    found = await platform.gather(KEY)
    assert found is not None
    assert found.nodes is not None
    assert found.nodes[0].gpus_free == 8
    assert "only pods of namespace rl may be read" in found.nodes_note


async def test_without_rights_on_nodes_the_budget_counts(
    server: ApiServer, platform: KubernetesPlatform
) -> None:
    server.objects[POOL_PATH] = stored()
    server.refuse["/api/v1/nodes"] = 403
    found = await platform.gather(KEY)
    assert found is not None
    assert (found.nodes, found.nodes_note) == (None, "nodes may not be read: the budget is taken as free")


async def test_gpus_are_read_once_for_all_pools(server: ApiServer, api: KubernetesApi) -> None:
    now = [0.0]
    server.lists["/api/v1/nodes"] = [GPU_NODE]
    server.lists["/api/v1/pods"] = [holder("3")]
    gpus = ClusterGpus(api, monotonic=lambda: now[0], watch_nodes=True)
    for name in ("one", "two"):
        nodes, _ = await gpus.facts(PoolKey("rl", name), "nvidia.com/gpu")
        assert nodes is not None
        assert nodes[0].gpus_free == 5
    assert len(server.requests) == 2
    gpus.invalidate()
    await gpus.facts(KEY, "nvidia.com/gpu")
    now[0] = 100.0
    await gpus.facts(KEY, "nvidia.com/gpu")
    assert len(server.requests) == 6


PROFILE_PATH = "/api/v1/namespaces/rl/configmaps/mine"


@pytest.mark.parametrize(
    ("found", "status", "text", "error"),
    [
        pytest.param({"data": {"profile.yaml": "x"}}, None, "x", "", id="there"),
        pytest.param({"data": {}}, None, None, "has no key profile.yaml", id="no key"),
        pytest.param(None, None, None, "does not exist: create it", id="none"),
        pytest.param(None, 403, None, "may not be read", id="forbidden"),
    ],
)
async def test_profiles(
    server: ApiServer,
    platform: KubernetesPlatform,
    found: dict[str, Any] | None,
    status: int | None,
    text: str | None,
    error: str,
) -> None:
    server.objects[POOL_PATH] = stored(planning={"profile": {"configMapRef": {"name": "mine"}}})
    if found is not None:
        server.objects[PROFILE_PATH] = found
    if status:
        server.refuse[PROFILE_PATH] = status
    gathered = await platform.gather(KEY)
    assert gathered is not None
    assert gathered.profile.text == text
    assert error in gathered.profile.error


async def test_the_heartbeat_is_expected_back(server: ApiServer, api: KubernetesApi) -> None:
    audit = WatchAudit(limit_seconds=10.0)
    audit.api_answered(0.0)
    heartbeat = Heartbeat(
        api, audit, namespace="system", identity="me", period=3600, monotonic=lambda: 0.0, clock=FakeClock()
    )
    await heartbeat.renew()
    assert server.made("PATCH")[0][1] == "/apis/coordination.k8s.io/v1/namespaces/system/leases/me"
    assert "the watch of Lease is deaf" in audit.verdict(11.0)
    audit.delivered("Lease", "u", "8")
    assert audit.verdict(11.0) == ""
    server.refuse["/apis/coordination.k8s.io/v1/namespaces/system/leases/me"] = 500
    await heartbeat.renew()
