"""How packets get to the NetworkPolicy enforcer on kernels that differ."""

from collections.abc import Sequence

import pytest

from cluster.errors import ClusterError
from cluster.policy import iptables_rules, queue_packets


class Kernel:
    """Runs commands of the tools that it supports; the others fail."""

    def __init__(self, *tools: str) -> None:
        self.tools, self.ran = tools, list[Sequence[str]]()

    def run(self, argv: Sequence[str]) -> str:
        if argv[0] not in self.tools:
            raise ClusterError(f"{argv[0]}: no such file or directory")
        self.ran.append(argv)
        return ""


@pytest.mark.parametrize(
    ("tools", "enforced", "used"),
    [
        pytest.param(("iptables-legacy", "nft"), True, {"iptables-legacy"}, id="iptables is preferred"),
        pytest.param(("nft",), True, {"nft"}, id="nftables"),
        pytest.param((), False, set(), id="neither"),
    ],
)
def test_what_the_kernel_offers_is_used(tools: tuple[str, ...], enforced: bool, used: set[str]) -> None:
    kernel = Kernel(*tools)
    assert queue_packets(kernel.run) is enforced
    assert {argv[0] for argv in kernel.ran} == used


def test_the_probe_leaves_no_table() -> None:
    kernel = Kernel("nft")
    queue_packets(kernel.run)
    assert kernel.ran[-1][1:3] == ["delete", "table"]


def test_the_node_itself_is_never_queued_and_answers_always_pass() -> None:
    chains: dict[str, list[list[str]]] = {}
    for rule in iptables_rules():
        chains.setdefault(rule[3], []).append(rule[4:])
    for rules in chains.values():
        queued = [index for index, rule in enumerate(rules) if "NFQUEUE" in rule]
        accepted = [index for index, rule in enumerate(rules) if "ACCEPT" in rule]
        assert max(accepted) < min(queued)
