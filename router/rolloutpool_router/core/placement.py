"""Where a new session goes: to the longest cached prefix among engines that are not clearly fuller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

MAX_LEAD = 0.1
"""How much fuller than the emptiest engine, as a part of the mean load, an engine may be and still be
preferred for its prefix. Without a bound, one shared system prompt would fill one engine before any other."""


@dataclass(frozen=True)
class EngineLoad:
    """One engine as admission and placement see it."""

    name: str
    capacity_blocks: int
    """KV blocks that it has; 0 while unknown."""
    protected_blocks: float
    """KV blocks that admitted sessions may fill; 0 while unknown."""
    caps: Mapping[str, int]
    """Sessions that may be resident, by class."""
    active: Mapping[str, int]
    """Sessions resident, by class; classes without any may be absent."""
    occupied_blocks: float
    """KV blocks that the residents are expected to hold at most."""

    closed: bool = False
    """This router has no part of the engine: other routers share it."""

    @property
    def load(self) -> float:
        """Occupied part of the blocks; blocks, where the capacity is unknown."""
        return self.occupied_blocks / self.capacity_blocks if self.capacity_blocks else self.occupied_blocks


def choose_engine(engines: Sequence[EngineLoad], overlap: Mapping[str, int], rng: Random) -> EngineLoad:
    """The engine for a new session: best prefix overlap, then least load, ties at random.

    Args:
        engines: those that may take it; not empty.
        overlap: leading prompt chunks that each engine holds, by engine.
        rng: breaks ties; a fixed order would send every new session to the same engine.
    """
    known = all(engine.capacity_blocks > 0 for engine in engines)
    loads = {e.name: e.load if known else e.occupied_blocks for e in engines}
    least = min(loads.values())
    lead = MAX_LEAD * sum(loads.values()) / len(loads)
    near = [engine for engine in engines if loads[engine.name] <= least + lead]
    best = max(overlap.get(engine.name, 0) for engine in near)
    holders = [engine for engine in near if overlap.get(engine.name, 0) == best]
    lightest = min(loads[engine.name] for engine in holders)
    return rng.choice([engine for engine in holders if loads[engine.name] == lightest])
