"""Which backend is opened, and what is said where the builtin one cannot run."""

from typing import Any

import pytest

from cluster import ClusterError, missing, open_cluster
from cluster.doctor import Facts, reasons

FAULT = "needs Go 1.26"
CASES = [
    pytest.param({}, True, [], id="all there"),
    pytest.param({"linux": False, "root": False}, False, ["needs Linux"], id="not Linux, which says it all"),
    pytest.param({"root": False}, True, ["needs root"], id="no root"),
    pytest.param({"root": False, "absent": ("nsenter",)}, False, [], id="a bare control plane needs neither"),
    pytest.param({"absent": ("nsenter",)}, True, ["needs nsenter"], id="no nsenter"),
    pytest.param({"go_fault": FAULT}, True, [], id="no Go, but all is cached"),
    pytest.param({"go_fault": FAULT, "gaps": ("clients",)}, True, [], id="no Go, and nothing to build"),
    pytest.param({"go_fault": FAULT, "gaps": ("kubernetes",)}, False, [FAULT], id="no Go to build with"),
    pytest.param({"gaps": ("debian",), "apt": False}, True, ["needs apt-get"], id="no apt"),
    pytest.param({"gaps": ("clients",), "pip": False}, True, ["needs pip"], id="no pip"),
    pytest.param(
        {"hidden": ("/var/lib/ci",)}, True, ["cannot run from /var/lib/ci"], id="in a hidden folder"
    ),
    pytest.param(
        {"root": False, "gaps": ("debian",), "apt": False},
        True,
        ["needs root", "needs apt-get"],
        id="several",
    ),
]


@pytest.mark.parametrize(("facts", "node", "expected"), CASES)
def test_reasons(facts: dict[str, Any], node: bool, expected: list[str]) -> None:
    found = reasons(Facts(**facts), node=node)
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))


def test_missing_says_one_line_each() -> None:
    assert all(line and "\n" not in line for line in missing())


def test_unknown_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2E_CLUSTER", "minikube")
    with pytest.raises(ClusterError, match="expected builtin, kind or current"), open_cluster():
        pass


def test_current_needs_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2E_CLUSTER", "current")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(ClusterError, match="set KUBECONFIG"), open_cluster():
        pass
