"""Which replicas fit on which nodes: replicas never span nodes.

If the replica sizes divide one another (1, 2, 4, 8: a *chain*), replicas fit on nodes if and only if for
every size s

    sum over replicas of size >= s of (size / s)  <=  sum over nodes of floor(free / s).

Needed: a node has room for floor(free / s) pieces of size s. Enough: first-fit decreasing places larger
replicas first; it fails to place one of size s only when every node's remainder is below s, so all
floor(free / s) pieces are taken by sizes that are multiples of s, which contradicts the sum.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from .inputs import NodeShape


def is_chain(sizes: Iterable[int]) -> bool:
    """Whether every size divides the next larger one."""
    return all(larger % smaller == 0 for smaller, larger in pairwise(sorted(set(sizes))))


def room(shapes: Iterable[NodeShape], size: int) -> int:
    """How many replicas of `size` GPUs the nodes hold if they hold nothing else."""
    return sum(shape.count * (shape.free_gpus // size) for shape in shapes)


def pack(shapes: Iterable[NodeShape], replicas: Mapping[int, int]) -> dict[int, int]:
    """First-fit decreasing: returns replicas by size that found no node (empty: all fit).

    `replicas` maps size in GPUs to a count. Exact for chains; for other sizes it may fail to pack what an
    exhaustive search could, but what it packs does fit. Nodes with equal room are kept as one number.
    """
    nodes: dict[int, int] = {}
    for shape in shapes:
        nodes[shape.free_gpus] = nodes.get(shape.free_gpus, 0) + shape.count
    left: dict[int, int] = {}
    for size in sorted(replicas, reverse=True):
        missing = _place(nodes, size, replicas[size])
        if missing:
            left[size] = missing
    return left


def _place(nodes: dict[int, int], size: int, count: int) -> int:
    """Put `count` replicas on the nodes (free GPUs -> nodes), tightest fit first; return what is left."""
    while count > 0:
        free = min((free for free, number in nodes.items() if number > 0 and free >= size), default=None)
        if free is None:
            return count
        per_node = free // size
        full = min(count // per_node, nodes[free])
        taken, used = (full, per_node * size) if full else (1, count * size)
        nodes[free] -= taken
        nodes[free - used] = nodes.get(free - used, 0) + taken
        count -= taken * (used // size)
    return 0
