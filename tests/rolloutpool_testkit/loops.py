"""Runs a test on the plain asyncio loop and on uvloop."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make two tests of an asynchronous one, and see that it leaves no task behind."""

    @functools.wraps(test)
    def run(*arguments: object, loop: str, **named: object) -> None:
        async def watched() -> None:
            await test(*arguments, **named)
            await no_tasks()

        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(watched())

    parameters = inspect.signature(test).parameters.values()
    added = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*parameters, added])  # type: ignore[attr-defined]
    both: Callable[..., None] = pytest.mark.parametrize("loop", list(LOOPS))(run)
    return both


async def no_tasks() -> None:
    """Wait until no task but the calling one is left.

    Raises:
        TimeoutError: some stay.
    """
    async with asyncio.timeout(10):
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.002)
