"""A node without a kubelet looks as the scheduler expects a healthy one."""

from cluster.base import GPU
from cluster.nodes import node_status


def test_capacity_and_allocatable_agree() -> None:
    status = node_status(gpus=4)
    assert status["capacity"] == status["allocatable"]
    assert status["capacity"][GPU] == "4"


def test_it_is_ready() -> None:
    (condition,) = node_status(gpus=0)["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert condition["lastHeartbeatTime"].endswith("Z")
