"""Class queues: first come first served, one ticket a session, cancelled anywhere."""

from __future__ import annotations

import pytest

from rolloutpool_router.core.queues import ClassQueue, Ticket


def queue_of(*names: str) -> ClassQueue:
    queue = ClassQueue()
    for at, name in enumerate(names):
        queue.push(Ticket(name, "rlvr", float(at)))
    return queue


def test_the_oldest_is_first() -> None:
    queue = queue_of("a", "b", "c")

    head = queue.head()
    assert head is not None
    assert head.session == "a"
    assert queue.oldest_wait(10) == 10
    queue.pop("a")
    assert queue.oldest_wait(10) == 9


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_any_may_leave_the_queue(gone: str) -> None:
    queue = queue_of("a", "b", "c")

    assert queue.cancel(gone)
    assert [t.session for t in queue] == [name for name in "abc" if name != gone]
    assert queue.requests == 2


def test_requests_of_one_session_share_a_ticket() -> None:
    queue = queue_of("a", "b", "a")

    assert (len(queue), queue.requests) == (2, 3)
    assert queue.cancel("a")
    assert (len(queue), queue.requests) == (2, 2)
    assert queue.pop("a").requests == 1
    assert queue.requests == 1


def test_an_empty_queue() -> None:
    queue = ClassQueue()

    assert queue.head() is None
    assert queue.oldest_wait(5) == 0
    assert not queue.cancel("a")
    with pytest.raises(KeyError):
        queue.pop("a")
