"""Class queues: parked first, then the rest of a group, then first come first served; cancelled anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router.core.classes import MOST_TOGETHER, ClassState
from rolloutpool_router.core.queues import ClassQueue, Ticket


def ticket(name: str, at: float = 0.0, *, group: str | None = None, parked: bool = False) -> Ticket:
    return Ticket(name, "rlvr", at, group=group.encode() if group else None, parked=parked)


def queue_of(*names: str) -> ClassQueue:
    """Sessions that came at 0, 1, 2, ...; a name like `a/g` is one of group g, `a!` a parked one."""
    queue = ClassQueue()
    for at, name in enumerate(names):
        plain, _, group = name.rstrip("!").partition("/")
        queue.push(ticket(plain, float(at), group=group or None, parked=name.endswith("!")))
    return queue


def order(queue: ClassQueue) -> str:
    return "".join(waiting.session for waiting in queue)


def test_the_oldest_is_first() -> None:
    queue = queue_of("a", "b", "c")

    head = queue.head()
    assert head is not None
    assert head.session == "a"
    assert queue.oldest_wait(10) == 10
    queue.pop("a")
    assert queue.oldest_wait(10) == 9


@pytest.mark.parametrize(
    ("names", "gathered", "expected"),
    [
        pytest.param(["a", "b", "c"], None, "abc", id="in-the-order-of-arrival"),
        pytest.param(["a", "b!", "c", "d!"], None, "bdac", id="parked-ones-before-new-ones"),
        pytest.param(["a", "b/g", "c", "d/g"], None, "abcd", id="groups-wait-like-others-at-first"),
        pytest.param(["a", "b/g", "c", "d/g"], "g", "bdac", id="the-rest-of-a-group-that-entered"),
        pytest.param(["a", "b/g", "c!", "d/g"], "g", "cbda", id="parked-ones-before-the-rest-of-a-group"),
        pytest.param(["a", "b/g!", "c/g"], "g", "bca", id="a-parked-sample-keeps-its-place"),
        pytest.param(["a", "b/g", "c/h"], "h", "cab", id="other-groups-stay"),
        pytest.param(["a", "b"], "g", "ab", id="nobody-of-the-group-waits"),
    ],
)
def test_the_order(names: list[str], gathered: str | None, expected: str) -> None:
    queue = queue_of(*names)
    if gathered is not None:
        queue.gather(gathered.encode())

    assert order(queue) == expected


@pytest.mark.parametrize("gone", ["a", "b", "c", "d"])
def test_any_may_leave_the_queue(gone: str) -> None:
    queue = queue_of("a", "b/g", "c!", "d/g")
    queue.gather(b"g")

    assert queue.cancel(gone)
    assert order(queue) == "cbda".replace(gone, "")
    assert queue.requests == 3
    assert queue.siblings(b"g") == (1 if gone in "bd" else 2)


def test_requests_of_one_session_share_a_ticket() -> None:
    queue = queue_of("a", "b", "a")

    assert (len(queue), queue.requests) == (2, 3)
    assert queue.cancel("a")
    assert (len(queue), queue.requests) == (2, 2)
    assert queue.pop("a").requests == 1
    assert queue.requests == 1


class TestSamplesOfOnePrompt:
    """They enter in a row on one engine, but not for ever."""

    @staticmethod
    def entering(state: ClassState, name: str, group: str | None = "g", engine: str = "e0") -> str | None:
        """Let a session of the queue enter; the engine that it was to follow others to."""
        found = state.queue.pop(name)
        follows = state.goes_with(found)
        if group is not None:
            state.sample_entered(group.encode(), engine)
        return follows

    def test_the_others_follow_the_first(self) -> None:
        state = ClassState(queue=queue_of("a/g", "b", "c/g", "d/h"))

        assert self.entering(state, "a") is None
        assert order(state.queue) == "cbd"
        assert self.entering(state, "c") == "e0"
        assert self.entering(state, "b", None) is None
        assert self.entering(state, "d", "h") is None

    def test_after_so_many_in_a_row_they_are_like_others(self) -> None:
        state = ClassState()
        followed = []
        for number in range(2 * MOST_TOGETHER + 1):
            state.queue.push(ticket(f"s{number}", float(number), group="g"))
            followed.append(self.entering(state, f"s{number}") is not None)

        assert followed == ([False] + [True] * (MOST_TOGETHER - 1)) * 2 + [False]

    def test_later_samples_of_the_prompt_wait_behind_those_before_them(self) -> None:
        state = ClassState(queue=queue_of("a/g", "b"))
        self.entering(state, "a")
        state.queue.push(ticket("c", 9.0, group="g"))
        self.entering(state, "b", None)
        state.queue.push(ticket("d", 9.0))
        self.entering(state, "c")

        assert order(state.queue) == "d"


def test_an_empty_queue() -> None:
    queue = ClassQueue()

    assert queue.head() is None
    assert queue.oldest_wait(5) == 0
    assert queue.late(5) == []
    assert not queue.cancel("a")
    assert queue.siblings(None) == queue.siblings(b"g") == 0
    with pytest.raises(KeyError):
        queue.pop("a")


def test_siblings_are_the_new_samples_of_a_prompt_that_wait() -> None:
    queue = queue_of("a/g", "b/g", "c/h", "d/g!", "e")

    assert [queue.siblings(group) for group in (b"g", b"h", None)] == [2, 1, 0]
    queue.pop("a")
    queue.gather(b"g")
    assert queue.siblings(b"g") == 1, "those gathered still wait"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param(-1.0, "", id="nobody"),
        pytest.param(0.0, "a", id="up-to-that-moment"),
        pytest.param(2.0, "bca", id="of-every-kind"),
        pytest.param(9.0, "bcdae", id="all"),
    ],
)
def test_who_came_before(before: float, expected: str) -> None:
    queue = queue_of("a", "b!", "c/g", "d/g", "e")
    queue.gather(b"g")

    assert "".join(late.session for late in queue.late(before)) == expected


steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("gh-"), st.booleans()),
        st.tuples(st.just("again"), st.integers(0, 30), st.just(False)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(False)),
        st.tuples(st.just("enter"), st.just(0), st.just(False)),
    ),
    max_size=40,
)


class Model:
    """A queue as a plain list, next to the real one."""

    def __init__(self) -> None:
        self.queue = ClassQueue()
        self.waiting: list[Ticket] = []
        self.gathered: set[str] = set()
        self.now = 0.0

    def step(self, action: str, which: str | int, parked: bool) -> None:
        self.now += 1
        if action == "push":
            group = None if which == "-" else str(which)
            self.queue.push(ticket(f"s{self.now:04}", self.now, group=group, parked=parked))
            self.waiting.append(ticket(f"s{self.now:04}", self.now, group=group, parked=parked))
        elif not self.waiting:
            assert self.queue.head() is None
        elif action == "enter":
            self.enter()
        else:
            one = self.waiting[int(which) % len(self.waiting)]
            one.requests += 1 if action == "again" else -1
            if action == "again":
                self.queue.push(ticket(one.session, self.now))
            else:
                assert self.queue.cancel(one.session)
            self.waiting = [left for left in self.waiting if left.requests]

    def enter(self) -> None:
        """The first enters, and the rest of its group is gathered, as the controller does."""
        head = self.queue.head()
        assert head is not None
        assert head.session == self.order[0].session
        assert self.queue.pop(head.session).requests == self.order[0].requests
        self.waiting = [left for left in self.waiting if left.session != head.session]
        if head.group is not None and not head.parked:
            self.queue.gather(head.group)
            self.gathered |= {one.session for one in self.waiting if one.group == head.group}

    @property
    def order(self) -> list[Ticket]:
        return sorted(self.waiting, key=lambda one: (not one.parked, one.session not in self.gathered))


@given(steps=steps, before=st.integers(0, 40))
def test_whatever_happens_the_queue_is_in_order(
    steps: list[tuple[str, str | int, bool]], before: int
) -> None:
    model = Model()
    for step in steps:
        model.step(*step)

    queue = model.queue
    assert [one.session for one in queue] == [one.session for one in model.order]
    assert queue.requests == sum(one.requests for one in model.waiting)
    oldest = min((one.arrived_at for one in model.waiting), default=model.now)
    assert queue.oldest_wait(model.now) == model.now - oldest
    late = {one.session for one in model.waiting if one.arrived_at <= before}
    assert {one.session for one in queue.late(before)} == late
    for group in "gh":
        waiting = [one for one in model.waiting if one.group == group.encode() and not one.parked]
        assert queue.siblings(group.encode()) == len(waiting)
