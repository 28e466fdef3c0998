"""The whole system as a user meets it: Helm, kubectl, a trainer's load on the router, and kills amid it."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import yaml

from cluster import Cluster
from demo import steps

WAIT_SECONDS = 90.0


@pytest.fixture(scope="session")
def pool_name(cluster: Cluster) -> str:
    """The chart installed and the example pool Ready."""
    cluster.load_images()
    steps.install_chart(cluster)
    steps.make_namespace(cluster)
    manifest = steps.example(cluster)
    steps.apply(cluster, manifest)
    name: str = manifest["metadata"]["name"]
    steps.wait_condition(cluster, name)
    return name


@pytest.fixture
def url(cluster: Cluster, pool_name: str) -> Iterator[str]:
    """The router's Service, lent to this machine; anew for each test, for a Service made anew moves."""
    with cluster.forward(steps.NAMESPACE, f"{pool_name}-router", 80) as base:
        yield base


def pods(cluster: Cluster, selector: str, namespace: str = steps.NAMESPACE) -> list[dict[str, Any]]:
    found = json.loads(cluster.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "json"))
    return list(found["items"])


def eventually(what: str, check: Callable[[], bool], timeout: float = WAIT_SECONDS) -> None:
    """Poll until `check` holds; fails with `what` was awaited."""
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}"
        time.sleep(0.3)


def replaced(cluster: Cluster, selector: str, namespace: str = steps.NAMESPACE) -> None:
    """Kill one pod with no grace, and wait until another one is Ready in its place."""
    before = pods(cluster, selector, namespace)
    victim = before[0]["metadata"]
    cluster.kubectl("delete", "pod", victim["name"], "-n", namespace, "--grace-period=0", "--force")

    def back() -> bool:
        now = [pod for pod in pods(cluster, selector, namespace) if pod["metadata"]["uid"] != victim["uid"]]
        return len(now) == len(before) and all(is_ready(pod) for pod in now)

    eventually(f"a new pod for {victim['name']}", back)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def chat(
    url: str, session: str, text: str, rollout_class: str = "rlhf", timeout: float = 30.0
) -> httpx.Response:
    """One turn of one session, as a trainer sends it."""
    model = yaml.safe_load(steps.EXAMPLE.read_text())["spec"]["model"]["name"]
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    headers = {"X-Session-ID": session, "X-Rollout-Class": rollout_class}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=timeout)


KILLED = {
    "a decode engine": ("rolloutpool.dev/role=decode", steps.NAMESPACE),
    "the operator": ("app.kubernetes.io/name=rolloutpool-operator", steps.SYSTEM),
    "the prefill engine": ("rolloutpool.dev/role=prefill", steps.NAMESPACE),
    "the router": ("rolloutpool.dev/component=router", steps.NAMESPACE),
}


