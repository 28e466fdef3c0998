"""The chart: lints, renders what it should, refuses bad values, and grants no more than the operator uses."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import yaml

from cluster import Cluster, ClusterError
from demo.steps import CHART
from rolloutpool_operator.core import rbac
from rolloutpool_operator.settings import read_settings

Rendered = dict[tuple[str, str], dict[str, Any]]
"""Objects by kind and name (a Role of several namespaces: the last)."""


def render(control_plane: Cluster, *settings: str) -> Rendered:
    flags = [flag for value in settings for flag in ("--set", value)]
    text = control_plane.helm("template", "rolloutpool", str(CHART), "--namespace", "system", *flags)
    objects = [body for body in yaml.safe_load_all(text) if body]
    return {(body["kind"], body["metadata"]["name"]): body for body in objects}


def test_lint(control_plane: Cluster) -> None:
    assert "0 chart(s) failed" in control_plane.helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        pytest.param("operator.logLevel=loud", "logLevel", id="unknown log level"),
        pytest.param("watchNamespaces={Not_A_Name}", "watchNamespaces", id="no namespace name"),
        pytest.param("operater.logLevel=info", "operater", id="misspelt value"),
        pytest.param("serviceAccount.create=false", "serviceAccount.name is needed", id="no service account"),
    ],
)
def test_bad_values(control_plane: Cluster, setting: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        render(control_plane, setting)
    assert message in str(caught.value)


def test_the_crd_stays_when_the_chart_goes(control_plane: Cluster) -> None:
    crd = render(control_plane)["CustomResourceDefinition", "rolloutpools.rolloutpool.dev"]
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert ("CustomResourceDefinition", "rolloutpools.rolloutpool.dev") not in render(
        control_plane, "crds.install=false"
    )


def grants(rules: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, str]]:
    """Rules as (group, resource, verb)."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(*rules: rbac.Rule) -> set[tuple[str, str, str]]:
    return grants(rule.to_wire() for rule in rules)


def test_it_grants_exactly_what_the_operator_uses(control_plane: Cluster) -> None:
    everywhere = render(control_plane)
    expected = used(*rbac.CLUSTER, *rbac.DISCOVERY, *rbac.NAMESPACED)
    assert grants(everywhere["ClusterRole", "system-rolloutpool"]["rules"]) == expected
    assert grants(everywhere["Role", "rolloutpool-heartbeat"]["rules"]) == used(*rbac.OPERATOR_NAMESPACE)


def test_named_namespaces_get_roles_and_nothing_cluster_wide_but_nodes(control_plane: Cluster) -> None:
    some = render(control_plane, "watchNamespaces={a,b}")
    assert ("Role", "rolloutpool") not in render(control_plane)
    assert grants(some["ClusterRole", "system-rolloutpool"]["rules"]) == used(*rbac.CLUSTER)
    assert grants(some["Role", "rolloutpool"]["rules"]) == used(*rbac.NAMESPACED)
    assert some["Role", "rolloutpool-heartbeat"]["metadata"]["namespace"] == "a"


def test_the_environment_is_what_the_operator_reads(control_plane: Cluster) -> None:
    (container,) = render(control_plane)["Deployment", "rolloutpool"]["spec"]["template"]["spec"][
        "containers"
    ]
    values = {entry["name"]: entry.get("value", "x") for entry in container["env"]}
    settings = read_settings(values)
    assert settings.router_image == "ghcr.io/rolloutpool/router:0.1.0"
    assert settings.network_policies


def test_the_operator_pod_is_restricted(control_plane: Cluster) -> None:
    spec = render(control_plane)["Deployment", "rolloutpool"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
