import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutpool_planner.packing import is_chain, pack, room
from rolloutpool_planner.testing import nodes


def exhaustive(free: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether the replicas fit, by trying every node for each of them."""
    if not sizes:
        return True
    return any(
        exhaustive((*free[:i], node - sizes[0], *free[i + 1 :]), sizes[1:])
        for i, node in enumerate(free)
        if node >= sizes[0]
    )


@pytest.mark.parametrize(
    ("free", "replicas", "left"),
    [
        pytest.param((8,), {8: 1}, {}, id="one whole node"),
        pytest.param((8,), {8: 1, 1: 1}, {1: 1}, id="nothing beside a whole node"),
        pytest.param((3, 3), {4: 1}, {4: 1}, id="free GPUs of two nodes do not add up"),
        pytest.param((3, 3), {2: 2, 1: 2}, {}, id="odd remainders are used"),
        pytest.param((8, 4), {4: 3}, {}, id="larger node split"),
        pytest.param((4, 8), {8: 1, 4: 1}, {}, id="large replicas first"),
        pytest.param((8, 8), {3: 5}, {3: 1}, id="not a power of two"),
        pytest.param((), {1: 1}, {1: 1}, id="no nodes"),
        pytest.param((8,) * 200, {8: 150, 2: 200}, {}, id="hundreds of nodes"),
    ],
)
def test_pack(free: tuple[int, ...], replicas: dict[int, int], left: dict[int, int]) -> None:
    assert pack(nodes(*free), replicas) == left


@given(
    free=st.lists(st.integers(0, 8), min_size=1, max_size=3).map(tuple),
    replicas=st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.integers(0, 4), max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_packing_of_powers_of_two_is_exact(free: tuple[int, ...], replicas: dict[int, int]) -> None:
    items = tuple(size for size in sorted(replicas, reverse=True) for _ in range(replicas[size]))
    fits = sum(items) <= sum(free) and exhaustive(free, items)

    assert (not pack(nodes(*free), replicas)) is fits


@given(
    free=st.lists(st.integers(0, 8), min_size=1, max_size=3).map(tuple),
    replicas=st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.integers(0, 4), max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_pieces_of_each_size_decide_whether_a_chain_fits(
    free: tuple[int, ...], replicas: dict[int, int]
) -> None:
    shapes = nodes(*free)
    enough = all(
        sum(size // s * n for size, n in replicas.items() if size >= s) <= room(shapes, s)
        for s in (1, 2, 4, 8)
    )

    assert (not pack(shapes, replicas)) is enough


@pytest.mark.parametrize(
    ("sizes", "chain"),
    [
        pytest.param((1, 2, 4, 8), True, id="powers of two"),
        pytest.param((2, 6), True, id="each divides the next"),
        pytest.param((4, 6), False, id="4 does not divide 6"),
        pytest.param((), True, id="none"),
    ],
)
def test_is_chain(sizes: tuple[int, ...], chain: bool) -> None:
    assert is_chain(sizes) is chain
