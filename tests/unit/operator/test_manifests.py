"""Manifests: golden files, and what must hold for every pool.

`UPDATE_GOLDEN=1 pytest tests/unit/operator/test_manifests.py` writes the golden files anew.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolloutpool_api import labels
from rolloutpool_api.planning import Role
from rolloutpool_api.status import PlanGroup
from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_operator.core.children import config_hash
from rolloutpool_operator.core.desired import build_children
from rolloutpool_operator.core.manifests.context import Install, context_of
from rolloutpool_testkit.manifests import pool_manifest

GOLDEN = Path(__file__).parents[2] / "golden" / "operator"
INSTALL = Install(
    router_image="registry.example/router:1",
    operator_namespace="rolloutpool-system",
    monitoring_namespace="monitoring",
)


def group(role: Role, replicas: int = 2, tensor: int = 1, pipeline: int = 1) -> PlanGroup:
    return PlanGroup(
        role=role,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        replicas=replicas,
        gpus_per_replica=tensor * pipeline,
    )


AGGREGATED = (group(Role.AGGREGATED),)
DISAGGREGATED = (group(Role.PREFILL, 1), group(Role.DECODE, 2, tensor=2))


def children(
    groups: tuple[PlanGroup, ...] = AGGREGATED, install: Install = INSTALL, **changes: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    manifest = pool_manifest("pool", **changes)
    manifest["metadata"] |= {"uid": "uid-1", "namespace": "rl"}
    built = build_children(context_of(parse_pool(manifest), install), groups)
    return {(child.kind, child.name): dict(child.body) for child in built}


def engine(found: dict[tuple[str, str], dict[str, Any]], name: str = "pool-aggregated-tp1") -> dict[str, Any]:
    template: dict[str, Any] = found["StatefulSet", name]["spec"]["template"]
    return template


@pytest.mark.parametrize(
    ("name", "groups", "changes"),
    [
        pytest.param("aggregated", AGGREGATED, {}, id="aggregated"),
        pytest.param(
            "disaggregated",
            DISAGGREGATED,
            {
                "model__source": "pvc://weights/llama",
                "model__maxModelLen": 32768,
                "gpus__product": "NVIDIA-H100-80GB-HBM3",
                "gpus__nodeSelector": {"pool": "rl"},
                "gpus__tolerations": [{"key": "dedicated", "operator": "Exists"}],
                "engine__extraArgs": ["--max-num-seqs=64"],
                "engine__env": [
                    {"name": "UCX_TLS", "value": "tcp"},
                    {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                "engine__modelCache": {"claimName": "cache"},
                "engine__tokenSecretRef": {"name": "hub"},
                "engine__resources": {"limits": {"memory": "64Gi"}},
                "engine__rl": {"enabled": True, "tokenSecretRef": {"name": "trainer", "key": "weights"}},
                "engine__podTemplate": {
                    "metadata": {"labels": {"team": "rl", labels.POOL: "stolen"}},
                    "spec": {"containers": [{"name": "engine", "env": [{"name": "EXTRA", "value": "1"}]}]},
                },
                "router__trainers": [{"namespaceSelector": {"matchLabels": {"team": "trainers"}}}],
                "router__service": {"port": 8000, "annotations": {"a": "b"}},
            },
            id="disaggregated with everything",
        ),
        pytest.param("router-only", (), {}, id="no plan yet"),
    ],
)
def test_golden(name: str, groups: tuple[PlanGroup, ...], changes: dict[str, Any]) -> None:
    text = yaml.safe_dump_all(children(groups, **changes).values(), sort_keys=False, width=110)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "UPDATE_GOLDEN=1 writes the file anew"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        pytest.param([], ["m", "judge", "actor"], id="names of the model"),
        pytest.param(["--max-loras=2", "--enable-lora"], ["m"], id="adapters"),
        pytest.param(["--enable_lora"], ["m"], id="adapters, written otherwise"),
    ],
)
def test_engines_serve_the_names_that_workloads_are_matched_by(
    arguments: list[str], names: list[str]
) -> None:
    """vLLM answers 404 to other names; of adapters it would never ask one whose name is its own."""
    workloads = [
        {"name": "a", "share": 0.5, "match": {"models": ["judge", "m"]}},
        {"name": "b", "share": 0.5, "match": {"models": ["judge", "actor"]}},
    ]
    found = engine(children(workloads=workloads, model__name="m", engine__extraArgs=arguments))
    args = found["spec"]["containers"][0]["args"]
    start = args.index("--served-model-name") + 1
    assert args[start : start + len(names) + 1] == [*names, "--host"]


def test_equal_pools_give_equal_bytes() -> None:
    assert yaml.safe_dump(list(children().values())) == yaml.safe_dump(list(children().values()))


@pytest.mark.parametrize(
    "groups", [AGGREGATED, DISAGGREGATED, ()], ids=["aggregated", "disaggregated", "none"]
)
def test_every_child_is_owned_labelled_and_sealed(groups: tuple[PlanGroup, ...]) -> None:
    for (kind, name), body in children(groups).items():
        owner = body["metadata"]["ownerReferences"][0]
        assert (owner["controller"], owner["uid"], owner["kind"]) == (True, "uid-1", "RolloutPool"), (
            kind,
            name,
        )
        assert body["metadata"]["labels"][labels.POOL] == "pool"
        assert body["metadata"]["namespace"] == "rl"
        assert len(config_hash(body)) == 16


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
def test_pods_keep_to_the_restricted_standard(kind: str) -> None:
    for (found, _), body in children(DISAGGREGATED).items():
        if found != kind:
            continue
        spec = body["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any("hostPath" in volume for volume in spec["volumes"])
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_engines_get_gpus_of_their_parallelism() -> None:
    found = children((group(Role.AGGREGATED, tensor=4, pipeline=2),), gpus__resourceName="amd.com/gpu")
    resources = engine(found, "pool-aggregated-tp4-pp2")["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"amd.com/gpu": "8"}, "limits": {"amd.com/gpu": "8"}}


def test_overlay_cannot_take_the_labels_that_select() -> None:
    overlay = {"metadata": {"labels": {labels.POOL: "stolen", "team": "rl"}}}
    found = engine(children(engine__podTemplate=overlay))["metadata"]["labels"]
    assert (found[labels.POOL], found["team"]) == ("pool", "rl")


def test_users_env_wins() -> None:
    env = engine(children(engine__env=[{"name": "PYTHONHASHSEED", "value": "7"}]))["spec"]["containers"][0][
        "env"
    ]
    assert [item for item in env if item["name"] == "PYTHONHASHSEED"] == [
        {"name": "PYTHONHASHSEED", "value": "7"}
    ]


def test_only_engines_that_exchange_kv_are_told_how() -> None:
    def arguments(name: str) -> list[str]:
        found: list[str] = engine(children((*AGGREGATED, *DISAGGREGATED)), name)["spec"]["containers"][0][
            "args"
        ]
        return found

    assert "--kv-transfer-config" not in arguments("pool-aggregated-tp1")
    assert "--kv-transfer-config" in arguments("pool-prefill-tp1")
    assert "--kv-transfer-config" in arguments("pool-decode-tp2")


def test_engines_share_one_revision_that_follows_the_engine() -> None:
    def revisions(**changes: Any) -> set[str]:
        found = children(DISAGGREGATED, **changes)
        return {
            engine(found, name)["metadata"]["labels"][labels.REVISION] for _, name in found if "-tp" in name
        }

    assert len(revisions()) == 1
    assert revisions() != revisions(engine__image="another")
    assert revisions() == revisions(router__image="another")
    assert revisions(engine__rl={"enabled": True}) == revisions(
        engine__rl={"enabled": True, "port": 9000, "maxPauseSeconds": 60}
    )


def test_probes_follow_the_spec() -> None:
    probes = {"startupSeconds": 100, "readinessPeriodSeconds": 3, "livenessFailureSeconds": 45}
    container = engine(children(engine__probes=probes))["spec"]["containers"][0]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 100
    assert container["readinessProbe"]["periodSeconds"] == 3
    assert container["livenessProbe"]["failureThreshold"] == 5


def test_router_may_read_its_own_pool_and_where_engines_are_only() -> None:
    assert children()["Role", "pool-router"]["rules"] == [
        {
            "apiGroups": ["rolloutpool.dev"],
            "resources": ["rolloutpools"],
            "resourceNames": ["pool"],
            "verbs": ["get", "list", "watch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        },
    ]


def test_one_router_has_no_disruption_budget_and_several_are_spread() -> None:
    one, three = children(), children(router__replicas=3)
    assert {kind for kind, _ in three} - {kind for kind, _ in one} == {"PodDisruptionBudget"}
    assert three["PodDisruptionBudget", "pool-router"]["spec"]["maxUnavailable"] == 1
    deployment = three["Deployment", "pool-router"]["spec"]
    assert (deployment["replicas"], deployment["minReadySeconds"]) == (3, 10)
    constraint = deployment["template"]["spec"]["topologySpreadConstraints"][0]
    assert constraint["labelSelector"]["matchLabels"] == deployment["selector"]["matchLabels"]


def test_network_policies_can_be_left_out() -> None:
    assert not [
        kind for kind, _ in children(install=Install(network_policies=False)) if kind == "NetworkPolicy"
    ]


@pytest.mark.parametrize(
    ("changes", "peers"),
    [
        pytest.param({}, [{"podSelector": {}}], id="the namespace by default"),
        pytest.param(
            {"router__trainers": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
            [
                {"ipBlock": {"cidr": "10.0.0.0/8"}},
                {"podSelector": {"matchLabels": labels.selector("pool", labels.ROUTER)}},
            ],
            id="declared, and the other routers",
        ),
        pytest.param({"router__service": {"type": "LoadBalancer"}}, None, id="exposed: anybody"),
    ],
)
def test_who_reaches_the_router(changes: dict[str, Any], peers: list[Any] | None) -> None:
    rule = children(install=Install(), **changes)["NetworkPolicy", "pool-router"]["spec"]["ingress"][0]
    assert rule.get("from") == peers


@pytest.mark.parametrize(
    ("changes", "peers"),
    [
        pytest.param({}, [{"podSelector": {}}], id="none declared: the namespace"),
        pytest.param(
            {"router__service": {"type": "LoadBalancer"}}, [{"podSelector": {}}], id="exposed: not this port"
        ),
        pytest.param(
            {"router__trainers": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
            [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            id="declared",
        ),
    ],
)
def test_who_synchronises_weights(changes: dict[str, Any], peers: list[Any]) -> None:
    found = children(engine__rl={"enabled": True, "tokenSecretRef": {"name": "t"}}, **changes)
    *_, rule = found["NetworkPolicy", "pool-router"]["spec"]["ingress"]
    assert rule == {"from": peers, "ports": [{"port": 8001, "protocol": "TCP"}]}
    service = found["Service", "pool-router-weights"]["spec"]
    assert (service["type"], service["ports"][0]["port"]) == ("ClusterIP", 8001)
    pod = found["Deployment", "pool-router"]["spec"]["template"]["spec"]
    assert {"name": "weights", "containerPort": 8001, "protocol": "TCP"} in pod["containers"][0]["ports"]
    assert pod["containers"][0]["args"][-4:] == [
        *("--weights-port", "8001"),
        *("--weights-token-file", "/var/run/rolloutpool/weights/token"),
    ]


def test_without_weight_sync_nothing_of_it_is_there() -> None:
    found = children()
    assert ("Service", "pool-router-weights") not in found
    assert "weights" not in yaml.safe_dump(found["Deployment", "pool-router"])
    assert len(found["NetworkPolicy", "pool-router"]["spec"]["ingress"]) == 1


def test_trainers_reach_engines_only_for_weight_sync() -> None:
    trainers = [{"ipBlock": {"cidr": "10.0.0.0/8"}}]

    def peers(**changes: Any) -> list[Any]:
        found = children(install=Install(), router__trainers=trainers, **changes)
        policy: list[Any] = found["NetworkPolicy", "pool-engines"]["spec"]["ingress"][0]["from"]
        return policy

    assert trainers[0] not in peers()
    assert trainers[0] in peers(engine__rl={"enabled": True})


def test_kv_events_have_ports_that_only_routers_reach() -> None:
    found = children(engine__kvEvents={"enabled": True, "port": 7001, "replayPort": 7002})
    container = engine(found)["spec"]["containers"][0]
    config = json.loads(container["args"][container["args"].index("--kv-events-config") + 1])
    assert (config["endpoint"], config["replay_endpoint"]) == ("tcp://*:7001", "tcp://*:7002")
    assert config["enable_kv_cache_events"] is True
    named = [("http", 8000), ("kv-events", 7001), ("kv-replay", 7002)]
    assert [(port["name"], port["containerPort"]) for port in container["ports"]] == named
    service = found["Service", "pool-engines"]["spec"]
    assert [(port["name"], port["port"]) for port in service["ports"]] == named
    rules = found["NetworkPolicy", "pool-engines"]["spec"]["ingress"]
    (own,) = (rule for rule in rules if {"port": 7001, "protocol": "TCP"} in rule.get("ports", ()))
    assert own["from"] == [{"podSelector": {"matchLabels": labels.selector("pool", labels.ROUTER)}}]
    assert [port["port"] for port in own["ports"]] == [7001, 7002]


def test_without_kv_events_nothing_of_them_is_there() -> None:
    found = children(engine__kvEvents={"port": 7001})
    assert "kv-events" not in yaml.safe_dump(list(found.values()))
    assert found == children()


def test_longest_names_fit_into_labels() -> None:
    name = "p" * labels.MAX_POOL_NAME
    set_name = labels.engine_set_name(name, labels.group_name("aggregated", 64, 64))
    assert len(set_name) + len("-0123456789") <= 63


def test_a_child_names_its_content() -> None:
    one, other = children(), children(engine__image="another")
    changed = {key for key in one if config_hash(one[key]) != config_hash(other[key])}
    assert changed == {("StatefulSet", "pool-aggregated-tp1")}
