"""Comments to a streaming client whose request waits: proxies and clients between do not take it for dead.

vLLM sends the same (`: keep-alive`). There is nothing like it for answers that are not streamed. The first
comment commits the answer to 200 and an event stream, so an error that comes later is its last event.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from rolloutpool_router.wire.server import Exchange

PERIOD_SECONDS = 15.0
"""Time to the first comment and between two, in seconds: below the idle limits of proxies, 30 to 60 s."""
ROOM = b": waiting for room in the pool\n\n"
ENGINE = b": waiting for an engine\n\n"
WEIGHTS = b": waiting for new weights\n\n"
STREAM_HEADERS = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))


class Comments:
    """Within the block, the client gets a comment once in a while."""

    def __init__(self, exchange: Exchange, comment: bytes = ROOM) -> None:
        self._exchange = exchange
        self._text = comment

    def __enter__(self) -> Comments:
        self._timer = asyncio.get_running_loop().call_later(PERIOD_SECONDS, self._comment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def _comment(self) -> None:
        if not self._exchange.started:
            self._exchange.start(200, STREAM_HEADERS)
        self._exchange.write_piece(self._text)
        self._timer = asyncio.get_running_loop().call_later(PERIOD_SECONDS, self._comment)
