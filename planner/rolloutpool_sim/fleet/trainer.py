"""The trainer: which samples are submitted when. Groups are submitted whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rolloutpool_sim.fleet.result import Iteration
from rolloutpool_sim.fleet.scenario import Refill, Scenario, TrainerMode


@dataclass(frozen=True)
class Order:
    """Groups of a class to submit now."""

    class_name: str
    groups: int


class Trainer:
    """Decides what to submit; told of every completed sample."""

    def __init__(self, scenario: Scenario) -> None:
        self._mode = scenario.trainer.mode
        self._refill = scenario.trainer.refill
        self._most_iterations = scenario.trainer.iterations
        self._shares = {workload.name: workload.share for workload in scenario.workloads}
        self._sizes = {workload.name: workload.group_size for workload in scenario.workloads}
        self._batch = scenario.trainer.batch_samples(scenario.fleet.engines)
        self._target = 0
        if self._mode is TrainerMode.ASYNC:
            self._target = scenario.trainer.open_samples(scenario.fleet.engines)
        self._silent: set[str] = set()
        self._started = 0.0
        self._counts: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        self.open: Counter[str] = Counter()
        """Samples submitted and not completed, by class."""
        self.submitted: Counter[str] = Counter()
        """Samples submitted, by class."""
        self.iterations: list[Iteration] = []
        """Batches that completed."""

    @property
    def done(self) -> bool:
        """Whether the last iteration asked for has completed."""
        return (
            self._mode is TrainerMode.SYNC
            and self._most_iterations is not None
            and len(self.iterations) >= self._most_iterations
        )

    def start(self) -> list[Order]:
        """What to submit first."""
        return self._next_batch() if self._mode is TrainerMode.SYNC else self._refilled()

    def silence(self, class_name: str) -> None:
        """Submit nothing of a class until `unsilence`."""
        self._silent.add(class_name)

    def unsilence(self, class_name: str) -> list[Order]:
        """The class may be submitted again; what to submit now."""
        self._silent.discard(class_name)
        if self._mode is TrainerMode.ASYNC:
            return self._refilled()
        return self._next_batch() if not self.done and not self.open.total() else []

    def burst(self, class_name: str, samples: int) -> list[Order]:
        """Samples on top of those kept open."""
        return [self._order(class_name, math.ceil(samples / self._sizes[class_name]))]

    def completed(self, class_name: str, now: float) -> tuple[list[Order], bool]:
        """A sample has completed: what to submit now, and whether it was the last of an iteration."""
        self.open[class_name] -= 1
        self._counts[class_name] += 1
        self._last[class_name] = now
        if self._mode is TrainerMode.ASYNC:
            ended = self._counts.total() >= self._batch
            if ended:
                self._end_iteration(now)
            return self._refilled(), ended
        if self.open.total():
            return [], False
        self._end_iteration(now)
        return ([] if self.done else self._next_batch()), True

    def _end_iteration(self, now: float) -> None:
        finished = {name: at - self._started for name, at in self._last.items()}
        self.iterations.append(
            Iteration(start=self._started, end=now, counts=dict(self._counts), finished=finished)
        )
        self._started = now
        self._counts = Counter()
        self._last = {}

    def _next_batch(self) -> list[Order]:
        """A batch in the mixture, as near as whole groups allow: the class furthest behind is next."""
        groups: Counter[str] = Counter()
        samples: Counter[str] = Counter()
        while samples.total() < self._batch and (name := self._furthest_behind(samples)) is not None:
            groups[name] += 1
            samples[name] += self._sizes[name]
        return [self._order(name, groups[name]) for name in self._shares if groups[name]]

    def _refilled(self) -> list[Order]:
        if self._refill is Refill.PER_CLASS:
            return self._refilled_classes()
        orders = []
        while (name := self._furthest_behind(self.submitted)) is not None:
            if self.open.total() and self.open.total() + self._sizes[name] > self._target:
                break
            orders.append(self._order(name, 1))
        return orders

    def _refilled_classes(self) -> list[Order]:
        """Every class that lacks a whole group of its part; at least one group each."""
        orders = []
        for name, share in self._shares.items():
            size = self._sizes[name]
            part = max(size, round(share * self._target))
            groups = (part - self.open[name]) // size
            if groups > 0 and name not in self._silent:
                orders.append(self._order(name, groups))
        return orders

    def _order(self, class_name: str, groups: int) -> Order:
        samples = groups * self._sizes[class_name]
        self.open[class_name] += samples
        self.submitted[class_name] += samples
        return Order(class_name, groups)

    def _furthest_behind(self, counts: Mapping[str, int]) -> str | None:
        """The class whose next group brings these counts closest to the shares; None if all are silent."""
        names = [name for name in self._shares if name not in self._silent]
        sizes, shares = self._sizes, self._shares
        return min(
            names, key=lambda name: (counts.get(name, 0) + sizes[name] / 2) / shares[name], default=None
        )
