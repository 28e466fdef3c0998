"""Background tasks of the router are never gone for good."""

import asyncio
import logging

import pytest

from rolloutpool_router.server import keep_running


@pytest.mark.parametrize("error", [None, RuntimeError("broken")], ids=["it ends", "it fails"])
async def test_a_task_that_stops_starts_anew(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    starts, third = 0, asyncio.Event()

    async def work() -> None:
        nonlocal starts
        starts += 1
        if starts == 3:
            third.set()
            await asyncio.Event().wait()
        if error is not None:
            raise error

    with caplog.at_level(logging.ERROR):
        task = asyncio.create_task(keep_running(work, pause=0))
        await asyncio.wait_for(third.wait(), 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(caplog.records) == (2 if error is not None else 0)
