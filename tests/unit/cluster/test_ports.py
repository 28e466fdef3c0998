"""Ports for servers that are stopped and started again where they were."""

import socket
from pathlib import Path

import pytest

from cluster import ports
from cluster.errors import ClusterError
from cluster.ports import HOST, LAST_PORT, free_ports


def test_ports_are_different_and_can_be_listened_on() -> None:
    found = free_ports(50)
    assert len(set(found)) == 50
    for port in found:
        socket.create_server((HOST, port)).close()


def test_no_outgoing_connection_can_have_one() -> None:
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert lowest_outgoing > LAST_PORT


def test_too_few_are_an_error_that_names_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LAST_PORT", ports.FIRST_PORT + 1)
    with pytest.raises(ClusterError, match="3 ports from 10000 to 10001 of"):
        free_ports(3)