def test_no_session_is_lost_to_kills(cluster: Cluster, pool_name: str, url: str) -> None:
    """Operator, router and engines die under load; every next turn is served, and the pool is Ready again."""
    command = steps.load_command(url, steps.EXAMPLE, seconds=60, more=("--json", "--window", "48"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as load:
        for selector, namespace in KILLED.values():
            replaced(cluster, selector, namespace)
            steps.wait_condition(cluster, pool_name, timeout=WAIT_SECONDS)
        assert load.poll() is None, "the load ended before the last kill"
        output, _ = load.communicate(timeout=180)
    report = json.loads(output)
    assert report["lost"] == 0
    assert all(item["finished"] > 0 for item in report["classes"])


def test_describe_tells_what_is_going_on(cluster: Cluster, pool_name: str, url: str) -> None:
    """Plan, caps, active, waiting and drift per class, with the numbers, in what kubectl prints."""
    assert chat(url, "describe-1", "hello").status_code == 200
    words = (
        *("Plan:", "Gpus Used:", "Binding Constraint:", "Admission:", "Cap:", "Active:", "Waiting:"),
        *("Drift Percentage Points:", "Footprint Blocks:", "Conditions:", "Endpoints:", "Events:"),
        *("rlvr", "rlhf", "agentic"),
    )

    def all_told() -> bool:
        text = steps.describe(cluster, pool_name)
        return all(word in text for word in words)

    eventually("kubectl describe tells all", all_told, 20)


CHILDREN = (
    "statefulset/{pool}-prefill-tp1",
    "service/{pool}-engines",
    "deployment/{pool}-router",
    "service/{pool}-router",
    "serviceaccount/{pool}-router",
    "role/{pool}-router",
    "rolebinding/{pool}-router",
)


@pytest.mark.parametrize("child", CHILDREN)
def test_a_deleted_child_comes_back(cluster: Cluster, pool_name: str, child: str) -> None:
    kind, _, name = child.format(pool=pool_name).partition("/")

    def uid() -> str:
        arguments = (
            "get",
            kind,
            name,
            "-n",
            steps.NAMESPACE,
            "--ignore-not-found",
            "-o",
            "jsonpath={.metadata.uid}",
        )
        return cluster.kubectl(*arguments)

    before = uid()
    cluster.kubectl("delete", kind, name, "-n", steps.NAMESPACE, "--timeout=30s")
    eventually(f"{child} is back", lambda: uid() not in ("", before))
    steps.wait_condition(cluster, pool_name, timeout=WAIT_SECONDS)


BAD_POOLS = [
    pytest.param(
        {"planning": {"profile": {"builtin": "no-such-profile"}}},
        "ProfileMissing",
        "no-such-profile",
        id="profile",
    ),
    pytest.param(
        {"planning": {"profile": {"builtin": "emulated-32b-h100"}}, "gpus": {"budget": 1}},
        "Infeasible",
        "2",
        id="budget",
    ),
    pytest.param(
        {"gpus": {"budget": 4, "product": "NVIDIA-NONE"}}, "Infeasible", "NVIDIA-NONE", id="no such GPU"
    ),
]


@pytest.mark.parametrize(("spec", "reason", "named"), BAD_POOLS)
def test_a_bad_pool_says_why_and_others_go_on(
    cluster: Cluster, pool_name: str, url: str, spec: dict[str, Any], reason: str, named: str
) -> None:
    manifest = steps.example(cluster, name="bad")
    manifest["spec"] = {**manifest["spec"], **spec}
    steps.apply(cluster, manifest)
    try:
        pool = steps.wait_condition(cluster, "bad", "PlanReady", status="False", reason=reason)
        assert named in steps.condition(pool, "PlanReady")["message"]
        assert chat(url, f"beside-{reason}", "hello").status_code == 200
        assert steps.condition(steps.get_pool(cluster, pool_name))["status"] == "True"
    finally:
        cluster.kubectl("delete", "rolloutpool", "bad", "-n", steps.NAMESPACE, "--timeout=30s")


def test_sessions_go_on_without_operator_and_api_server(cluster: Cluster, pool_name: str, url: str) -> None:
    """Fail static: the router keeps its caps and engines while everything that steers it is away."""
    assert chat(url, "static-old", "first turn").status_code == 200
    cluster.kubectl("scale", "deployment/rolloutpool", "-n", steps.SYSTEM, "--replicas=0")
    cluster.kill("apiserver")
    try:
        assert chat(url, "static-old", "second turn").status_code == 200
        assert chat(url, "static-new", "a new session").status_code == 200
    finally:
        cluster.start("apiserver")
        cluster.kubectl("scale", "deployment/rolloutpool", "-n", steps.SYSTEM, "--replicas=1")
    cluster.kubectl("rollout", "status", "deployment/rolloutpool", "-n", steps.SYSTEM, "--timeout=60s")
    steps.wait_condition(cluster, pool_name, timeout=WAIT_SECONDS)


def client_manifest(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """A pod that may try to reach others."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client", "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "client",
                    "image": cluster.image("python"),
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "3600"],
                    "securityContext": security,
                }
            ],
        },
    }


def reaches(cluster: Cluster, namespace: str, host: str, port: int) -> bool:
    code = f"import socket; socket.create_connection(('{host}', {port}), timeout=3); print('open')"
    command = ("exec", "client", "-n", namespace, "--", "python3", "-c")
    try:
        return "open" in cluster.kubectl(*command, code)
    except RuntimeError:
        return False


def test_network_policies(cluster: Cluster, pool_name: str, url: str) -> None:
    """Trainers of the pool's namespace reach the router and no engine; others reach neither."""
    if not cluster.enforces_network_policy:
        pytest.skip("this cluster does not enforce NetworkPolicy")
    cluster.kubectl("create", "namespace", "elsewhere")
    for namespace in (steps.NAMESPACE, "elsewhere"):
        steps.apply(cluster, client_manifest(cluster, namespace))
        cluster.kubectl("wait", "pod/client", "-n", namespace, "--for=condition=Ready", "--timeout=60s")
    router = f"{pool_name}-router.{steps.NAMESPACE}.svc"
    engine = steps.get_pool(cluster, pool_name)["status"]["endpoints"]["admin"][0]["url"]
    engine_host = engine.removeprefix("http://").partition(":")[0]
    eventually("a trainer reaches the router", lambda: reaches(cluster, steps.NAMESPACE, router, 80), 20)
    assert not reaches(cluster, steps.NAMESPACE, engine_host, 8000)
    assert not reaches(cluster, "elsewhere", router, 80)
    assert not reaches(cluster, "elsewhere", engine_host, 8000)


def test_uninstall_leaves_pools_running(cluster: Cluster, pool_name: str, url: str) -> None:
    """Helm uninstall ends the operator alone; the CRD and the pool stay, and a new install takes over."""
    before = {pod["metadata"]["uid"] for pod in pods(cluster, f"rolloutpool.dev/pool={pool_name}")}
    cluster.helm("uninstall", "rolloutpool", "-n", steps.SYSTEM, "--wait")
    assert chat(url, "uninstalled", "hello").status_code == 200
    steps.install_chart(cluster)
    steps.wait_condition(cluster, pool_name, timeout=WAIT_SECONDS)
    assert {pod["metadata"]["uid"] for pod in pods(cluster, f"rolloutpool.dev/pool={pool_name}")} == before


def test_deleting_a_pool_leaves_nothing(cluster: Cluster, pool_name: str) -> None:
    """Owner references clean up; nothing waits for the operator."""
    cluster.kubectl("delete", "rolloutpool", pool_name, "-n", steps.NAMESPACE, "--timeout=30s")
    selector = ("-n", steps.NAMESPACE, "-l", f"rolloutpool.dev/pool={pool_name}", "-o", "name")
    kinds = "statefulset,deployment,service,serviceaccount,role,rolebinding,networkpolicy,pod"
    eventually("all children are gone", lambda: cluster.kubectl("get", kinds, *selector) == "")
