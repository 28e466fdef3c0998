"""An admission controller to ask, and a small world in virtual time around one."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.outcomes import Refusal
from rolloutpool_router.core.prefix import PrefixKey
from rolloutpool_router.core.requests import Arrival, Entered, Queued
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.core.view import Ignored
from rolloutpool_router.testing import pool_object

ENGINES = {"e0": "http://e0", "e1": "http://e1"}
ONE = {"e0": "http://e0"}
CLASSES = ("rlvr", "rlhf", "agentic")
CAPS = dict.fromkeys(CLASSES, 2)
STRICT: Mapping[str, Any] = {"lending": False}
"""Caps bind even while nobody else waits."""
BLOCK = 16
"""Tokens of a block."""


def controller_of(
    pool: Mapping[str, Any] | None = None,
    *,
    engines: Mapping[str, str] = ENGINES,
    caps: Mapping[str, int] | None = CAPS,
    seed: int = 1,
    **options: Any,
) -> AdmissionController:
    """A controller that has read a pool; options as for `pool_object`."""
    controller = AdmissionController(Random(seed))
    apply(controller, pool or pool_object(engines, caps=caps, **options))
    return controller


def apply(controller: AdmissionController, pool: Mapping[str, Any]) -> list[str]:
    """Let it read a pool that it accepts; the waiting sessions whose class is gone."""
    dropped = controller.apply(parse_pool(pool), {})
    assert not isinstance(dropped, Ignored), dropped.reason
    return [ticket.session for ticket in dropped]


def arrive(
    controller: AdmissionController,
    session: str,
    class_name: str = "rlvr",
    *,
    now: float = 0.0,
    **fields: Any,
) -> Entered | Queued | Refusal:
    """A request comes; fields as in `Arrival`."""
    return controller.arrive(Arrival(session, class_name, **fields), now)[0]


def enter(controller: AdmissionController, session: str, class_name: str = "rlvr", **fields: Any) -> Entered:
    """A request that enters at once."""
    answer = arrive(controller, session, class_name, **fields)
    assert isinstance(answer, Entered), answer
    return answer


def fill(
    controller: AdmissionController, class_name: str = "rlvr", *, most: int = 1000, **fields: Any
) -> int:
    """Let sessions come until one has to wait, and withdraw that; how many entered."""
    for number in range(most):
        answer = arrive(controller, f"{class_name}-{number}", class_name, **fields)
        if isinstance(answer, Queued):
            controller.cancel(answer, fields.get("now", 0.0))
        if not isinstance(answer, Entered):
            return number
    return most


def get_ahead(controller: AdmissionController, class_name: str, samples: int) -> None:
    """Let so many samples of a class have entered, while all classes wanted to."""
    assert controller.view is not None
    for _ in range(samples):
        controller.debt.entered(class_name, controller.view.shares, window=10_000)


def names(entered: Collection[Entered]) -> list[str]:
    """Their sessions."""
    return [entry.session for entry in entered]


@dataclass(frozen=True)
class Turn:
    """One request of a sample."""

    seconds: float
    """From entering to the end of its answer."""
    prompt_tokens: int = 160
    output_tokens: int = 160
    gap_seconds: float = 0.0
    """Until the next turn."""


@dataclass(frozen=True)
class Sample:
    """One session's life, as the trainer and the engine know it."""

    name: str
    class_name: str
    turns: Sequence[Turn]
    group: bytes | None = None
    prefix: tuple[PrefixKey, ...] = ()
    cached_tokens: int | None = None
    """What its engine says that later turns found in its cache."""


@dataclass
class World:
    """The real controller in virtual time: samples are submitted, served as they enter, and end."""

    controller: AdmissionController
    now: float = 0.0
    entered: list[tuple[float, Entered]] = field(default_factory=list)
    """First entries (not later turns of residents), with their time."""
    refused: list[str] = field(default_factory=list)
    finished: list[Sample] = field(default_factory=list)
    ended: Callable[[Sample], None] = lambda _: None
    """Told of each sample that is over."""
    every_second: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._open: dict[str, tuple[Sample, int]] = {}
        self._tick()

    def at(self, time: float, do: Callable[[], None]) -> None:
        """Do something then."""
        heapq.heappush(self._events, (time, next(self._numbers), do))

    def submit(self, sample: Sample) -> None:
        """The trainer sends a sample's first turn now."""
        self._turn(sample, 0)

    def run(self, until: float) -> World:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = until
        return self

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(state.queue.requests for state in self.controller.classes.values())

    def _turn(self, sample: Sample, turn: int) -> None:
        self._open[sample.name] = (sample, turn)
        resident = self.controller.table.get(sample.name) is not None
        arrival = Arrival(
            sample.name,
            sample.class_name,
            prefix=sample.prefix,
            group=sample.group,
            prompt_tokens=sample.turns[turn].prompt_tokens,
        )
        answer, entered = self.controller.arrive(arrival, self.now)
        if isinstance(answer, Refusal):
            self._refuse(sample.name)
        elif isinstance(answer, Entered) and resident:
            self._serve(answer)
        self._take(entered)

    def _take(self, entered: Sequence[Entered]) -> None:
        for entry in entered:
            self.entered.append((self.now, entry))
            self._serve(entry)

    def _serve(self, entry: Entered) -> None:
        sample, turn = self._open[entry.session]
        self.at(self.now + sample.turns[turn].seconds, lambda: self._answer(sample, turn))

    def _answer(self, sample: Sample, number: int) -> None:
        turn = sample.turns[number]
        usage = Usage(turn.prompt_tokens, turn.output_tokens, sample.cached_tokens)
        self.controller.end_turn(sample.name, now=self.now, ok=True, usage=usage)
        if number + 1 < len(sample.turns):
            self.at(self.now + turn.gap_seconds, lambda: self._turn(sample, number + 1))
        else:
            self.controller.finish(sample.name, self.now)
            self._over(sample)
        self._take(self.controller.admit_waiting(self.now))

    def _refuse(self, session: str) -> None:
        self.refused.append(session)
        del self._open[session]

    def _over(self, sample: Sample) -> None:
        del self._open[sample.name]
        self.finished.append(sample)
        self.ended(sample)

    def _tick(self) -> None:
        ticked = self.controller.tick(self.now)
        for ticket, _ in ticked.refused:
            self._refuse(ticket.session)
        self._take(ticked.entered)
        self.every_second()
        self.at(self.now + 1.0, self._tick)
