"""NetworkPolicy needs packets queued to user space; which of two ways the kernel offers is found out here."""

from collections.abc import Callable, Sequence

from cluster.config import POD_CIDR, QUEUE
from cluster.errors import ClusterError

Run = Callable[[Sequence[str]], str]
"""Runs a command in the cell; raises ClusterError where it fails."""


def queue_packets(run: Run) -> bool:
    """Have the pods' packets queued for the enforcer; False where the kernel cannot.

    By iptables (CONFIG_NETFILTER_XT_TARGET_NFQUEUE), with which also what pods send to this node is judged;
    else by nftables rules that the enforcer adds by itself and that need CONFIG_NFT_QUEUE.
    """
    return _works(run, [["iptables-legacy", *rule] for rule in iptables_rules()]) or _works(run, _nft_probe())


def _works(run: Run, commands: Sequence[Sequence[str]]) -> bool:
    try:
        for command in commands:
            run(command)
    except ClusterError:
        return False
    return True


def _nft_probe() -> list[list[str]]:
    chain = "{ type filter hook output priority 0; ip daddr 192.0.2.1 queue num 1 ; }"
    table = f"table inet rolloutpool_probe {{ chain probe {chain} }}"
    return [["nft", table], ["nft", "delete", "table", "inet", "rolloutpool_probe"]]


def iptables_rules() -> list[list[str]]:
    """The enforcer's nftables rules in iptables' words, and the same for what pods send to this node."""
    queue = ["-j", "NFQUEUE", "--queue-num", str(QUEUE)]
    rules = [
        # Probes of the kubelet, and clients that reach the pods through the relay, which run as root.
        ["POSTROUTING", "-m", "owner", "--uid-owner", "0", "-j", "ACCEPT"],
        ["POSTROUTING", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"],
        ["POSTROUTING", "-s", POD_CIDR, *queue],
        ["POSTROUTING", "-d", POD_CIDR, *queue],
        ["INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"],
        ["INPUT", "-s", POD_CIDR, *queue],
    ]
    return [["-t", "mangle", "-A", *rule] for rule in rules]
