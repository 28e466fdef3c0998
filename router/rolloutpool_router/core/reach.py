"""Where the next waiting session of a class may go, kept from one decision to the next.

A decision changes one engine and the head of one queue. So for each class and engine it is kept whether the
class has room there, and whether its next session fits; only what may have changed is asked anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rolloutpool_router.core.admission import headroom
from rolloutpool_router.core.fitting import CLOSE, Ask
from rolloutpool_router.core.occupancy import Occupancy
from rolloutpool_router.core.placement import EngineLoad


class Openings:
    """Engines that let a class in, and those of them that its next session fits."""

    def __init__(self, class_name: str, occupancy: Occupancy, *, class_blind: bool, beyond: bool) -> None:
        """Know nothing yet.

        Args:
            class_name: the class.
            occupancy: the engines; whoever asks has called its `loads` before.
            class_blind: each cap bounds the sessions of all classes together.
            beyond: count those too that are known to have room for one more than the caps say.
        """
        self._class_name = class_name
        self._occupancy = occupancy
        self._class_blind = class_blind
        self._beyond = beyond
        self._epoch = -1
        self._seen = 0
        """Changes of the occupancy that were looked at."""
        self._ask: Ask | None = None
        """What `fitting` answers."""
        self.all = bytearray()
        """By engine: 1 where the class is let in."""
        self.fitting = bytearray()
        """By engine: 1 where it is and the session fits."""

    def look(self, ask: Ask) -> bytearray:
        """Look at what changed since the last question, for a session that asks this; `fitting`."""
        occupancy = self._occupancy
        if self._epoch != occupancy.epoch:
            self._epoch, self._seen = occupancy.epoch, len(occupancy.changes)
            self.all = bytearray([self._lets_in(row) for row in occupancy.rows])
            self._look_for(ask)
            return self.fitting
        changed: Collection[int] = occupancy.changes[self._seen :]
        if changed:
            self._seen += len(changed)
            changed = set(changed)
            for place in changed:
                self.all[place] = self._lets_in(occupancy.rows[place])
        if ask is not self._ask and ask != self._ask:
            self._look_for(ask)
        elif changed:
            for place in changed:
                self.fitting[place] = 0
            self._look_at(changed, ask)
        return self.fitting

    def _lets_in(self, engine: EngineLoad) -> bool:
        if headroom(engine, self._class_name, class_blind=self._class_blind) > 0:
            return True
        return self._beyond and self._occupancy.fitting.is_spare(self._class_name, engine)

    def _look_for(self, ask: Ask) -> None:
        """Look at all engines for a session that asks something else."""
        self._ask = ask
        if ask.most + CLOSE <= self._occupancy.least_room():
            self.fitting = bytearray(self.all)
            return
        self.fitting = bytearray(len(self.all))
        if 1 in self.all:
            self._look_at(range(len(self.all)), ask)

    def _look_at(self, places: Iterable[int], ask: Ask) -> None:
        occupancy = self._occupancy
        among = [place for place in places if self.all[place]]
        if among:
            for place in occupancy.fitting.fitting(ask, occupancy.rows, occupancy.rooms, among):
                self.fitting[place] = 1
