"""Facts from raw Kubernetes objects."""

from typing import Any

import pytest

from rolloutpool_api import labels
from rolloutpool_api.planning import Role
from rolloutpool_operator.core.cluster_facts import (
    child_facts,
    controlled_by,
    engine_facts,
    holds_devices,
    is_ready,
    node_facts,
    pod_url,
    requested,
    router_facts,
    trouble,
)
from rolloutpool_operator.core.observed import PoolKey

KEY = PoolKey("rl", "pool")
GPU = "nvidia.com/gpu"


def node(name: str, gpus: int, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {labels.GPU_PRODUCT: "H100"}},
        "spec": spec,
        "status": {"allocatable": {GPU: str(gpus)}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name: str = "p", gpus: int = 0, node_name: str = "n1", **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "other"} | meta,
        "spec": {"nodeName": node_name, "containers": [{"resources": {"limits": {GPU: str(gpus)}}}]},
        "status": {"phase": "Running"},
    }


OWN: dict[str, Any] = {"namespace": "rl", "labels": {labels.POOL: "pool", labels.COMPONENT: labels.ENGINE}}


def test_free_gpus_leave_out_the_pools_own_engines() -> None:
    pods = [pod(gpus=3), pod(gpus=2, **OWN), pod(gpus=1, node_name="n2")]
    first, second = node_facts([node("n2", 4), node("n1", 8)], pods, resource=GPU, pool=KEY)
    assert (first.name, first.gpus_free, first.gpus_own, first.product) == ("n1", 5, 2, "H100")
    assert (second.name, second.gpus_free) == ("n2", 3)


def test_finished_and_foreign_pods() -> None:
    done = pod(gpus=4) | {"status": {"phase": "Succeeded"}}
    same_name_elsewhere = pod(gpus=2, namespace="x", labels=OWN["labels"])
    (facts,) = node_facts([node("n1", 8)], [done, same_name_elsewhere], resource=GPU, pool=KEY)
    assert (facts.gpus_free, facts.gpus_own) == (6, 0)


def test_cordoned_and_sick_nodes_are_not_schedulable() -> None:
    sick = node("b", 1)
    sick["status"]["conditions"][0]["status"] = "False"
    found = node_facts([node("a", 1, unschedulable=True), sick, node("c", 1)], [], resource=GPU, pool=KEY)
    assert [facts.schedulable for facts in found] == [False, False, True]


def test_pods_that_hold_no_device_need_not_be_kept() -> None:
    assert holds_devices(pod(gpus=1))
    assert not holds_devices({"spec": {"containers": [{"resources": {"limits": {"cpu": "1"}}}, {}]}})


def test_init_containers_and_containers_do_not_add_up() -> None:
    body = pod(gpus=2)
    body["spec"]["initContainers"] = [{"resources": {"limits": {GPU: "3"}}}]
    assert requested(body, GPU) == 3


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}, **more}]}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, ("", ""), id="nothing known"),
        pytest.param(waiting("ContainerCreating"), ("", ""), id="just starting"),
        pytest.param(
            waiting("ImagePullBackOff", "no such image"), ("ImagePullBackOff", "no such image"), id="image"
        ),
        pytest.param(
            waiting("ErrImagePull", "denied"), ("ImagePullBackOff", "denied"), id="one word for both"
        ),
        pytest.param(
            waiting(
                "CrashLoopBackOff",
                "back-off",
                lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            ),
            ("CrashLoopBackOff", "back-off; last exit: OOMKilled, code 137"),
            id="crash loop says why",
        ),
        pytest.param(
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: Insufficient gpu"}
                ]
            },
            ("Unschedulable", "0/3 nodes: Insufficient gpu"),
            id="unschedulable",
        ),
        pytest.param(
            {
                "containerStatuses": [
                    {"ready": False, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1}}}
                ]
            },
            ("Restarted", "the container was restarted; last exit: unknown, code 1"),
            id="restarted and not yet ready",
        ),
    ],
)
def test_trouble(status: dict[str, Any], expected: tuple[str, str]) -> None:
    assert trouble({"metadata": {}, "status": status}) == expected


def test_a_pod_that_goes_is_not_ready() -> None:
    body = {
        "metadata": {"deletionTimestamp": "x"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert not is_ready(body)
    assert trouble(body)[0] == "Terminating"


def stateful_set(name: str, replicas: int, role: str = "decode", **meta: Any) -> Any:
    group = name.removeprefix("pool-")
    found = {labels.GROUP_NAME: group, labels.ROLE: role}
    body = {"metadata": {"name": name, "labels": found} | meta, "spec": {"replicas": replicas}}
    return child_facts("apps/v1", "StatefulSet", body)


def test_engines_are_listed_before_their_pods_exist() -> None:
    there = {
        "metadata": {"name": "pool-decode-tp1-1", "labels": {labels.REVISION: "r1"}},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    found = engine_facts(KEY, [stateful_set("pool-decode-tp1", 2)], [there])
    assert [(e.name, e.ready, e.revision, e.reason) for e in found] == [
        ("pool-decode-tp1-0", False, "", "PodMissing"),
        ("pool-decode-tp1-1", True, "r1", ""),
    ]
    assert found[1].role is Role.DECODE
    assert found[1].url == "http://pool-decode-tp1-1.pool-engines.rl.svc:8000"
    assert found[1].scrape_url == "http://10.0.0.1:8000"


def test_an_engine_whose_pod_goes_is_draining() -> None:
    pods = [{"metadata": {"name": "pool-decode-tp1-0", "deletionTimestamp": "x"}}]
    found = engine_facts(KEY, [stateful_set("pool-decode-tp1", 2)], pods)
    assert [(engine.name, engine.draining) for engine in found] == [
        ("pool-decode-tp1-0", True),
        ("pool-decode-tp1-1", False),
    ]


def test_sets_that_go_have_no_engines() -> None:
    going = stateful_set("pool-decode-tp1", 2, deletionTimestamp="x")
    assert engine_facts(KEY, [going, stateful_set("pool-odd", 1, role="odd")], []) == ()


def test_routers_count_until_they_ended() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    pods: list[dict[str, Any]] = [
        {"metadata": {"name": "going", "deletionTimestamp": "x"}, "status": {"conditions": ready}},
        {"metadata": {"name": "gone"}, "status": {"phase": "Failed"}},
        {"metadata": {"name": "here"}, "status": {"podIP": "10.0.0.2", "conditions": ready}},
    ]
    assert [(router.name, router.url, router.ready) for router in router_facts(pods)] == [
        ("going", "", False),
        ("here", "http://10.0.0.2:8080", True),
    ]


@pytest.mark.parametrize(
    ("address", "url"), [("10.0.0.1", "http://10.0.0.1:80"), ("fd00::1", "http://[fd00::1]:80"), ("", "")]
)
def test_pod_url(address: str, url: str) -> None:
    assert pod_url({"status": {"podIP": address}}, 80) == url


def test_controller() -> None:
    owners = [{"uid": "1", "controller": False}, {"uid": "2", "controller": True}]
    body = {"metadata": {"ownerReferences": owners}}
    assert (controlled_by(body, "1"), controlled_by(body, "2"), controlled_by({"metadata": {}}, "2")) == (
        False,
        True,
        False,
    )
