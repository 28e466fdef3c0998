"""The work queue: one worker per key, coalescing, backoff, resync."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from rolloutpool_operator.workqueue import WorkQueue


class Work:
    """Records what is worked on; each call waits for `gate` and answers as told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.running: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: dict[str, int] = {}
        self.answer: float | None = None

    async def __call__(self, key: str) -> float | None:
        assert key not in self.running, "one worker per key"
        self.running.add(key)
        self.calls.append(key)
        try:
            await self.gate.wait()
            if self.failures.get(key, 0) > 0:
                self.failures[key] -= 1
                raise RuntimeError("not now")
        finally:
            self.running.discard(key)
        return self.answer


@contextlib.asynccontextmanager
async def running(
    work: Callable[[str], Awaitable[float | None]], **options: float
) -> AsyncIterator[WorkQueue[str]]:
    queue: WorkQueue[str] = WorkQueue(work, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(predicate: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not predicate():  # noqa: ASYNC110 - any state of the queue, without hooks in it
            await asyncio.sleep(0.001)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_adds_before_work_begins_are_one() -> None:
    work = Work()
    async with running(work) as queue:
        for _ in range(5):
            queue.add("a")
        await until(lambda: bool(work.calls))
        await settle()
        assert work.calls == ["a"]


async def test_adds_during_work_are_one_more() -> None:
    work = Work()
    work.gate.clear()
    async with running(work) as queue:
        queue.add("a")
        await until(lambda: "a" in work.running)
        for _ in range(5):
            queue.add("a")
        await settle()
        assert work.calls == ["a"]
        work.gate.set()
        await until(lambda: len(work.calls) == 2)
        await settle()
        assert work.calls == ["a", "a"]


async def test_keys_do_not_wait_for_each_other() -> None:
    work = Work()
    work.gate.clear()
    async with running(work, workers=2) as queue:
        queue.add("a")
        queue.add("b")
        await until(lambda: work.running == {"a", "b"})


async def test_failures_come_back_and_do_not_stop_others(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    work.failures = {"a": 3}
    async with running(work, base_delay=0.001, workers=1) as queue:
        queue.add("a")
        queue.add("b")
        await until(lambda: work.calls.count("a") == 4)
        assert work.calls.count("b") == 1
    delays = [record.getMessage().split("next attempt in ")[1] for record in caplog.records]
    assert len(delays) == 3
    assert "(3 in a row)" in caplog.text


async def test_backoff_doubles_up_to_the_limit() -> None:
    work = Work()
    work.failures = {"a": 100}
    waits: list[float] = []
    async with running(work, base_delay=1.0, max_delay=5.0) as queue:
        loop = asyncio.get_running_loop()
        for number in range(1, 6):
            queue.add("a")
            await until(lambda wanted=number: len(work.calls) == wanted and not work.running)  # type: ignore[misc]
            await settle()
            timer = queue._entries["a"].timer
            assert timer is not None
            waits.append(round(timer.when() - loop.time()))
    assert waits == [1, 2, 4, 5, 5]


async def test_everything_comes_back_after_the_resync_period() -> None:
    work = Work()
    async with running(work, resync=0.01) as queue:
        queue.add("a")
        await until(lambda: len(work.calls) >= 3)


async def test_work_may_ask_to_come_back_earlier() -> None:
    work = Work()
    work.answer = 0.01
    async with running(work, resync=3600) as queue:
        queue.add("a")
        await until(lambda: len(work.calls) >= 3)


async def test_a_key_added_before_it_is_forgotten_is_worked_on_again() -> None:
    """A pool that was deleted and made anew while its deletion was worked on."""
    work = Work()
    async with running(work) as queue:
        work.gate.clear()
        queue.add("a")
        await until(lambda: bool(work.calls))
        queue.add("a")
        queue.forget("a")
        work.gate.set()
        await until(lambda: len(work.calls) == 2)


@pytest.mark.parametrize("while_running", [False, True])
async def test_forgotten_keys_do_not_come_back(while_running: bool) -> None:
    work = Work()
    async with running(work, resync=0.005) as queue:
        if while_running:
            work.gate.clear()
        queue.add("a")
        await until(lambda: bool(work.calls))
        queue.forget("a")
        work.gate.set()
        await until(lambda: queue.keys == ())
        count = len(work.calls)
        await asyncio.sleep(0.02)
        assert len(work.calls) == count
        queue.add("a")
        await until(lambda: len(work.calls) > count)


async def test_bounded(caplog: pytest.LogCaptureFixture) -> None:
    queue: WorkQueue[str] = WorkQueue(Work(), limit=2)
    for key in "abc":
        queue.add(key)
    assert queue.keys == ("a", "b")
    assert "c is left out" in caplog.text


async def test_expected_failures_leave_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    work.failures = {"a": 1}
    async with running(work, base_delay=0.001, expected=(RuntimeError,)) as queue:  # type: ignore[arg-type]
        queue.add("a")
        await until(lambda: len(work.calls) == 2)
    assert "Traceback" not in caplog.text
