"""The closed loop: a window of samples under way, each played turn by turn with a trainer's retries."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rolloutpool_cli.load.client import Answer, AttemptFailed, TrainerClient
from rolloutpool_cli.load.report import LoadReport, Tally, build_report
from rolloutpool_cli.load.retry import retry_delay, retryable
from rolloutpool_cli.load.scenario import Sample, Scenario, Turn, words


class SessionLost(Exception):
    """A turn failed for good, and its session with it."""


@dataclass
class LoadRun:
    """One run against one router."""

    client: TrainerClient
    scenario: Scenario
    shares: dict[str, float]
    """Target shares by class."""
    seed: int
    """Makes the texts; the same prompt gets the same text."""
    sessions: bool
    """False: requests carry no session id, as trainers without one send them."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    tallies: dict[str, Tally] = field(init=False)
    outstanding: Counter[str] = field(default_factory=Counter)
    last_error: str = ""
    _started: float = 0.0
    _stopping: bool = False
    _measured_seconds: float | None = None

    def __post_init__(self) -> None:
        self.tallies = {name: Tally() for name in self.shares}

    def report(self) -> LoadReport:
        """What was measured so far."""
        elapsed = self._measured_seconds or self.clock() - self._started
        return build_report(self.shares, self.tallies, elapsed_seconds=elapsed, last_error=self.last_error)

    async def run(
        self, *, window: int, duration_seconds: float, drain_seconds: float, stop: asyncio.Event
    ) -> LoadReport:
        """Keep `window` samples under way for the duration, then let them finish.

        Args:
            window: samples under way at once.
            duration_seconds: time after which no sample starts, in seconds.
            drain_seconds: time that samples under way have to finish then, in seconds.
            stop: set to end early.
        """
        self._started = self.clock()
        workers = [asyncio.create_task(self._work()) for _ in range(window)]
        await _wait(stop, workers, duration_seconds)
        self._measured_seconds = self.clock() - self._started
        self._stopping = True
        if not stop.is_set():
            await _wait(stop, workers, drain_seconds)
        for worker in workers:
            worker.cancel()
        results = await asyncio.gather(*workers, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return self.report()

    async def _work(self) -> None:
        while not self._stopping:
            sample = self.scenario.next_sample(self.outstanding)
            self.outstanding[sample.class_name] += 1
            try:
                await self._play(sample)
            finally:
                self.outstanding[sample.class_name] -= 1

    async def _play(self, sample: Sample) -> None:
        tally = self.tallies[sample.class_name]
        messages: list[dict[str, str]] = []
        try:
            for index, turn in enumerate(sample.turns):
                await asyncio.sleep(turn.gap_seconds)
                messages.append({"role": "user", "content": self._text(sample, turn, index)})
                answer = await self._turn(sample, turn, messages)
                if index == 0 and answer.wait_seconds is not None:
                    tally.waits.append(answer.wait_seconds)
                messages.append({"role": "assistant", "content": answer.text})
        except SessionLost:
            tally.lost += 1
        except asyncio.CancelledError:
            tally.unfinished += 1
            raise
        else:
            if self._stopping:
                tally.drained += 1
            else:
                tally.finished += 1
        finally:
            await self._finish(sample)

    async def _turn(self, sample: Sample, turn: Turn, messages: list[dict[str, str]]) -> Answer:
        tally = self.tallies[sample.class_name]
        failures = 0
        while True:
            began = self.clock()
            try:
                answer = await self.client.chat(
                    messages,
                    output_tokens=turn.output_tokens,
                    class_name=sample.class_name,
                    session_id=sample.session_id if self.sessions else None,
                )
            except AttemptFailed as error:
                failures += 1
                tally.errors += 1
                await self._before_retry(error, failures)
                tally.retries += 1
            else:
                tally.turns += 1
                if not self._stopping:
                    tally.output_tokens += answer.output_tokens
                tally.latencies.append(self.clock() - began)
                return answer

    async def _before_retry(self, error: AttemptFailed, failures: int) -> None:
        self.last_error = str(error)
        delay = None
        if error.status is None or retryable(error.status):
            delay = retry_delay(failures, retry_after=error.retry_after)
        if delay is None:
            raise SessionLost from error
        await asyncio.sleep(delay)

    async def _finish(self, sample: Sample) -> None:
        if self.sessions:
            await self.client.finish(sample.session_id)

    def _text(self, sample: Sample, turn: Turn, index: int) -> str:
        key = sample.prompt if index == 0 else f"{sample.session_id}/{index}"
        return words(turn.input_tokens, random.Random(f"{self.seed}/{key}"))


async def _wait(stop: asyncio.Event, workers: list[asyncio.Task[None]], seconds: float) -> None:
    """Wait until told to stop, all workers are done, one of them failed, or the time is over."""
    stopped = asyncio.create_task(stop.wait())
    finished = asyncio.create_task(asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION))
    try:
        await asyncio.wait({stopped, finished}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        finished.cancel()
