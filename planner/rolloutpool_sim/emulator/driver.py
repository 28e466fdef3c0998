"""Runs an engine on the wall clock.

One task that steps it, sleeps each step's time and hands out the tokens.

Engine time runs `time_scale` times as fast as wall time. While the engine is busy its steps follow each
other exactly in engine time; a task that was woken late catches up, so that the model's speed does not
depend on how fine the machine's timer is. Idle, the task waits for an event and costs nothing.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal

from rolloutpool_sim.engine import Engine, EngineRequest, FinishedRequest, Load, StepResult

PauseMode = Literal["abort", "wait", "keep"]
_MAX_LAG_SECONDS = 0.25
"""Wall seconds that the task may be behind and still catch up; beyond, engine time is skipped."""


class Generation:
    """One sequence in flight: its tokens so far, and how it ended once it has."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.finished: FinishedRequest | None = None
        self._progress = asyncio.Event()
        self._done = asyncio.Event()

    async def more_than(self, seen: int) -> None:
        """Wait until there are more than `seen` tokens or the end."""
        while len(self.tokens) <= seen and self.finished is None:
            self._progress.clear()
            await self._progress.wait()

    async def end(self) -> FinishedRequest:
        """Wait for the end."""
        await self._done.wait()
        assert self.finished is not None
        return self.finished

    def add_token(self, token: int) -> None:
        """Take a token from the engine."""
        self.tokens.append(token)
        self._progress.set()

    def finish(self, finished: FinishedRequest) -> None:
        """Take the end from the engine."""
        self.finished = finished
        self._progress.set()
        self._done.set()


class Driver:
    """Owns an engine: everything that touches it goes through here, in one event loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        time_scale: float,
        on_step: Callable[[StepResult], None],
        on_finished: Callable[[FinishedRequest], None],
        on_load: Callable[[Load], None],
    ) -> None:
        self.engine = engine
        self.time_scale = time_scale
        self._on_step = on_step
        self._on_finished = on_finished
        self._on_load = on_load
        self._generations: dict[str, Generation] = {}
        self._pause: PauseMode | None = None
        self._held: dict[str, EngineRequest] = {}
        """Sequences that came while the engine was paused, in their order."""
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._still = asyncio.Event()
        """Set when a pause has taken effect, or is over."""
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._busy_until: float | None = None

    async def empty(self) -> None:
        """Wait until every sequence has ended."""
        await self._empty.wait()

    def now(self) -> float:
        """Engine time in seconds since the driver was made; while a step runs, not later than its end."""
        now = (self._loop.time() - self._origin) * self.time_scale
        return now if self._busy_until is None else min(now, self._busy_until)

    def submit(self, request: EngineRequest) -> Generation:
        """Start a sequence, or hold it while paused. Raises ValueError if the engine does not take it."""
        if self._pause is None:
            self.engine.add(request, self.now())
        else:
            self.engine.check(len(request.prompt))
            self._held[request.request_id] = request
        generation = Generation(request)
        self._generations[request.request_id] = generation
        self._empty.clear()
        self._wake.set()
        return generation

    def abort(self, request_ids: Iterable[str]) -> None:
        """End sequences at once with "abort"; those that have ended are ignored."""
        ids = list(request_ids)
        for request_id in ids:
            if (held := self._held.pop(request_id, None)) is not None:
                self.engine.add(held, self.now())
        self._finish(self.engine.abort(ids, self.now()))
        self._wake.set()

    def abort_all(self) -> None:
        """End every sequence with "abort"."""
        self.abort(list(self._generations))

    @property
    def paused(self) -> bool:
        """Whether sequences that come are held."""
        return self._pause is not None

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Ids of the sequences that have not ended, held ones too."""
        return tuple(self._generations)

    async def pause(self, mode: PauseMode) -> None:
        """Hold what comes until `resume`; returns once the engine is still, or is resumed.

        As vLLM's `pause_scheduler`: "abort" ends what is there, "wait" lets it end (queued sequences too,
        which vLLM keeps), "keep" freezes it between two steps.
        """
        self._pause = mode
        self._still.clear()
        if mode == "keep":
            self._thawed.clear()
        else:
            self._thawed.set()
        if mode == "abort":
            self.abort_all()
        self._settle()
        await self._still.wait()

    def resume(self) -> None:
        """Go on, with what was held first."""
        self._pause = None
        held, self._held = self._held, {}
        for request in held.values():
            self.engine.add(request, self.now())
        self._thawed.set()
        self._still.set()
        self._wake.set()

    def _settle(self) -> None:
        """Say so when a pause has taken effect."""
        frozen = self._pause == "keep" and self._busy_until is None
        drained = self._pause in ("abort", "wait") and len(self._held) == len(self._generations)
        if frozen or drained:
            self._still.set()

    def finish_load(self, request_id: str, *, ok: bool) -> None:
        """Report that the remote KV of a sequence has come, or is lost."""
        self.engine.finish_load(request_id, ok=ok, now=self.now())
        self._wake.set()

    def read_lease(self, request_id: str, seconds: float) -> int | None:
        """Let a decode engine read a finished sequence's blocks for `seconds`; None if they are gone."""
        tokens = self.engine.leases.read(request_id, until=self.now() + seconds)
        self._wake.set()
        return tokens

    def extend_lease(self, request_id: str) -> bool:
        """Keep a finished sequence's blocks a while longer; False if they are gone."""
        return self.engine.leases.extend(request_id, self.now())

    async def run(self) -> None:
        """Step the engine for ever."""
        while True:
            if not self._thawed.is_set():
                self._busy_until = None
                self._settle()
                await self._thawed.wait()
            self._wake.clear()
            result = self.engine.step(self._step_start())
            for load in result.loads:
                self._on_load(load)
            if result.scheduled:
                self._busy_until = result.ends_at
                await asyncio.sleep(self._wall_seconds_until(result.ends_at))
                self._deliver(result)
            else:
                self._busy_until = None
                self._deliver(result)
                await self._idle()

    def _step_start(self) -> float:
        """Engine time of the next step: where the last one ended, unless idle or too far behind."""
        now = (self._loop.time() - self._origin) * self.time_scale
        if self._busy_until is None:
            return now
        return max(self._busy_until, now - _MAX_LAG_SECONDS * self.time_scale)

    def _wall_seconds_until(self, engine_time: float) -> float:
        return max(self._origin + engine_time / self.time_scale - self._loop.time(), 0.0)

    async def _idle(self) -> None:
        """Wait until a request or report comes, or a lease ends."""
        event = self.engine.next_event()
        timeout = None if event is None else self._wall_seconds_until(event)
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except TimeoutError:
            return

    def _deliver(self, result: StepResult) -> None:
        self._on_step(result)
        for token in result.tokens:
            generation = self._generations.get(token.request_id)
            if generation is not None:
                generation.add_token(token.token)
        self._finish(result.finished)

    def _finish(self, ended: Iterable[FinishedRequest]) -> None:
        for finished in ended:
            self._on_finished(finished)
            generation = self._generations.pop(finished.request_id, None)
            if generation is not None:
                generation.finish(finished)
        if not self._generations:
            self._empty.set()
        self._settle()
