"""What each class is owed: which classes take part in the mixture, what entered, and what was consumed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rolloutpool_router.core.classes import PRESENT_SECONDS, ClassState
from rolloutpool_router.core.mixture import ConsumedRing, MixtureDebt
from rolloutpool_router.core.sessions import SessionTable
from rolloutpool_router.core.view import PoolView


class Accounts:
    """The mixture of one router. Every method that takes `now` takes seconds."""

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        self._view: PoolView | None = None
        self._stuck_after = math.inf
        """Seconds without an entry or end after which a class that runs, and waits for nothing, is stuck."""
        self._classes: Mapping[str, ClassState] = {}
        self.consumed = ConsumedRing(window=1000)
        """Samples that ended after a success."""
        self.debt = MixtureDebt()

    def apply(self, view: PoolView, classes: Mapping[str, ClassState]) -> None:
        """Take over a view and the state of its classes, by name."""
        self._view, self._classes = view, classes
        self._stuck_after = float(view.spec.admission.starvation_seconds)
        self.debt.keep(view.workloads)
        self.consumed.resize(view.spec.mixture.window_samples)

    def behind(self, now: float) -> dict[str, float]:
        """Samples that each class present is behind its share."""
        return self.debt.behind(self._present(now))

    def entered(self, class_name: str, now: float) -> None:
        """A new session entered."""
        self._moved(class_name, now)
        self.debt.entered(class_name, self._present(now, class_name), window=self.consumed.window)

    def failed(self, class_name: str, now: float) -> None:
        """A session that had entered came to nothing."""
        self._moved(class_name, now)
        self.debt.failed(class_name, self._present(now, class_name), window=self.consumed.window)

    def succeeded(self, class_name: str, now: float) -> None:
        """A session ended well: its sample is consumed."""
        self._moved(class_name, now)
        self.consumed.add(class_name)
        self.debt.consumed(
            class_name,
            self._present(now, class_name),
            window=self.consumed.window,
            tolerated=self._view.tolerated_samples if self._view is not None else 0.0,
        )

    def _moved(self, class_name: str, now: float) -> None:
        if (state := self._classes.get(class_name)) is not None:
            state.moved_at = now

    def _present(self, now: float, also: str | None = None) -> dict[str, float]:
        """Shares of the classes that run or want requests, or did a moment ago, and of one that is named.

        Sessions that only idle do not make a class take part: clients that never come back would hold all
        other classes up until their sessions expire. Nor do those that run, where nothing of the class waits
        and none has entered or ended for long: holding the others back would win it nothing.
        """
        table, present = self._table, {}
        running, resident, parked = table.running_by_class, table.by_class, table.parked_by_class
        shares = self._view.shares if self._view is not None else {}
        for name, state in self._classes.items():
            if state.queue.requests or (running.get(name) and now - state.moved_at <= self._stuck_after):
                state.wanted_at = now
            elif state.wanted_at == -math.inf:
                if name != also:
                    continue
            elif not resident.get(name) and not parked.get(name):
                state.wanted_at = -math.inf
            if name == also or now - state.wanted_at <= PRESENT_SECONDS:
                present[name] = shares[name]
        return present
